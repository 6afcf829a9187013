"""Run status, computed from its plan, the reports of agents and the time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from broadside.coordinator.core.run_spec import Burst, Plan, due_at
from broadside.coordinator.core.summary import Verdict
from broadside.exchange.messages import (
    Claim,
    Control,
    JobPhase,
    JobReport,
    Message,
    Outcome,
    OwnBurstIndex,
    RunId,
    RunOutcome,
    UtcDatetime,
)

# Seconds before the start time when the jobs for a burst can be received.
VISIBLE_S: Final = 20.0


class RunState(StrEnum):
    """State of a run.

    Attributes:
        WAITING: Between bursts, or before the first one.
        ARMING: Clients claim jobs and connect.
        RUNNING: Traffic is sent.
        COLLECTING: Traffic is over, and reports are expected.
        FINISHED: The verdict is known.
        CANCELLED: It was aborted.
    """

    WAITING = "waiting"
    ARMING = "arming"
    RUNNING = "running"
    COLLECTING = "collecting"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class BurstPhase(StrEnum):
    """Phase of a burst.

    Attributes:
        PLANNED: The jobs are not claimed yet.
        ARMING: Clients claim jobs and connect.
        RUNNING: Traffic is sent.
        COLLECTING: Reports are awaited.
        OVER: All reports have arrived or are overdue.
    """

    PLANNED = "planned"
    ARMING = "arming"
    RUNNING = "running"
    COLLECTING = "collecting"
    OVER = "over"


class BurstStatus(Message):
    """Status of a burst, with the number of pairs in each step.

    Attributes:
        planned_end_at: Planned end of the burst.
        phase: Phase of the burst.
        claimed_count: Number of pairs with a client that has claimed the job.
        armed_count: Number of pairs that are armed or in a later phase.
        reported_count: Number of pairs with a report.
        outcomes: Number of pairs by result of the job.
    """

    index: OwnBurstIndex
    planned_start_at: UtcDatetime
    planned_end_at: UtcDatetime
    phase: BurstPhase
    pairs_planned: int
    claimed_count: int
    armed_count: int
    reported_count: int
    outcomes: Mapping[Outcome, int]


class RunStatus(Message):
    """Run status and its bursts.

    Attributes:
        state: State of the run.
        created_at: Time of the launch.
        ends_at: Time when the reports of the last burst are due.
        bursts: Status of each burst.
        cancelled_by: Name of the user who aborted it. None if it was not aborted.
        cancel_reason: Reason that was given for the abort. None if it was not aborted.
        warnings: Warnings, as sentences.
        imported: Format that the data was imported from. None if it was not imported.
        verdict: Verdict. None before it is known.
        reason: Why this verdict. None before it is known.
        next_step: What to do next. None before the verdict.
        created_by: Name of who launched the run. None if it is not in the list.
        labels: Current labels. They can be changed after the launch.
        outcome: Main figures of a finished run, as in the list. None while it continues.
    """

    run_id: RunId
    scenario: str
    state: RunState
    created_at: UtcDatetime
    ends_at: UtcDatetime
    bursts: tuple[BurstStatus, ...]
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    warnings: tuple[str, ...] = ()
    imported: Literal["original", "iperf3"] | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    next_step: str | None = None
    created_by: str | None = None
    labels: Mapping[str, str] = {}
    outcome: RunOutcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstRows:
    """Stored rows of one burst by pair index.

    Attributes:
        claims: Claims by pair index.
        reports: Job reports by pair index.
    """

    claims: Mapping[int, Claim] = field(default_factory=dict)
    reports: Mapping[int, JobReport] = field(default_factory=dict)


def burst_phase(
    burst: Burst, rows: BurstRows, control: Control | None, now: datetime
) -> BurstPhase:
    """Return the phase of one burst.

    A burst is over when every pair that was claimed has reported, or when reports are no longer
    due. Open server records will be checked when it is measured. If the run was cancelled, a burst
    that has no claims is over immediately.

    Args:
        burst: The burst.
        rows: Its stored rows.
        control: Control row for the run, or None.
        now: Current time to use.
    """
    open_claims = rows.claims.keys() - rows.reports.keys()
    cancelled = control is not None and control.cancelled_at is not None
    ended = now >= burst.planned_end_at
    if now >= due_at(burst) or (not open_claims and (cancelled or ended)):
        return BurstPhase.OVER
    if ended:
        return BurstPhase.COLLECTING
    if now >= burst.planned_start_at:
        return BurstPhase.RUNNING
    if now >= burst.planned_start_at - timedelta(seconds=VISIBLE_S):
        return BurstPhase.ARMING
    return BurstPhase.PLANNED


def derive(
    plan: Plan,
    control: Control | None,
    rows: Mapping[int, BurstRows],
    now: datetime,
    *,
    closed: Mapping[int, BurstStatus] | None = None,
) -> RunStatus:
    """Compute the status of a run.

    Args:
        plan: The plan.
        control: Control row for the run, or None.
        rows: Rows by burst index. If there is no entry for a burst, it has no reports.
        now: Current time to use.
        closed: Final status of closed bursts, by burst index. None if no burst is closed.

    Returns:
        The status of the run and of each burst, with the counts of pairs by phase.
    """
    known = closed or {}
    bursts = tuple(
        known.get(burst.index)
        or _burst_status(plan, burst, rows.get(burst.index, BurstRows()), control, now)
        for burst in plan.bursts
    )
    cancelled = control is not None and control.cancelled_at is not None
    return RunStatus(
        run_id=plan.run_id,
        scenario=plan.spec.scenario,
        state=_state([burst.phase for burst in bursts], cancelled=cancelled),
        created_at=plan.created_at,
        ends_at=due_at(plan.bursts[-1]),
        bursts=bursts,
        cancelled_by=control.cancelled_by if control else None,
        cancel_reason=control.cancel_reason if control else None,
        warnings=plan.warnings,
    )


def _burst_status(
    plan: Plan, burst: Burst, rows: BurstRows, control: Control | None, now: datetime
) -> BurstStatus:
    armed = sum(claim.phase is not JobPhase.CLAIMED for claim in rows.claims.values())
    return BurstStatus(
        index=burst.index,
        planned_start_at=burst.planned_start_at,
        planned_end_at=burst.planned_end_at,
        phase=burst_phase(burst, rows, control, now),
        pairs_planned=len(plan.pairs),
        claimed_count=len(rows.claims),
        armed_count=armed,
        reported_count=len(rows.reports),
        outcomes=dict(Counter(report.outcome for report in rows.reports.values())),
    )


def _state(phases: Sequence[BurstPhase], *, cancelled: bool) -> RunState:
    if all(phase is BurstPhase.OVER for phase in phases):
        return RunState.CANCELLED if cancelled else RunState.FINISHED
    for phase, state in (
        (BurstPhase.RUNNING, RunState.RUNNING),
        (BurstPhase.ARMING, RunState.ARMING),
        (BurstPhase.COLLECTING, RunState.COLLECTING),
    ):
        if phase in phases:
            return state
    return RunState.WAITING
