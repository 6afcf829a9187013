from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.judge.reconciliation.device_prediction import (
    BurstCurve,
    Conditions,
    DevicePrediction,
    _beside_curve,
    _span,
    _unrecorded,
    _unrecorded_curve,
    _usual_rate,
)
from broadside.coordinator.core.judge.reconciliation.idle_level import IdleLevel
from broadside.coordinator.core.judge.reconciliation.lag import Lag
from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import Neighbour
from broadside.coordinator.core.measure.formulas.headers import Headers
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from tests.unit.coordinator.core.records import burst_series

HEADERS = Headers(ip_ratio=1.0, wire_ratio=1.0, assumed=False, how="")
NO_LAG = Lag(lag_s=0.0, uncertainty_s=0.0, known=True)


def _burst(
    start_s: int, amounts: list[float], *, seen: float = 1.0, sent: list[float] | None = None
) -> BurstSeries:
    received = np.array(amounts, dtype=np.float64)
    count = len(amounts)
    made = burst_series(
        start_s,
        float(start_s),
        received,
        np.ones((1, count)),
        coverage_ratio=np.full(count, seen),
    )
    flow = replace(made.flows[0], sent_bytes=received if sent is None else np.array(sent))
    return replace(made, flows=(flow,), window=(1, count))


def _predicted(
    counted: list[float],
    *bursts: BurstSeries,
    at_s: float = 0.0,
    neighbours: tuple[Neighbour, ...] = (),
    absent: tuple[tuple[float, float], ...] = (),
    hint_s: float | None = None,
    clock_bound_s: float = 0.0,
    largest_ratio: float = 1.0,
) -> DevicePrediction:
    """Predict a counter that has one-second bins."""
    start = at_s + np.arange(len(counted), dtype=np.float64)
    device_counter = CounterRecord(
        source="counter",
        layer="ip",
        start_s=start,
        end_s=start + 1,
        bytes=np.array(counted, dtype=np.float64),
        grain_s=1.0,
        read_at=datetime(2026, 3, 1, tzinfo=UTC),
        lag_hint_s=hint_s,
    )
    conditions = Conditions(clock_bound_s=clock_bound_s, neighbours=neighbours, absent=absent)
    return DevicePrediction(bursts, device_counter, HEADERS, conditions, largest_ratio)


def _neighbour(start_s: int, *amounts: float) -> Neighbour:
    return Neighbour(
        run_id="other", burst_index=0, start_s=start_s, received_bytes=np.array(amounts)
    )


def test_burst_curve_spans_first_to_last_byte() -> None:
    curve = BurstCurve.of(_burst(100, [0.0, 5.0, 0.0, 7.0, 0.0]))
    assert (curve.first_s, curve.last_s, curve.sent_bytes) == (101.0, 104.0, 12.0)
    assert list(curve.curve.at_s) == [100, 101, 102, 103, 104, 105]
    assert list(curve.curve.total_bytes) == [0, 0, 5, 5, 12, 12]
    silent = BurstCurve.of(_burst(100, [0.0, 0.0]))
    assert (silent.first_s, silent.last_s, silent.sent_bytes) == (100.0, 102.0, 0.0)


def test_bytes_of_other_runs_are_at_counter_layer() -> None:
    assert _beside_curve((), 1.5) is None
    curve = _beside_curve((_neighbour(10, 4.0, 6.0),), 1.5)
    assert curve is not None
    assert float(curve.total_bytes[-1]) == 15.0


def test_usual_rate_is_corrected_for_coverage() -> None:
    """The burst medians are 20 / 0.5, 30 and 60."""
    bursts = [
        _burst(0, [0.0, 20.0, 20.0], seen=0.5),
        _burst(10, [30.0, 30.0, 99.0]),
        _burst(20, [60.0], seen=1.2),
    ]
    assert _usual_rate(bursts) == 40.0
    assert _usual_rate([_burst(0, [0.0]), _burst(5, [9.0], seen=0.0)]) == 0.0


