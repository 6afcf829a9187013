"""Tests to distribute intervals to cells, based on how they overlap."""

import numpy as np
import pytest

from broadside.coordinator.core.measure.grid.resample import OverlapResampler


def _resampler(bounds: list[tuple[float, float]], edges: list[float]) -> OverlapResampler:
    start, end = np.array(bounds, dtype=np.float64).T
    return OverlapResampler(start, end, np.array(edges, dtype=np.float64))


# The rows should cover 0.5, 1, 0.6, 0.5 and 0 of the cells.
ROWS = _resampler([(0.5, 1.5), (1.5, 2.5), (2.9, 3.5)], [0, 1, 2, 3, 4, 5])


def test_distributes_amounts_by_overlap() -> None:
    assert list(ROWS.coverage) == pytest.approx([0.5, 1.0, 0.6, 0.5, 0.0])
    cells = ROWS.over(np.array([10.0, 20.0, 60.0]))
    assert list(cells) == pytest.approx([5, 15, 20, 50, 0])


def test_ignores_amounts_outside_the_edges() -> None:
    cells = _resampler([(0, 4), (4, 8)], [2, 3, 5]).over(np.array([40.0, 80.0]))
    assert list(cells) == pytest.approx([10, 30])


def test_cell_without_an_interval_is_unknown() -> None:
    cells = ROWS.covered_values(np.array([10.0, 20.0, 60.0]))
    assert list(cells) == pytest.approx([5, 15, 20, 50, np.nan], nan_ok=True)


def test_levels_are_means_of_known_values_weighted_by_overlap() -> None:
    """The mean is weighted by the overlap, such as 0.5 x 3 and 0.1 x 7."""
    cells = ROWS.mean(np.array([1.0, 3.0, 7.0]))
    assert list(cells) == pytest.approx([1, 2, (1.5 + 0.7) / 0.6, 7, np.nan], nan_ok=True)
    part = ROWS.mean(np.array([1.0, np.nan, 7.0]))
    assert list(part) == pytest.approx([1, 1, 7, 7, np.nan], nan_ok=True)


def test_distributes_counts_and_leaves_unknown_cells() -> None:
    cells = ROWS.share(np.array([4.0, np.nan, 6.0]))
    assert list(cells) == pytest.approx([2, 2, 1, 5, np.nan], nan_ok=True)
    alone = ROWS.share(np.array([np.nan, 2.0, np.nan]))
    assert list(alone) == pytest.approx([np.nan, 1, 1, np.nan, np.nan], nan_ok=True)


def test_ignores_overlap_caused_by_rounding() -> None:
    rows = _resampler([(0, 1 + 1e-7)], [0, 1, 2])
    for how in (rows.covered_values, rows.mean, rows.share):
        cells = how(np.array([8.0]))
        assert list(cells) == pytest.approx([8, np.nan], nan_ok=True, rel=1e-6)


def test_resamples_concatenated_tracks_separately() -> None:
    """If intervals are uneven, the mean length should only be used to start the search."""
    lengths: list[list[float]] = [[1, 1, 1], [0.1, 0.1, 0.1, 0.1, 9.6], [5]]
    bounds = [
        (sum(length[:place]), sum(length[: place + 1]))
        for length in lengths
        for place in range(len(length))
    ]
    start, end = np.array(bounds).T
    edges = np.array([0.0, 0.25, 1.0, 5.0, 11.0])
    cells = OverlapResampler(start, end, edges, [3, 5, 1])
    assert cells.coverage == pytest.approx(
        np.array([[0.25, 0.75, 2, 0], [0.25, 0.75, 4, 5], [0.25, 0.75, 4, 0]])
    )
    result = cells.over(np.array([4.0, 8, 12, 1, 1, 1, 1, 96, 50]))
    assert result == pytest.approx(
        np.array([[1, 3, 20, 0], [2.5, 1.5 + 6, 40, 50], [2.5, 7.5, 40, 0]])
    )


@pytest.mark.parametrize("seed", range(8))
def test_resampling_equals_direct_sums_for_all_lengths(seed: int) -> None:
    """The result should be equal to a sum over all combinations of interval and cell."""
    random = np.random.default_rng(seed)
    counts = [int(n) for n in random.integers(1, 30, 6)]
    starts, ends = [], []
    for count in counts:
        bounds = np.cumsum(random.exponential(1.0, 2 * count) ** 3 + 1e-3)
        starts.append(bounds[0::2])
        ends.append(bounds[1::2])
    edges = np.linspace(0, 40, 23)
    amounts = [random.uniform(1, 9, count) for count in counts]
    cells = OverlapResampler(np.concatenate(starts), np.concatenate(ends), edges, counts)
    result = cells.over(np.concatenate(amounts))
    for row, (start, end, amount) in enumerate(zip(starts, ends, amounts, strict=True)):
        overlap = np.minimum(end[:, None], edges[1:]) - np.maximum(start[:, None], edges[:-1])
        part = np.maximum(0, overlap) / (end - start)[:, None]
        assert result[row] == pytest.approx((part * amount[:, None]).sum(axis=0), abs=1e-9)
