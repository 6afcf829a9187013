from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadside.coordinator.core.measure.formulas.phases import Sustain
from broadside.coordinator.core.measure.latency import find_latency
from broadside.coordinator.core.measure.records.evidence import (
    BurstEvidence,
    PairEvidence,
    ProbeColumn,
)
from broadside.coordinator.core.plan.planner import Infeasible, plan
from broadside.coordinator.core.run_spec import Burst, RunSpec
from broadside.coordinator.core.summary import BurstSummary, Latency, canonical
from broadside.exchange.messages import Role
from tests.judged import judged_burst
from tests.unit.coordinator.presences import NOW, presence

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
BURST = Burst(index=0, planned_start_at=AT, duration_s=10)
STEP_S = 0.1
# This is enough for 2 seconds before, 10 during and 2 after the burst.
COUNT = 140


def column(rtt_s: Any = 0.001, **at: float) -> ProbeColumn:
    values = np.full(COUNT, rtt_s, dtype=np.float64)
    for place, value in at.items():
        first, _, last = place.removeprefix("s").partition("_")
        values[int(first) : int(last)] = value
    return ProbeColumn(first_at_s=AT.timestamp() - 2, every_s=STEP_S, rtt_s=values)


def latency_of(*columns: ProbeColumn) -> Latency:
    """Return the latency of a fleet with the given probes."""
    latency, _ = find_latency(BURST, dict(enumerate(columns)))
    assert latency is not None
    return latency


def spec(**changes: Any) -> RunSpec:
    traffic = {"probe": "udp"}
    return RunSpec.model_validate({"scenario": "t", "pairs_count": 1, "traffic": traffic} | changes)


def test_phases_are_split_at_start_and_end() -> None:
    latency, by_pair = find_latency(BURST, {0: column(s20_120=0.004, s120_140=0.002)})
    assert latency is not None
    fleet = latency.fleet
    assert [p.sent_count for p in (fleet.before, fleet.during, fleet.after)] == [20, 100, 20]
    assert (fleet.before.p99_s, fleet.during.p50_s, fleet.after.max_s) == (0.001, 0.004, 0.002)
    assert fleet.buffer_delay_ratio == pytest.approx(3.0)
    assert by_pair[0] == fleet
    assert latency.worst_pair == "pair-001"


def test_probes_in_ramps_are_in_no_phase() -> None:
    slow = column(s20_40=0.5, s100_120=0.5)
    latency, _ = find_latency(BURST, {0: slow}, Sustain(from_s=2, to_s=8))
    assert latency is not None
    fleet = latency.fleet
    assert [p.sent_count for p in (fleet.before, fleet.during, fleet.after)] == [20, 60, 20]
    assert fleet.during.max_s == 0.001


def test_lost_and_unsent_probes_are_distinguished() -> None:
    latency = latency_of(column(s20_25=np.nan, s25_120=-1.0))
    during = latency.fleet.during
    assert (during.sent_count, during.answered_count, during.loss_ratio) == (5, 0, 1.0)
    assert during.p99_s is None
    assert latency.complete_pairs_count == 0


def test_without_probes_there_is_no_latency() -> None:
    assert find_latency(BURST, {}) == (None, {})


def test_spike_needs_a_second_of_slow_or_lost_probes() -> None:
    assert latency_of(column(s50_59=0.5)).spikes == ()
    latency = latency_of(column(s50_60=0.5), column(s55_70=np.nan), column(s100_111=0.0225))
    assert latency.spikes_count == 2
    both, alone = latency.spikes
    assert both.from_at == AT + timedelta(seconds=3)
    assert both.to_at == AT + timedelta(seconds=5)
    assert (both.pairs_count, both.rtt_max_s, both.lost_count) == (2, 0.5, 15)
    assert alone.pairs == ("pair-003",)


def test_spike_is_relative_to_a_permanent_queue() -> None:
    standing = latency_of(column(s20_120=0.1))
    assert standing.spikes == ()
    assert standing.fleet.buffer_delay_ratio == pytest.approx(99.0)
    (spike,) = latency_of(column(s20_120=0.1, s60_75=0.25)).spikes
    assert (spike.to_at - spike.from_at).total_seconds() == pytest.approx(1.5)


def test_unsent_probes_are_not_part_of_a_spike() -> None:
    """If an agent stalls, it can be late to answer before and after this."""
    stalled = column(s50_51=0.2, s51_71=-1.0, s71_72=0.2)
    halves = column(s50_56=np.nan, s56_58=-1.0, s58_64=np.nan)
    for probes in (stalled, halves):
        assert latency_of(probes).spikes == ()