def test_unseen_pairs_may_have_sent_missing_share() -> None:
    """At 100 bytes/s, 25 bytes/s are missing. If a second has no record, all 100 are missing."""
    result = _unrecorded(_burst(100, [1.0, 1.0], seen=0.75), 100.0)
    assert result is not None
    assert (list(result[0]), list(result[1])) == ([100, 101], [25, 25])
    assert _unrecorded(_burst(100, [1.0, 1.0], seen=0.995), 100.0) is None
    part = replace(_burst(100, [1.0, 1.0]), start_s=101, duration_s=3)
    result = _unrecorded(part, 100.0)
    assert result is not None
    assert (list(result[0]), list(result[1])) == ([100, 101, 102], [100, 0, 0])
    unknown = replace(_burst(100, [1.0, 1.0]), coverage_ratio=np.array([np.nan, 1.2]))
    result = _unrecorded(unknown, 100.0)
    assert result is not None
    assert list(result[1]) == [100, 0]


def test_absent_bursts_may_have_sent_in_every_second() -> None:
    seconds = np.array([10.0, 11.0])
    curve = _unrecorded_curve([None, (seconds, np.array([3.0, 4.0]))], [(20.5, 22.5)], 50.0)
    assert curve is not None
    starts = np.array([10.0, 11.0, 15.0, 20.0, 21.0, 22.0])
    assert list(curve.between(starts, starts + 1)) == [3, 4, 0, 50, 50, 50]
    assert _unrecorded_curve([None], [], 50.0) is None
    assert _unrecorded_curve([None], [(20.0, 22.0)], 0.0) is None


def test_burst_span_covers_plan_record_and_margin() -> None:
    burst = _burst(100, [0.0, 5.0, 0.0])
    curve = BurstCurve.of(burst)
    assert _span(burst, curve, None) == (100.0, 103.0)
    some = np.zeros(1), np.zeros(1)
    assert _span(burst, curve, some) == (95.0, 108.0)
    longer = replace(curve, first_s=98.0, last_s=110.0)
    assert _span(burst, longer, None) == (98.0, 110.0)


EVEN = [100.0] * 10


def test_single_burst_gets_all_bytes_of_its_bins() -> None:
    """The counter has 115 bytes/s during the burst, and 5 bytes/s before and after it."""
    counted = [5.0] * 10 + [115.0] * 10 + [5.0] * 10
    made = _predicted(counted, _burst(10, EVEN, sent=[103.0] * 10))
    share = made.share(0, NO_LAG)
    assert (share.total_bytes, share.fleet_bytes) == (1000.0, 1000.0)
    assert (share.bins_count, share.beside_bytes, share.unseen_bytes) == (10, 0.0, 0.0)
    # The margin is two bins on each side.
    assert (share.counter_bytes, share.width_s) == (1150 + 4 * 5, 14.0)
    assert share.tail_bytes == 30.0
    assert share.fleet_bytes_per_s == 100.0
    assert list(share.parts.fleet) == [0, 0, *EVEN, 0, 0]
    assert list(share.parts.width) == [1.0] * 14
    assert share.parts.placed.shape == (14, 33)
    assert list(share.parts.earlier) == list(share.parts.fleet) == list(share.parts.later)
    # The window starts after the first second.
    assert list(share.full.fleet) == [100.0] * 9
    assert list(share.full.device_counter) == [115.0] * 9
    for moved in share.moved:
        assert (moved.counter_bytes, moved.fleet_bytes, moved.width_s) == (1170.0, 1000.0, 14.0)


