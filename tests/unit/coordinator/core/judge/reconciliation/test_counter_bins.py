from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.judge.reconciliation.counter_bins import (
    Bins,
    countable,
    fleet_curve,
    readable,
    seconds_curve,
)
from broadside.coordinator.core.measure.records.evidence import CounterRecord


@dataclass(frozen=True)
class Seconds:
    start_s: int
    received_bytes: NDArray[np.float64]


def _device_counter(*rows: tuple[float, float, float]) -> CounterRecord:
    start, end, counted = np.array(rows).T
    return CounterRecord(
        source="counter",
        start_s=start,
        end_s=end,
        bytes=counted,
        grain_s=1.0,
        read_at=datetime(2026, 3, 1, tzinfo=UTC),
    )


def test_curve_is_linear_within_seconds_and_flat_outside() -> None:
    """There is no value for second 6."""
    curve = seconds_curve(np.array([7.0, 5.0]), np.array([30.0, 10.0]))
    starts, ends = np.array([0.0, 5.5, 5.5, 6.2, 7.5]), np.array([5.5, 6.0, 7.5, 6.9, 99.0])
    assert list(curve.between(starts, ends)) == pytest.approx([5, 5, 20, 0, 15])


def test_overlapping_bursts_are_summed_in_any_order() -> None:
    one = Seconds(10, np.array([1.0, 2.0, np.nan]))
    other = Seconds(11, np.array([10.0, 20.0, -5.0]))
    for bursts in ([one, other], [other, one]):
        curve = fleet_curve(bursts)
        seconds = np.arange(9.0, 15.0)
        assert list(curve.between(seconds, seconds + 1)) == pytest.approx([0, 1, 12, 20, 0, 0])


def test_invalid_amounts_count_as_zero() -> None:
    amounts = np.array([1.0, np.nan, -3.0, np.inf, -np.inf, 0.5])
    assert list(countable(amounts)) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.5]


def test_sorts_readable_bins() -> None:
    result = readable(_device_counter((2, 3, 30), (0, 1, 10), (1, 2, 20)))
    assert list(result.start_s) == [0, 1, 2]
    assert list(result.end_s) == [1, 2, 3]
    assert list(result.bytes) == [10, 20, 30]
    assert list(result.width_s) == [1, 1, 1]
    assert (len(result), result.rejected_count) == (3, 0)


@pytest.mark.parametrize(
    ("row", "expected_count", "rejected"),
    [
        pytest.param((1, 2, np.nan), 2, 0, id="unknown, ignored"),
        pytest.param((1, 2, -1), 2, 1, id="negative"),
        pytest.param((1, 2, np.inf), 2, 1, id="infinite"),
        pytest.param((2, 1, 5), 2, 1, id="reversed"),
        pytest.param((1, 1, 5), 2, 1, id="empty"),
        pytest.param((np.nan, 2, 5), 2, 1, id="no position"),
        pytest.param((0.5, 2, 5), 2, 1, id="overlapping"),
        pytest.param((1 - 1e-7, 2, 5), 3, 0, id="overlapping by rounding error"),
        pytest.param((1, 2, 0), 3, 0, id="zero"),
        pytest.param((1, 2, 1.25e14), 3, 0, id="1 Pbit/s"),
        pytest.param((1, 2, 1.26e14), 2, 1, id="above the maximum rate"),
    ],
)
def test_rejects_and_counts_impossible_bins(
    row: tuple[float, float, float], expected_count: int, rejected: int
) -> None:
    result = readable(_device_counter((0, 1, 10), row, (2, 3, 30)))
    assert (len(result), result.rejected_count) == (expected_count, rejected)


def test_bin_without_position_does_not_reject_others() -> None:
    result = readable(_device_counter((0, np.nan, 10), (1, 2, 20), (2, 3, np.nan)))
    assert (list(result.bytes), result.rejected_count) == ([20], 1)


def test_selects_bins_by_mask() -> None:
    bins = Bins(start_s=np.arange(3.0), end_s=np.arange(3.0) + 2, bytes=np.arange(3.0) * 10)
    some = bins.pick(np.array([True, False, True]))
    assert (list(some.start_s), list(some.end_s), list(some.bytes)) == ([0, 2], [2, 4], [0, 20])
