"""Tests for the decision to end a running burst."""

from dataclasses import replace
from datetime import timedelta

import pytest

from broadside.coordinator.core.judge.early_end import early_end_findings
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.live.certainty_now import (
    ORDER_S,
    Certainty,
    find_certainty,
    is_due,
    stop_at,
)
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, CounterRecord
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import BurstSummary, Verdict
from broadside.exchange.messages import BurstEnd, EndCause
from tests.synthetic import IP_RATIO, Fleet, Plant, fleet
from tests.unit.coordinator.core.live.test_live_view import until

BURST_S = 120
CLEAN = fleet(Plant(pairs=4, bursts=1, burst_s=BURST_S, noise=0.01))
RATE = CLEAN.truth.rates[0] * IP_RATIO


def plan_for(made: Fleet, margin: float, **objective: object) -> Plan:
    """Return the plan with a limit so that the rate is above it by this ratio."""
    fields = {
        "target_bits_per_second": RATE / (1 + margin),
        "tolerance_ratio": 0.0,
        "stop": "when-certain",
        **objective,
    }
    spec = made.plan.spec
    objective_ = spec.objective.model_copy(update=fields)
    return made.plan.model_copy(update={"spec": spec.model_copy(update={"objective": objective_})})


def with_claims(evidence: BurstEvidence, made: Fleet) -> BurstEvidence:
    """Return the evidence with the segment size in the claims, as during a burst."""
    pairs = []
    for pair, complete in zip(evidence.pairs, made.evidence[0].pairs, strict=True):
        assert pair.claim is not None
        assert complete.report is not None
        assert complete.report.engine is not None
        claim = pair.claim.model_copy(update={"mss_bytes": complete.report.engine.mss_bytes})
        pairs.append(replace(pair, claim=claim))
    return replace(evidence, pairs=tuple(pairs))


def decided(
    margin: float, second: float, silent: frozenset[int] = frozenset(), **objective: object
) -> Certainty | None:
    evidence = with_claims(until(CLEAN, second, silent=silent), CLEAN)
    now = evidence.burst.planned_start_at + timedelta(seconds=second)
    return find_certainty(plan_for(CLEAN, margin, **objective), evidence, now)