def test_lag_shifts_bins_and_uncertainty_widens_margin() -> None:
    counted = [0.0] * 13 + [100.0] * 10 + [0.0] * 20
    made = _predicted(counted, _burst(10, EVEN), clock_bound_s=0.5)
    share = made.share(0, Lag(lag_s=3.0, uncertainty_s=1.0, known=True))
    assert (share.counter_bytes, share.fleet_bytes, share.bins_count) == (1000.0, 1000.0, 10)
    # The margin is 3 seconds on each side.
    assert len(share.parts.fleet) == 16
    # Bins within the lag uncertainty are not used.
    assert len(share.full.fleet) == 7
    by_s = 0.5 + 1 / 32
    first = np.flatnonzero(share.parts.fleet)[0]
    # If the fleet is earlier, bytes are in an earlier bin.
    assert share.parts.earlier[first - 1] == pytest.approx(100 * by_s)
    assert share.parts.earlier[first + 9] == pytest.approx(100 * (1 - by_s))
    assert share.parts.later[first] == pytest.approx(100 * (1 - by_s))
    assert share.parts.later[first + 10] == pytest.approx(100 * by_s)
    # The last column is for a lag of one second.
    assert share.parts.placed[first - 1, -1] == pytest.approx(100.0)
    assert share.parts.placed[first - 1, 0] == 0.0


def test_splits_shared_bins_between_bursts() -> None:
    """The counted bytes are split in the ratio 1 to 2."""
    counted = [0.0] * 10 + [360.0] * 10 + [0.0] * 10
    made = _predicted(counted, _burst(10, EVEN), _burst(10, [200.0] * 10))
    one, two = made.share(0, NO_LAG), made.share(1, NO_LAG)
    assert (one.fleet_bytes, two.fleet_bytes) == (1000.0, 2000.0)
    assert one.counter_bytes == pytest.approx(1200.0)
    assert two.counter_bytes == pytest.approx(2400.0)
    assert one.width_s == pytest.approx(10 / 3 + 4)


def test_subtracts_bytes_of_other_runs_first() -> None:
    counted = [0.0] * 10 + [130.0] * 10 + [0.0] * 10
    made = _predicted(counted, _burst(10, EVEN), neighbours=(_neighbour(10, *[30.0] * 10),))
    share = made.share(0, NO_LAG)
    assert share.beside_bytes == 300.0
    assert share.counter_bytes == 1000.0
    assert made.busy_bytes(NO_LAG) == 1000.0


def test_excludes_bins_with_unseen_pairs_of_another_burst() -> None:
    """The second burst is only 50 % seen.

    Where the bursts overlap, the unseen bytes may be in the bins of the first burst.
    """
    counted = [0.0] * 10 + [200.0] * 15 + [0.0] * 10
    other = _burst(15, [50.0] * 10, seen=0.5)
    share = _predicted(counted, _burst(10, EVEN), other).share(0, NO_LAG)
    assert (share.fleet_bytes, share.bins_count) == (500.0, 5)
    # Unseen pairs in the same burst do not matter, because they are compared as well.
    local = _predicted(counted, other).share(0, NO_LAG)
    assert local.fleet_bytes == 500.0


IDLE = IdleLevel(
    bytes_per_s=5.0,
    below=0.0,
    above=0.0,
    mean_below=0.0,
    mean_above=0.0,
    bin_sigma=1.0,
    how="quiet",
)


def _beside(counted: list[float]) -> float:
    made = _predicted(counted, _burst(10, EVEN))
    return made.beside_burst(0, made.share(0, NO_LAG), NO_LAG, IDLE, 0.0)


def test_adjacent_traffic_is_taken_from_the_higher_side() -> None:
    """The counter has 40 and 20 bytes/s after the burst, and 9 before it. The idle level is 5."""
    before, behind = [5.0] * 6 + [9.0] * 4, [5.0] * 10
    assert _beside([*before, *EVEN, 5.0, 5.0, 40.0, 20.0, *behind]) == 35.0
    assert _beside([*before, *EVEN, 5.0, 5.0, 5.0, 5.0, *behind]) == 4.0
    # The difference 3 is within 3.09 standard deviations.
    assert _beside([5.0] * 6 + [8.0] * 4 + [*EVEN, 5.0, 5.0, 8.0, 8.0, *behind]) == 0.0


