from datetime import datetime, timedelta

import pytest

from broadside.coordinator.core.live.status import BurstPhase, BurstRows, RunState, derive
from broadside.coordinator.core.plan.planner import plan
from broadside.coordinator.core.run_spec import COLLECT_S, Plan, RunSpec
from broadside.exchange.messages import Claim, Control, JobPhase, JobReport, Outcome
from tests.unit.coordinator.core.records import job_report
from tests.unit.coordinator.presences import NOW, fleet

SPEC = RunSpec(scenario="test", pairs_count=2, bursts_count=2, burst_s=10, period_s=30, lead_s=30)
PLAN: Plan = plan(SPEC, fleet(2), NOW, "run-1")
START = PLAN.bursts[0].planned_start_at


def claim(pair_index: int, phase: JobPhase = JobPhase.ARMED) -> Claim:
    return Claim(
        job_id=f"run-1.00000.{pair_index:05d}", agent_id="client-001", phase=phase, claimed_at=NOW
    )


def report(pair_index: int, outcome: Outcome = Outcome.MEASURED) -> JobReport:
    return job_report(pair_index, START, outcome=outcome)


def at(offset_s: float) -> datetime:
    return START + timedelta(seconds=offset_s)


BOTH_ARMED = BurstRows(claims={0: claim(0), 1: claim(1)})
BOTH_REPORTED = BurstRows(claims=BOTH_ARMED.claims, reports={0: report(0), 1: report(1)})
ONE_REPORTED = BurstRows(claims=BOTH_ARMED.claims, reports={0: report(0)})


@pytest.mark.parametrize(
    ("offset_s", "rows", "state", "phase"),
    [
        (-25, BurstRows(), RunState.WAITING, BurstPhase.PLANNED),
        (-19, BOTH_ARMED, RunState.ARMING, BurstPhase.ARMING),
        (5, BOTH_ARMED, RunState.RUNNING, BurstPhase.RUNNING),
        (10.5, ONE_REPORTED, RunState.ARMING, BurstPhase.COLLECTING),
        (13, ONE_REPORTED, RunState.ARMING, BurstPhase.COLLECTING),
        (13, BOTH_REPORTED, RunState.ARMING, BurstPhase.OVER),
        (10 + COLLECT_S, ONE_REPORTED, RunState.RUNNING, BurstPhase.OVER),
    ],
)
def test_burst_phases_follow_time_and_reports(
    offset_s: float, rows: BurstRows, state: RunState, phase: BurstPhase
) -> None:
    status = derive(PLAN, None, {0: rows}, at(offset_s))
    assert (status.state, status.bursts[0].phase) == (state, phase)


def test_counts_pairs_by_outcome() -> None:
    rows = BurstRows(
        claims={0: claim(0), 1: claim(1, JobPhase.CLAIMED)}, reports={0: report(0, Outcome.LATE)}
    )
    burst = derive(PLAN, None, {0: rows}, at(5)).bursts[0]
    assert (burst.pairs_planned, burst.claimed_count, burst.armed_count) == (2, 2, 1)
    assert burst.outcomes == {Outcome.LATE: 1}


def test_run_without_reports_ends() -> None:
    status = derive(PLAN, None, {}, at(30 + 10 + COLLECT_S))
    assert status.state is RunState.FINISHED


def test_cancelled_run_ends_after_all_claims_reported() -> None:
    control = Control(
        run_id="run-1",
        lease_until_at=at(60),
        cancelled_at=at(1),
        cancelled_by="a",
        cancel_reason="b",
    )
    open_claim = derive(PLAN, control, {0: ONE_REPORTED}, at(2))
    assert open_claim.state is RunState.RUNNING
    closed = derive(PLAN, control, {0: BOTH_REPORTED}, at(2))
    assert closed.state is RunState.CANCELLED
    assert closed.cancel_reason == "b"
