"""Tests for fleet metrics, using worked examples."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from broadside.coordinator.core.measure.aggregate import (
    _clock_ratio,
    _cov,
    _filled,
    _over,
    _sent,
    _share_movement,
    _worst,
    tcp_efficiency,
    transfer_time_ratio,
)
from broadside.coordinator.core.measure.formulas.quantiles import column_quantiles, jain, quantiles
from broadside.coordinator.core.measure.records.ends_offset import EndsOffset
from broadside.coordinator.core.run_spec import Burst
from broadside.exchange.messages import Flow
from tests.planted import measure
from tests.synthetic import Plant, fleet

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAN = float("nan")


def _aligned(proven: list[float], start_s: int = 0) -> Any:
    """Return a flow with the given bytes, using a start relative to the burst."""
    flow = SimpleNamespace(proven_bytes=np.array(proven))
    grid = SimpleNamespace(start_s=int(AT.timestamp()) + start_s)
    return cast(Any, SimpleNamespace(flows=[flow], grid=grid))


def _burst(duration_s: int = 10, omit_s: int = 0) -> Burst:
    return Burst(index=0, planned_start_at=AT, duration_s=duration_s, omit_s=omit_s)


def test_worst_window_is_the_smallest_possible_common_window() -> None:
    """For 10 seconds, the window must start by 6 and will not end before 8.

    If 6 and 7 are empty, this is the window. If 4 and 5 are empty, they are half of it.
    """
    assert _worst(_burst(), _aligned([10.0] * 6 + [0, 0, 10, 10]), 0.0) == 0.0
    assert _worst(_burst(), _aligned([10.0] * 4 + [0, 0, 10, 10, 10, 10]), 0.0) == 8 * 5.0
    assert _worst(_burst(), _aligned([10.0] * 8 + [0, 0]), 0.0) == 8 * 5.0
    assert _worst(_burst(), _aligned([0.0] * 10), 0.0) == 0.0
    assert _worst(_burst(), _aligned([10.0] * 10), 0.0) == 80.0


def test_late_starts_allow_more_windows() -> None:
    """If pairs can start 2 late, the window must start by 8 and will not end before 9."""
    assert _worst(_burst(), _aligned([10.0] * 8 + [0, 10]), 2.0) == 0.0
    assert _worst(_burst(), _aligned([10.0] * 8 + [0, 10]), 0.0) == pytest.approx(80 * 2 / 3)


def test_counts_only_planned_seconds_after_the_warm_up() -> None:
    # These are not used: one is before the start and two are for the warm-up.
    rows = [0.0] * 3 + [10.0] * 10 + [0.0] * 5
    assert _worst(_burst(omit_s=2), _aligned(rows, -1), 0.0) == 80.0
    assert _worst(_burst(1), _aligned([10.0] * 9), 0.0) is None


def _flow(coverage: list[list[float]], cells: list[list[float]]) -> Any:
    return cast(
        Any,
        SimpleNamespace(
            coverage=np.array(coverage, np.float32),
            received_bytes=np.array(cells),
            sent_bytes=np.array(cells),
        ),
    )


def test_fills_gaps_with_the_mean_of_the_pair() -> None:
    """If a pair ran, add 20 to the missing value and 10 to the partial one."""
    flow = _flow([[1, 0, 0.5, 1], [1, 1, 1, 1], [0, 0, 0, 0]], [[20, 0, 10, 20], [5] * 4, [0] * 4])
    ran = [SimpleNamespace(ran=True)] * 3
    filled = _filled(flow, cast(Any, ran), slice(0, 4))
    assert filled.tolist() == [[20, 20, 20, 20], [5] * 4, [0] * 4]
    # No value is added before the start or after the end.
    cut = [SimpleNamespace(ran=False)] * 3
    part = _flow([[0, 1, 0, 1, 0]], [[0, 30, 0, 30, 0]])
    assert _filled(part, cast(Any, cut), slice(0, 5)).tolist() == [[0, 30, 30, 30, 0]]
    complete = _flow([[1, 1]], [[5, 6]])
    assert _filled(complete, cast(Any, ran), slice(0, 2)) is complete.received_bytes


def test_unknown_sent_seconds_count_with_the_mean_of_the_pair() -> None:
    """The mean is 100 up to the gap. It is used for all five values."""
    flow = _flow([[1] * 5], [[100.0, 100.0, 90.0, NAN, NAN]])
    assert _sent(flow, slice(0, 5), np.array([True])) == 500.0
    assert _sent(flow, slice(0, 5), np.array([False])) == 290.0
    assert _sent(_flow([[1]], [[NAN]]), slice(0, 1), np.array([True])) is None


def test_fairness_efficiency_and_transfer_time() -> None:
    assert jain(np.array([2.0, 2.0, 2.0])) == 1.0
    assert jain(np.array([6.0, 0.0, 0.0])) == pytest.approx(1 / 3)
    assert np.isnan(jain(np.zeros(3)))
    assert tcp_efficiency(90.0, 10.0) == 0.9
    assert tcp_efficiency(0.0, 10.0) is None
    assert tcp_efficiency(90.0, None) is None
    assert transfer_time_ratio(1e9, 1.25, [1e9, 1.5e9]) == 2.0
    assert transfer_time_ratio(1e9, 1.25, [1e9, None]) is None
    assert transfer_time_ratio(0.0, 1.25, [1e9]) is None
    assert transfer_time_ratio(1e9, 1.25, []) is None


def test_opposite_movements_of_pairs_cancel() -> None:
    trade = np.array([[1.0, 3.0, 1.0, 3.0], [3.0, 1.0, 3.0, 1.0]])
    assert _share_movement(trade) == 0.0
    assert _share_movement(np.array([trade[0], trade[0]])) == pytest.approx(2.0)
    assert np.isnan(_share_movement(trade[:1]))
    assert np.isnan(_share_movement(trade[:, :3]))
    assert np.isnan(_share_movement(np.ones((2, 4))))


def test_quantiles_shares_and_scatter() -> None:
    assert quantiles(np.array([4.0, 1.0, 3.0, 2.0, 5.0]), (0.0, 0.5, 0.875, 1.0)) == [1, 3, 4.5, 5]
    assert quantiles(np.empty(0), (0.5, 0.9)) == [None, None]
    assert _over(1.0, 4.0) == 0.25
    assert _over(None, 4.0) is None
    assert _over(1.0, 0.0) is None
    assert _cov(np.array([1.0, 3.0])) == pytest.approx(2**0.5 / 2)
    assert np.isnan(_cov(np.array([1.0])))
    assert np.isnan(_cov(np.array([-1.0, 1.0])))
    assert _clock_ratio(0.5, 10) == 0.1
    assert _clock_ratio(9.0, 10) == 1.0


def test_column_quantiles_use_the_nearest_rank() -> None:
    cells = np.array([[1.0, NAN], [3.0, NAN], [2.0, NAN], [NAN, 7.0]], np.float32)
    low, middle, high = column_quantiles(cells, (0.05, 0.5, 0.95))
    assert (low.tolist(), middle.tolist(), high.tolist()) == ([1, 7], [2, 7], [3, 7])
    (none,) = column_quantiles(np.empty((0, 2), np.float32), (0.5,))
    assert np.isnan(none).all()
    assert none.shape == (2,)


def test_series_has_the_flow_of_its_seconds() -> None:
    made = fleet(Plant(pairs=2, bursts=1, burst_s=10, device_counter=False))
    (measured,) = measure(made)
    assert [flow.flow for flow in measured.series.flows] == [Flow.UP]


def test_pair_has_the_clock_offset_with_its_bound() -> None:
    made = fleet(Plant(pairs=2, bursts=1, burst_s=10, device_counter=False))
    gap = EndsOffset(low_s=1.5, high_s=2.5, offset_s=2.0)
    (measured,) = measure(made.told(lambda pair: replace(pair, ends_offset=gap), [0]))
    first, second = measured.summary.pairs
    assert (first.ends_offset_s, first.ends_offset_bound_s) == (2.0, 0.5)
    assert (second.ends_offset_s, second.ends_offset_bound_s) == (None, None)