def test_unsent_probe_does_not_hide_a_spike() -> None:
    # Only nine in ten are slow.
    assert latency_of(column(s50_60=0.5, s55_56=-1.0)).spikes == ()
    (spike,) = latency_of(column(s50_61=np.nan, s55_56=-1.0)).spikes
    assert spike.to_at - spike.from_at == timedelta(seconds=1.1)
    assert spike.lost_count == 10


@settings(max_examples=50)
@given(
    st.lists(
        st.one_of(st.floats(0, 1, width=32), st.just(float("nan")), st.just(-1.0)),
        min_size=COUNT,
        max_size=COUNT,
    ),
    st.integers(0, 3),
)
def test_probes_are_conserved_and_the_order_of_pairs_is_irrelevant(
    values: list[float], pairs: int
) -> None:
    one = ProbeColumn(first_at_s=AT.timestamp() - 2, every_s=STEP_S, rtt_s=np.array(values))
    probes = {0: one, **{index + 1: column() for index in range(pairs)}}
    latency, _ = find_latency(BURST, probes)
    again, _ = find_latency(BURST, dict(reversed(probes.items())))
    assert latency is not None and latency == again
    phases = (latency.fleet.before, latency.fleet.during, latency.fleet.after)
    unsent = sum(value < 0 for value in values)
    assert sum(phase.sent_count for phase in phases) == COUNT * (1 + pairs) - unsent
    for phase in phases:
        known = [phase.p50_s, phase.p90_s, phase.p95_s, phase.p99_s, phase.max_s]
        assert known == sorted(known, key=lambda value: value or 0.0)


def judge(objective: dict[str, float], probes: ProbeColumn | None) -> BurstSummary:
    evidence = BurstEvidence(burst=BURST, pairs=(PairEvidence(pair_index=0, probes=probes),))
    return judged_burst(spec(objective=objective), evidence, None, AT + timedelta(minutes=5))


def test_probe_thresholds_fail_or_are_unproven_with_the_worst_pair() -> None:
    slow = judge({"probe_p99_max_s": 0.01}, column(s50_70=0.5))
    ids = {finding.id: finding.sentence for finding in slow.findings}
    assert ids["probe-p99-limit"].endswith("is 500 ms, above the limit 10 ms.")
    assert "worst pair-001" in ids["latency-under-load"]
    assert "12:00:03 UTC for 2.0 s on 1 pairs (pair-001)" in ids["latency-spikes"]
    lossy = judge({"probe_loss_max_ratio": 0.1}, column(s50_70=np.nan))
    assert "probe-loss-limit" in {finding.id for finding in lossy.findings}
    silent = judge({"probe_p99_max_s": 0.01}, None)
    assert "probe-p99-unproven" in {finding.id for finding in silent.findings}
    assert slow.pairs[0].latency is not None
    assert BurstSummary.model_validate_json(canonical(slow)) == slow


def test_warns_about_unanswered_probes_without_a_threshold() -> None:
    shut = {finding.id: finding for finding in judge({}, column(np.nan)).findings}
    finding = shut["probes-unanswered"]
    assert finding.severity == "warning" and "1 of 1 probed pairs" in finding.sentence
    assert finding.next_step is not None and "BROADSIDE_AGENT_ECHO_PORT" in finding.next_step
    dropped = {finding.id: finding for finding in judge({}, column(s22_120=np.nan)).findings}
    assert "under load" in (dropped["probes-unanswered"].next_step or "")
    for answered in (column(), column(s20_80=np.nan), column(-1.0)):
        assert "probes-unanswered" not in {f.id for f in judge({}, answered).findings}


def test_rejects_probe_thresholds_without_probes_or_echo() -> None:
    (unmeasured,) = spec(traffic={}, objective={"probe_p99_max_s": 0.01}).problems()
    assert unmeasured.startswith("objective.probe_p99_max_s: it is not measured")
    (short,) = spec(bursts_count=2, burst_s=30, period_s=36).problems()
    assert "set at least 38 s" in short
    fleet = [presence(Role.CLIENT, 1), presence(Role.SERVER, 1)]
    with pytest.raises(Infeasible, match=r"traffic.probe: 1 of 1 server agents do not answer"):
        plan(spec(), fleet, NOW, "run-1")
    able = [fleet[0], fleet[1].model_copy(update={"echo_port": 5200})]
    (pair,) = plan(spec(), able, NOW, "run-1").pairs
    assert pair.endpoint.echo_port == 5200
