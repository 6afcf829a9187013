"""Tests for failover drills, which use probes to measure the outage without TCP recovery."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.measure.experiments.drill import (
    DrillRecords,
    DrillResult,
    ExecutedEvent,
    analyze_drill,
    find_outage,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import ProbeColumn
from broadside.coordinator.core.summary import Disruption, DisruptionKind
from tests.unit.coordinator.core.records import burst_series, disruption

AT = datetime(2026, 11, 23, 12, tzinfo=UTC)
START_S = AT.timestamp()
EVERY_S = 0.02
EVENT_S = START_S + 30.0


def probes(
    from_s: float, outage_s: float, *, delayed: bool = False, seed: int = 0, pause_s: float = 0.0
) -> ProbeColumn:
    """Return probes for a path that will drop or delay all packets from ``from_s`` on."""
    random = np.random.default_rng(seed)
    at_s = START_S - 2 + EVERY_S * np.arange(round(64 / EVERY_S))
    rtt_s = random.gamma(4, 0.0005, len(at_s))
    out = (at_s >= from_s) & (at_s < from_s + outage_s)
    rtt_s[out] = from_s + outage_s + 0.001 - at_s[out] if delayed else np.nan
    # No probes are sent while the agent is paused.
    rtt_s[(at_s >= EVENT_S + 15) & (at_s < EVENT_S + 15 + pause_s)] = -1.0
    return ProbeColumn(first_at_s=START_S - 2, every_s=EVERY_S, rtt_s=rtt_s)


def series(
    rates: NDArray[np.float64], *, pairs: int = 2, retransmits: NDArray[np.float64] | None = None
) -> BurstSeries:
    """Return a burst that shares the given rate (bit/s) equally between pairs."""
    item = np.tile(rates / pairs, (pairs, 1))
    return burst_series(int(START_S), START_S, rates / 8, item, retransmits_count=retransmits)


def event(at_s: float = EVENT_S) -> ExecutedEvent:
    at = datetime.fromtimestamp(at_s, UTC)
    return ExecutedEvent(planned_at=at, started_at=at, ended_at=at, exit_code=0)


@pytest.mark.parametrize("delayed", [False, True])
def test_measures_duration_and_time_of_an_outage(delayed: bool) -> None:
    for seed in range(10):
        planted_s = EVENT_S + 0.3 + 0.013 * seed
        outage = find_outage(
            "pair-001", probes(planted_s, 1.5, delayed=delayed, seed=seed), EVENT_S
        )
        assert outage is not None
        assert outage.outage_s == pytest.approx(1.5, abs=0.03)
        assert outage.from_at.timestamp() == pytest.approx(planted_s, abs=0.03)
        assert outage.resolution_s <= 0.03


@pytest.mark.parametrize(("delayed", "lost_count"), [(False, 75), (True, 0)])
def test_counts_lost_probes_and_not_delayed_ones(delayed: bool, lost_count: int) -> None:
    column = probes(EVENT_S + 0.31, 1.5, delayed=delayed)
    # These are not part of the outage.
    column.rtt_s[[50, 3000]] = np.nan
    outage = find_outage("pair-001", column, EVENT_S)
    assert outage is not None
    assert outage.lost_count == lost_count


def test_steady_path_and_paused_agent_have_no_outage() -> None:
    assert find_outage("pair-001", probes(EVENT_S, 0.0), EVENT_S) is None
    assert find_outage("pair-001", probes(EVENT_S, 0.0, pause_s=2.0), EVENT_S) is None


def test_outage_without_recovery_lasts_until_the_last_probe() -> None:
    outage = find_outage("pair-001", probes(EVENT_S, 1000.0), EVENT_S)
    assert outage is not None
    assert (outage.over, round(outage.outage_s)) == (False, 32)


def drilled(rates: NDArray[np.float64], *columns: ProbeColumn, **more: Any) -> DrillResult:
    pairs_count = more.pop("pairs_count", 2)
    complete = series(rates, pairs=pairs_count, retransmits=more.pop("retransmits", None))
    for index, from_s in more.pop("silent_from_s", {}).items():
        complete.flows[0].pairs_bits_per_second[index, from_s:] = 0.0
    burst = DrillRecords(
        series=complete,
        probes=dict(enumerate(columns)),
        pairs_count=pairs_count,
        streams_count=4,
        scale=100.0,
        **({"disruptions": ()} | more),
    )
    return analyze_drill(event(), burst)


def test_separates_tcp_recovery_from_the_device_outage() -> None:
    random = np.random.default_rng(1)
    rates = 1e9 * (1 + 0.005 * random.normal(size=60))
    rates[30:32] = 0.0
    rates[32:35] = 0.5e9
    retransmits = np.full(60, 2.0)
    retransmits[31:35] += [40, 90, 10, 3]
    result = drilled(rates, probes(EVENT_S, 1.5), probes(EVENT_S, 0.0), retransmits=retransmits)
    assert result.flows[0].retransmits_count == 143
    assert result.outage_s == pytest.approx(1.5, abs=0.03)
    assert result.outages_count == 1
    assert result.probed_count == 2
    [dip] = result.flows
    assert dip.level_bits_per_second == pytest.approx(100e9, rel=0.01)
    assert dip.short_bytes == pytest.approx(100 * (2 + 3 * 0.5) * 1e9 / 8, rel=0.02)
    assert dip.back_after_s == 5.0
    assert result.tcp_s == pytest.approx(3.5, abs=0.05)
    assert result.touched_count == 2
    assert (result.sessions_count, result.cut_count) == (8, 0)


def test_reports_a_burst_that_does_not_recover() -> None:
    result = drilled(np.repeat([1e9, 0.6e9], 30), probes(EVENT_S, 1.5))
    [dip] = result.flows
    assert dip.back_after_s is None
    assert dip.old_ratio == pytest.approx(0.6)
    assert result.tcp_s is None
    assert result.back_after_s is None


@pytest.mark.filterwarnings("error")
def test_level_of_old_sessions_is_unknown_without_final_values() -> None:
    rates = np.full(60, 2e9)
    rates[40:] = np.nan

    (dip,) = drilled(rates).flows

    assert dip.old_ratio is None


def test_event_without_effect_has_no_outage() -> None:
    result = drilled(np.full(60, 1e9), probes(EVENT_S, 0.0))
    assert (result.outage_s, result.outages_count, result.touched_count) == (0.0, 0, 0)
    assert result.flows[0].back_after_s == 0.0
    assert result.flows[0].short_bytes == 0.0


def test_without_probes_the_outage_is_unknown() -> None:
    assert drilled(np.full(60, 1e9)).outage_s is None


def reset(after_s: int, *pairs: int) -> Disruption:
    names = (f"pair-{index + 1:03d}" for index in pairs)
    start_at = AT + timedelta(seconds=after_s)
    return disruption(DisruptionKind.RESET, start_at, 60 - after_s, *names)


def test_counts_reset_sessions_and_their_reconnection() -> None:
    following = series(np.full(60, 0.9e9))
    result = drilled(np.full(60, 1e9), disruptions=(reset(31, 1),), following=following)
    assert (result.cut_count, result.cut_pairs, result.opened_again_count) == (4, ("pair-002",), 4)
    assert (result.cut_from_at, result.cut_to_at) == (AT + timedelta(seconds=31),) * 2
    assert result.flows[0].new_ratio == pytest.approx(0.9)


def test_ignores_sessions_cut_before_the_event() -> None:
    result = drilled(np.full(60, 1e9), disruptions=(reset(12, 0), reset(30, 1), reset(34, 1)))
    assert (result.cut_count, result.cut_pairs) == (8, ("pair-002",))
    begun, ended = (AT + timedelta(seconds=after_s) for after_s in (30, 34))
    assert (result.cut_from_at, result.cut_to_at) == (begun, ended)


@pytest.mark.parametrize("ended", [True, False])
def test_counts_all_reconnections_of_a_large_fleet(ended: bool) -> None:
    """Only ten pairs will be listed in a disruption. Use the seconds to count the other pairs."""
    result = drilled(
        np.full(60, 1e9),
        disruptions=(reset(31, *range(25)),),
        silent_from_s=dict.fromkeys(range(25), 31) if ended else {},
        following=series(np.full(60, 1e9), pairs=30),
        pairs_count=30,
    )
    assert (result.cut_count, result.opened_again_count) == (100, 100 if ended else None)


def test_silent_pair_is_cut_and_pair_of_a_dead_agent_is_not() -> None:
    """If its data connections are reset, iperf3 will continue and not transfer any bytes."""
    gone = reset(33, 3).model_copy(update={"kind": DisruptionKind.CUT})
    result = drilled(
        np.full(60, 1e9),
        disruptions=(gone,),
        # This pair is not counted because it is silent before the event.
        silent_from_s={0: 12, 1: 32, 3: 33},
        following=series(np.full(60, 1e9), pairs=4),
        pairs_count=4,
    )
    assert (result.cut_count, result.cut_pairs, result.opened_again_count) == (4, ("pair-002",), 4)
    assert result.cut_from_at == result.cut_to_at == AT + timedelta(seconds=32)


def test_outage_is_the_duration_most_pairs_measured() -> None:
    columns = [probes(EVENT_S + 1, outage_s) for outage_s in (1.5, 1.5, 1.9)]
    result = drilled(np.full(60, 1e9), *columns, probes(EVENT_S, 0.0))
    assert result.outages_count == 3
    assert result.outage_s == pytest.approx(1.5, abs=0.03)
    assert result.outages[0].outage_s == pytest.approx(1.9, abs=0.03)


def test_rate_curve_is_scaled_and_starts_before_the_event() -> None:
    trend = drilled(np.repeat([1e9, 0.5e9], 30), probes(EVENT_S, 1.5)).rate_curve
    assert trend is not None
    assert trend.start_at == AT
    assert trend.bits_per_second[0] == pytest.approx(100e9)
    assert trend.bits_per_second[-1] == pytest.approx(50e9)