def test_pass_and_fail_are_certain_after_the_shortest_duration() -> None:
    above, below = decided(0.05, 70), decided(-0.05, 70)
    assert above is not None
    assert below is not None
    assert (above.verdict, below.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert 60 <= above.known_s <= 70
    assert "certainly above the limit" in above.reason
    assert "certainly below the limit" in below.reason


def test_nothing_is_decided_too_early_or_for_a_small_margin() -> None:
    assert decided(0.05, 50) is None
    assert decided(0.002, 110) is None
    assert decided(0.05, 70, sustain_min_s=90) is None
    assert decided(0.05, 50, sustain_min_s=30) is not None


def test_a_silent_pair_is_not_counted_as_zero() -> None:
    """With zeros for this pair, the rate would be certainly below the limit."""
    assert decided(0.05, 100, silent=frozenset({2})) is None
    evidence = until(CLEAN, 100)
    mute = replace(evidence.pairs[1], client_tracks=(), server_tracks=())
    pairs = (evidence.pairs[0], mute, *evidence.pairs[2:])
    now = evidence.burst.planned_start_at + timedelta(seconds=100)
    assert find_certainty(plan_for(CLEAN, -0.05), replace(evidence, pairs=pairs), now) is None


def test_is_due_from_the_shortest_duration_until_shortly_before_the_end() -> None:
    plan = plan_for(CLEAN, 0.05)
    burst = plan.bursts[0]

    def due(second: float, of: Plan = plan) -> bool:
        return is_due(of, burst, burst.planned_start_at + timedelta(seconds=second))

    assert [due(second) for second in (59, 60, 100, BURST_S - 5)] == [False, True, True, False]
    assert not due(100, plan_for(CLEAN, 0.05, stop=None))


def test_stops_at_a_whole_second_that_all_agents_can_reach() -> None:
    burst = CLEAN.plan.bursts[0]
    now = burst.planned_start_at + timedelta(seconds=66.3)
    at = stop_at(burst, now)
    assert (at - now).total_seconds() >= ORDER_S
    assert (at - burst.planned_start_at).total_seconds() == 71


def ended(
    margin: float, made: Fleet = CLEAN, device_counter: CounterRecord | None = None
) -> tuple[Plan, BurstSummary]:
    """Return plan and summary of a burst that was stopped at second 74."""
    plan = plan_for(made, margin)
    start_at = plan.bursts[0].planned_start_at
    order = BurstEnd(
        burst_index=0,
        at=start_at + timedelta(seconds=74),
        cause=EndCause.CERTAIN,
        reason="the rate is certainly above the limit",
        decided_at=start_at + timedelta(seconds=70),
        saved_usd=1234.0,
    )
    plan = plan.with_ends([order])
    evidence = replace(made.evidence[0], burst=plan.bursts[0])
    measured = measure_burst(plan.spec, evidence, start_at + timedelta(seconds=500))
    return plan, summarise_run(
        plan, [measured], device_counter, start_at + timedelta(seconds=500)
    ).bursts[0]


def test_verdict_of_a_stopped_burst_states_its_basis() -> None:
    _, burst = ended(0.05)
    assert burst.verdict is Verdict.PASS, [finding.sentence for finding in burst.findings]
    assert burst.duration_s == 74
    assert burst.completeness_ratio == 1.0
    assert burst.missing_pairs == ()
    end = burst.early_end
    assert end is not None
    assert (end.planned_s, end.error_ratio) == (BURST_S, 0.02)
    rate, half = (
        burst.fleet_received_bits_per_second,
        burst.fleet_received_half_width_bits_per_second,
    )
    assert rate is not None
    assert half is not None
    assert end.low_bits_per_second is not None
    assert end.high_bits_per_second is not None
    # The interval of the verdict contains the confidence sequence.
    assert rate - half <= end.low_bits_per_second * (1 + 1e-6)
    assert end.high_bits_per_second * (1 - 1e-6) <= rate + half
    (finding,) = [one for one in burst.findings if one.id == "stopped-early"]
    for texts in ("second 74 of at most 120", "at most 2 %", "drift", "scale-in", "leaks", "1,234"):
        assert texts in finding.sentence


@pytest.mark.parametrize(
    ("margin", "verdict"), [(-0.05, Verdict.FAIL), (0.001, Verdict.INCONCLUSIVE)]
)
def test_stopped_burst_fails_or_stays_undecided(margin: float, verdict: Verdict) -> None:
    assert ended(margin)[1].verdict is verdict


def test_a_device_counter_can_only_weaken_the_result() -> None:
    bypassed = fleet(Plant(pairs=4, bursts=1, burst_s=BURST_S, noise=0.01, bypass=1))
    assert bypassed.device_counter is not None
    for margin, alone in ((0.05, Verdict.PASS), (-0.05, Verdict.FAIL)):
        assert ended(margin, bypassed)[1].verdict is alone
    assert ended(0.05, bypassed, bypassed.device_counter)[1].verdict is Verdict.INCONCLUSIVE
    assert ended(-0.05, bypassed, bypassed.device_counter)[1].verdict is not Verdict.PASS


def test_a_burst_that_ran_to_its_end_is_reported() -> None:
    plan, burst = ended(0.05)
    complete = burst.model_copy(update={"early_end": None, "duration_s": BURST_S})
    (finding,) = early_end_findings(plan.spec, complete)
    assert finding.id == "not-stopped-early"
    assert f"planned end of {BURST_S} s" in finding.sentence
    fixed = plan_for(CLEAN, 0.05, stop=None).spec
    assert list(early_end_findings(fixed, complete)) == []