def test_adjacent_traffic_ending_in_first_quiet_bin_was_faster() -> None:
    """The first quiet bin is 10 bytes above the level. The burst edge may have the same."""
    counted = [5.0] * 10 + [item + 25.0 for item in EVEN] + [25.0, 25.0, 15.0, 5.0] + [5.0] * 10
    assert _beside(counted) == pytest.approx(20.0)
    counted[20:22] = [5.0, 5.0]
    assert _beside(counted) == pytest.approx(10.0)


def test_idle_level_comes_from_quiet_bins() -> None:
    counted = [5.0] * 20 + [105.0] * 10 + [5.0] * 20
    made = _predicted(counted, _burst(20, EVEN))
    idle = made.idle(NO_LAG, 10)
    assert idle is not None
    assert (idle.bytes_per_s, idle.how) == (5.0, "quiet")
    beside = _predicted(
        [item + 3 for item in counted], _burst(20, EVEN), neighbours=(_neighbour(0, *[3.0] * 50),)
    )
    assert beside.idle(NO_LAG, 10) is not None


def test_fits_idle_level_without_quiet_bins() -> None:
    """Bins in the second burst should not be used, because they may include unseen pairs."""
    rates = [100.0, 60.0, 140.0, 80.0, 120.0] * 4
    one, other = _burst(0, rates), _burst(20, rates, seen=0.5)
    counted = [rate + 30 for rate in rates] + [2 * rate + 30 for rate in rates]
    made = _predicted(counted, one, other)
    idle = made.idle(NO_LAG, 20)
    assert idle is not None
    assert idle.how == "fitted"
    assert idle.bytes_per_s == pytest.approx(30.0, rel=0.02)


def test_lag_of_bypassing_run_has_highest_crossing_bytes() -> None:
    """With a 7 s lag the bins are 40 bytes above the level."""
    counted = [10.0] * 100
    for at in range(10):
        counted[27 + at] += 40
    made = _predicted(counted, _burst(20, EVEN))
    result = made.crossing_lag()
    assert (result.lag_s, result.uncertainty_s, result.known) == (7.0, 1.0, False)
    hinted = _predicted(counted, _burst(20, EVEN), hint_s=6.5).crossing_lag()
    assert hinted.lag_s == 6.5
    near = _predicted(counted, _burst(20, EVEN), hint_s=5.0).crossing_lag()
    # The lag must be within one bin of the hint.
    assert near.lag_s == 6.0
    later = _predicted(counted, _burst(20, EVEN), hint_s=9.0).crossing_lag()
    assert later.lag_s == 8.0


def test_lag_of_invisible_run_comes_from_other_runs() -> None:
    """The other run is counted 5 seconds late."""
    counted = [0.0] * 100
    for at in range(10):
        counted[55 + at] = 1000.0
    neighbours = (_neighbour(50, *[1000.0] * 10),)
    result = _predicted(counted, _burst(20, EVEN), neighbours=neighbours).crossing_lag()
    assert result.lag_s == 5.0


def test_counter_without_bins_has_no_idle_level() -> None:
    made: Any = _predicted([np.nan, np.nan], _burst(20, EVEN))
    unknown = Lag(lag_s=0.0, uncertainty_s=360.0, known=False)
    assert made.idle(unknown, 10) is None
    assert made.busy_bytes(unknown) == 0.0


def _with_block(rate: float, *, fleet: list[float]) -> float:
    """Return the unplanned bytes if a counter has a 5 s block in addition to the fleet."""
    idle = 5.0 if any(fleet) else 0.0
    counted = np.full(60, idle)
    counted[10:20] += fleet
    counted[35:40] = rate
    level = _predicted(list(counted), _burst(10, fleet)).idle(NO_LAG, 10)
    assert level is not None
    return level.unplanned_bytes


def test_traffic_of_half_a_burst_rate_is_an_unplanned_burst() -> None:
    assert _with_block(80.0, fleet=EVEN) == pytest.approx(5 * (80 - 5))
    assert _with_block(40.0, fleet=EVEN) == 0.0


def test_no_unplanned_burst_if_fleet_sent_nothing() -> None:
    assert _with_block(80.0, fleet=[0.0] * 10) == 0.0
