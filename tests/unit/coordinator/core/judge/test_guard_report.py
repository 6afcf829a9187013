"""Test that a run which a guard stopped is inconclusive and shows the impact."""

from datetime import timedelta

from broadside.coordinator.core.guards import (
    DRY_RUN,
    STOPPED_BY,
    Guard,
    GuardLog,
    GuardRecord,
    GuardSecond,
    GuardStop,
)
from broadside.coordinator.core.judge.guard_report import GuardEvidence, with_guards
from broadside.coordinator.core.plan.budget import ran
from broadside.coordinator.core.plan.planner import PlanContext
from broadside.coordinator.core.plan.planner import plan as make_plan
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.core.summary import Completeness, RunSummary, Verdict
from broadside.exchange.messages import Control
from tests.unit.coordinator.presences import NOW, fleet

GUARD = Guard.model_validate("cpu_ratio > 80%")


def planned(**changes: object) -> Plan:
    spec = RunSpec.model_validate(
        {"scenario": "x", "pairs_count": 2, "guards": [GUARD], "bursts_count": 2} | changes
    )
    return make_plan(spec, fleet(2), NOW, "run-1", PlanContext(telemetry={"fw": ["cpu_ratio"]}))


def summary(plan: Plan) -> RunSummary:
    return RunSummary(
        run_id=plan.run_id,
        scenario="x",
        computed_at=NOW,
        scale=1,
        target_bits_per_second=None,
        target_layer=plan.spec.objective.layer,
        pairs_planned=2,
        pairs_measured=2,
        bursts_planned=2,
        verdict=Verdict.PASS,
        completeness_ratio=1.0,
        completeness=Completeness.model_construct(),
    )


def log_of(plan: Plan, stop: GuardStop | None, burst_index: int = 0) -> GuardLog:
    record = GuardRecord(
        guard=str(GUARD),
        quantity="cpu_ratio",
        limit=0.8,
        last=0.97,
        worst=0.97,
        readings_count=40,
        stop_within_s=1.5,
    )
    seconds = tuple(
        GuardSecond(second=number, values=(0.3 if number < 7 else 0.97,))
        for number in range(-8, 18)
    )
    return GuardLog(burst_index=burst_index, guards=(record,), stop=stop, seconds=seconds)


def control_at(plan: Plan, seconds: float) -> Control:
    at = plan.bursts[0].planned_start_at + timedelta(seconds=seconds)
    return Control(
        run_id=plan.run_id,
        lease_until_at=at,
        cancelled_at=at,
        cancelled_by=STOPPED_BY,
        cancel_reason="stopped by guard: cpu",
    )


def stop_at(plan: Plan, seconds: float, reason: str = "cpu_ratio of fw was 97.0 %") -> GuardStop:
    at = plan.bursts[0].planned_start_at + timedelta(seconds=seconds)
    return GuardStop(
        burst_index=0,
        guard_index=0,
        reason=reason,
        is_before_start=seconds < 0,
        breached_at=at - timedelta(seconds=0.3),
        stop_requested_at=at,
    )


def test_a_run_without_guards_is_unchanged() -> None:
    plan = planned(guards=())
    assert with_guards(summary(plan), plan, None, GuardEvidence()) == summary(plan)


def test_a_stopped_run_is_inconclusive_with_the_impact() -> None:
    plan = planned()
    control = control_at(plan, 7.5)
    ended_at = [plan.bursts[0].planned_start_at + timedelta(seconds=s) for s in (7.9, 8.2)]
    evidence = GuardEvidence(logs=[log_of(plan, stop_at(plan, 7.5))], ended_at=ended_at)
    verdicts = with_guards(summary(plan), plan, control, evidence)
    assert verdicts.verdict is Verdict.INCONCLUSIVE
    finding = verdicts.findings[0]
    assert finding.id == "stopped-by-guard"
    assert "after 7.5 s of 30 s: cpu_ratio of fw was 97.0 %" in finding.sentence
    assert "All traffic had ended 1.00 s after the breach (2 pairs)" in finding.sentence
    assert verdicts.guards is not None
    assert verdicts.guards.stop is not None
    assert verdicts.guards.stop.took_s == 1.0
    shown = {second.second: second.values for second in verdicts.guards.seconds}
    assert min(shown) == -3
    assert max(shown) == 19
    assert (shown[6], shown[7]) == ((0.3,), (0.97,))
    # The values after the end of the record are unknown.
    assert shown[19] == (None,)


def test_only_bursts_that_began_are_judged_after_a_stop() -> None:
    plan = planned()
    assert [burst.index for burst in ran(plan, control_at(plan, 7.5)).bursts] == [0]
    assert [burst.index for burst in ran(plan, control_at(plan, 65)).bursts] == [0, 1]


def test_a_stop_without_a_record_is_still_a_stop() -> None:
    """The coordinator failed after the stop."""
    plan = planned()
    verdicts = with_guards(summary(plan), plan, control_at(plan, 7.5), GuardEvidence())
    assert verdicts.verdict is Verdict.INCONCLUSIVE
    assert "stopped by guard: cpu" in verdicts.findings[0].sentence
    assert "No agent reported when it stopped" in verdicts.findings[0].sentence


def test_a_guard_without_a_value_is_no_stop_of_traffic() -> None:
    plan = planned()
    evidence = GuardEvidence(logs=[log_of(plan, stop_at(plan, -1.9, "cpu_ratio has no value"))])
    verdicts = with_guards(summary(plan), plan, control_at(plan, -1.9), evidence)
    assert verdicts.findings[0].id == "guard-not-armed"
    assert (
        "before the first byte of burst 1: cpu_ratio has no value" in verdicts.findings[0].sentence
    )


def test_a_dry_run_needs_all_pairs() -> None:
    plan = planned(dry_run=True)
    log = log_of(plan, stop_at(plan, -1.9, DRY_RUN))
    ended_at = [plan.bursts[0].planned_start_at - timedelta(seconds=s) for s in (1.2, 1.4)]
    for count, verdict in ((2, Verdict.MEASURED), (1, Verdict.INCONCLUSIVE)):
        evidence = GuardEvidence(logs=[log], ended_at=ended_at[:count])
        verdicts = with_guards(summary(plan), plan, control_at(plan, -1.9), evidence)
        assert verdicts.verdict is verdict
        [finding] = verdicts.findings
        assert finding.id == ("dry-run" if count == 2 else "dry-run-failed")
    complete = GuardEvidence(logs=[log], ended_at=ended_at)
    [finding] = with_guards(summary(plan), plan, control_at(plan, -1.9), complete).findings
    assert "cpu_ratio > 80.0 %: 97.0 %" in finding.sentence
