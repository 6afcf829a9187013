"""Where a run stands, derived from its plan, what agents reported, and the time. Nothing stored."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from broadside.coordinator.core.plan.spec import Burst, Plan
from broadside.exchange.messages import (
    Claim,
    Control,
    JobReport,
    Message,
    Outcome,
    Phase,
    RunId,
    UtcDatetime,
)

# An agent ends a stuck engine 12 s after the planned end and then still has to report.
COLLECT_S: Final = 25.0
VISIBLE_S: Final = 20.0  # s before its instant that a burst's jobs become receivable


class RunState(StrEnum):
    WAITING = "waiting"  # between bursts, or before the first
    ARMING = "arming"
    RUNNING = "running"
    COLLECTING = "collecting"  # traffic is over, reports are coming in
    FINISHED = "finished"
    CANCELLED = "cancelled"


class BurstPhase(StrEnum):
    PLANNED = "planned"
    ARMING = "arming"
    RUNNING = "running"
    COLLECTING = "collecting"
    OVER = "over"


class BurstStatus(Message):
    """One burst, by the numbers of its pairs."""

    index: int
    planned_start_at: UtcDatetime
    planned_end_at: UtcDatetime
    phase: BurstPhase
    pairs_planned: int
    claimed_count: int
    armed_count: int  # armed or further
    reported_count: int
    outcomes: Mapping[Outcome, int]


class RunStatus(Message):
    """A run, by its bursts."""

    run_id: RunId
    scenario: str
    state: RunState
    created_at: UtcDatetime
    ends_at: UtcDatetime  # when the last burst's reports are due
    bursts: tuple[BurstStatus, ...]
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    warnings: tuple[str, ...] = ()
    imported: Literal["original", "iperf3"] | None = None  # what its figures were read from


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstRows:
    """What the table holds of one burst, by pair index."""

    claims: Mapping[int, Claim] = field(default_factory=dict)
    reports: Mapping[int, JobReport] = field(default_factory=dict)


def due_at(burst: Burst) -> datetime:
    """When a burst is over whatever has or has not been reported."""
    return burst.planned_end_at + timedelta(seconds=COLLECT_S)


def burst_phase(
    burst: Burst, rows: BurstRows, control: Control | None, now: datetime
) -> BurstPhase:
    """Where one burst stands.

    A burst is over when every pair that was claimed has reported, or when reports are no longer
    due. Whether server ends have told all is asked when it is measured. A cancelled run's burst
    that was never claimed is over at once.
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
    """The run's status. ``rows`` is by burst index; a burst without any has reported nothing.

    A burst in ``closed`` stands as it did when it was closed.
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
    armed = sum(claim.phase is not Phase.CLAIMED for claim in rows.claims.values())
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
