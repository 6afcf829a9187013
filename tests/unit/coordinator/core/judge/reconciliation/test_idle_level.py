import math

import numpy as np
import pytest

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.reconciliation.counter_bins import Bins
from broadside.coordinator.core.judge.reconciliation.idle_level import (
    HOLDS_RATIO,
    from_fit,
    from_quiet,
    quiet_bins,
    unread_bins,
)
from broadside.coordinator.core.measure.formulas.steady import t95


def _bins(*counted: float, width: float = 1.0) -> Bins:
    at = np.asarray(width * np.arange(len(counted)), dtype=np.float64)
    return Bins(start_s=at, end_s=at + width, bytes=np.array(counted, dtype=np.float64))


def _is(*places: bool | int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    return np.array(places, dtype=bool)


def test_bins_outside_all_spans_are_quiet() -> None:
    """The spans are 2 to 5 (in two parts, not sorted) and 7 to 8."""
    start = np.arange(10.0)
    quiet = quiet_bins(start, start + 1, [(7, 8), (3, 5), (2, 3), (2.5, 2.7)])
    assert list(np.flatnonzero(quiet)) == [0, 1, 5, 6, 8, 9]
    later = quiet_bins(start + 0.5, start + 1.5, [(2, 5)])
    assert list(np.flatnonzero(later)) == [0, 5, 6, 7, 8, 9]
    assert quiet_bins(start, start + 1, []).all()


def test_trailing_zeros_are_unread_if_idle_level_was_not_zero() -> None:
    quiet = _is(1, 1, 0, 0, 1, 1)
    assert list(unread_bins(np.array([5.0, 6, 90, 80, 0, 0]), quiet)) == [0, 0, 0, 0, 1, 1]
    assert not unread_bins(np.array([5.0, 0, 90, 80, 0, 0]), quiet).any()
    assert not unread_bins(np.array([5.0, 6, 90, 80, 0, 7]), quiet).any()
    # There are no values before the zeros.
    assert not unread_bins(np.zeros(6), quiet).any()
    only_busy = unread_bins(np.array([5.0, 6, 90, 80, 0, 0]), _is(0, 0, 0, 0, 1, 1))
    assert not only_busy.any()


def test_quiet_bins_have_mean_and_prediction_interval() -> None:
    """The rates are 1, 3, 5 and 7: mean 4, standard deviation 2.582, t (3 degrees) 3.182."""
    bins = _bins(2, 6, 99, 10, 14, width=2.0)
    result = from_quiet(bins, _is(1, 1, 0, 1, 1), bins_a_burst=1, bursts_count=2)
    spread = math.sqrt(20 / 3) * t95(3)
    assert result.bytes_per_s == 4.0
    assert result.below == result.above == pytest.approx(spread * math.sqrt(1 + 1 / 4))
    assert (
        result.mean_below == result.mean_above == pytest.approx(spread * math.sqrt(1 / 2 + 1 / 4))
    )
    assert result.bin_sigma == pytest.approx(1.4826 * 2)
    assert result.how == "quiet"


def test_idle_scatter_uses_blocks_of_burst_length() -> None:
    """The block means are 1.5, 3.5, 5.5 and 7.5. The last bin is not used."""
    bins = _bins(*range(1, 10))
    quiet = np.ones(9, bool)
    result = from_quiet(bins, quiet, bins_a_burst=2, bursts_count=9)
    spread = math.sqrt(20 / 3) * t95(3)
    assert result.bytes_per_s == 5.0
    assert result.below == pytest.approx(spread * math.sqrt(1 + 1 / 4))
    # At most four blocks are used.
    assert result.mean_below == pytest.approx(spread * math.sqrt(1 / 4 + 1 / 4))
    longer = from_quiet(bins, quiet, bins_a_burst=100, bursts_count=9)
    # At least four blocks are used.
    assert longer.below == result.below


def test_three_quiet_bins_are_three_blocks() -> None:
    result = from_quiet(_bins(1, 2, 3), _is(1, 1, 1), bins_a_burst=30, bursts_count=1)
    assert result.below == pytest.approx(t95(2) * math.sqrt(4 / 3))


FLEET = np.array([0.0, 50, 100, 100, 100, 100, 100, 80, 20, 0.0])


def _fit(idle: float, fleet: Floats = FLEET, *, seen: tuple[float, ...] = ()):  # type: ignore[no-untyped-def]
    """Fit a counter that has 1.1 times the fleet bytes and an idle level."""
    counted = 1.1 * fleet + idle
    quiet = fleet <= 0
    counted[quiet] = [*seen, *counted[quiet][len(seen) :]]
    moved = np.gradient(fleet)
    return from_fit(_bins(*counted), quiet, fleet, moved, 0.5)


def test_fits_idle_level_together_with_fleet_bytes() -> None:
    result = _fit(30.0)
    assert result is not None
    assert result.how == "fitted"
    assert result.bytes_per_s == pytest.approx(30.0, rel=1e-4)
    assert 0 <= result.below < 0.1
    assert 0 <= result.above <= 30 * HOLDS_RATIO - result.bytes_per_s + 1e-9
    assert (result.mean_below, result.mean_above) == (result.below, result.above)


def test_idle_level_is_at_most_the_lowest_bin() -> None:
    """There is no quiet bin, so the lowest bin and 2 % noise are used for the upper bound."""
    fleet = np.full(10, 100.0)
    result = from_fit(_bins(*np.full(10, 140.0)), _is(*[0] * 10), fleet, np.zeros(10), 0.5)
    assert result is not None
    assert result.how == "bounded"
    assert (result.bytes_per_s, result.below) == (0.0, 0.0)
    assert result.above == pytest.approx(140 * HOLDS_RATIO)


def test_idle_interval_contains_quiet_bins() -> None:
    higher = _fit(30.0, seen=(45.0,))
    assert higher is not None
    assert higher.bytes_per_s + higher.above == pytest.approx(45.0)
    lower = _fit(30.0, seen=(12.0,))
    assert lower is not None
    assert lower.bytes_per_s - lower.below <= 12.0


def test_few_bins_only_bound_the_idle_level() -> None:
    few = from_fit(_bins(60, 40, 70), _is(0, 0, 0), np.array([50.0, 20, 60]), np.zeros(3), 0.5)
    assert few is not None
    assert (few.how, few.bytes_per_s, few.above) == ("bounded", 0.0, 40 * HOLDS_RATIO)
    nothing = from_fit(_bins(*[0] * 6), _is(*[0] * 6), np.full(6, 10.0), np.zeros(6), 0.5)
    assert nothing is not None
    assert (nothing.how, nothing.above) == ("bounded", 0.0)
    empty = np.empty(0)
    assert from_fit(_bins(), _is(), empty, empty, 0.5) is None
