"""Gives every planned pair-second one state, and says from them how much of a burst was seen.

A pair's planned seconds are counted in its own engine time, so a start error within the tolerance
costs no coverage. Sums of states are whole numbers: they combine exactly, in any order.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np

from broadside.coordinator.core.live.status import due_at
from broadside.coordinator.core.measure.align import Aligned
from broadside.coordinator.core.measure.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.measure.unsteady_clocks import clock_troubles
from broadside.coordinator.core.summary import Completeness, State, UnsteadyClocks
from broadside.exchange.messages import JobReport, Outcome, pair_name

NAMED_COUNT: Final = 3


PAIR_FLOOR_RATIO: Final = 0.9  # of its planned seconds: a pair below it does not count as measured


def combine(parts: Iterable[Completeness]) -> Completeness:
    """Add up parts; exact, so any grouping and order gives the same."""
    seconds = dict.fromkeys(State, 0)
    for part in parts:
        for state in State:
            seconds[state] += part.seconds(state)
    return Completeness.of(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGrade:
    """What became of one pair in one burst."""

    completeness: Completeness
    state: State  # measured, or why it is not: the state of its largest missing share
    reason: str | None  # None: measured
    start_error_s: float | None  # first data minus planned start, corrected clocks
    proven_ratio: float  # of planned seconds that the receiver's own seconds cover

    @property
    def measured(self) -> bool:
        """On time, and enough of its seconds seen to count among the measured pairs."""
        return self.state is State.MEASURED

    @property
    def ran(self) -> bool:
        """On time and, by its own report, to the end: what is missing are records."""
        return self.measured or (
            self.state is State.LOST and self.completeness.seconds(State.MEASURED) > 0
        )


def grade(
    evidence: BurstEvidence, aligned: Aligned, late_after_s: float, now: datetime
) -> tuple[PairGrade, ...]:
    """Grade every pair, in the order of ``aligned.pairs``."""
    burst = evidence.burst
    planned_s = burst.planned_start_at.timestamp()
    over = now >= due_at(burst)
    grades = []
    for row, pair in enumerate(aligned.pairs):
        seen = int(np.all([flow.own_seen[row] for flow in aligned.flows], axis=0).sum())
        proven = float(min(flow.proven_s[row] for flow in aligned.flows) / max(1, burst.duration_s))
        start = float(aligned.first_data_at_s[row])
        error = None if math.isnan(start) else start - planned_s
        rest_state, rest_reason = _rest(pair, evidence, seen=seen > 0, over=over)
        late = error is not None and (
            abs(error) > late_after_s
            or (pair.report is not None and pair.report.outcome is Outcome.LATE)
        )
        seconds = dict.fromkeys(State, 0)
        seconds[State.LATE if late else State.MEASURED] += seen
        seconds[rest_state] += burst.duration_s - seen
        if seen < PAIR_FLOOR_RATIO * burst.duration_s:
            state, reason = rest_state, rest_reason
            if seen:
                reason = f"{rest_reason} after {seen} of {burst.duration_s} s"
        elif late and error is not None:
            state = State.LATE
            reason = f"data began {abs(error):.1f} s {'after' if error > 0 else 'before'} the start"
        else:
            state, reason = State.MEASURED, None
        grades.append(
            PairGrade(
                completeness=Completeness.of(seconds),
                state=state,
                reason=reason,
                start_error_s=error,
                proven_ratio=min(1.0, proven),
            )
        )
    return tuple(grades)


def _rest(
    pair: PairEvidence, evidence: BurstEvidence, *, seen: bool, over: bool
) -> tuple[State, str]:
    """The state of a pair's seconds that nobody saw, and why."""
    if pair.report is not None:
        return _rest_reported(pair.report, seen=seen)
    if evidence.cancelled_at is not None:
        return State.ABANDONED, evidence.cancel_reason or "the run was cancelled"
    if not over:
        return State.PENDING, "not reported yet"
    if seen:
        return State.ABANDONED, "the agent fell silent"
    if pair.unheard is not None:
        return State.LOST, pair.unheard
    if pair.claim is None:
        return State.MISSED, "no agent took the job"
    return State.LOST, f"{pair.claim.agent_id} took the job and never reported"


def _rest_reported(report: JobReport, *, seen: bool) -> tuple[State, str]:
    said = report.reason or (report.engine.error if report.engine else None)
    match report.outcome:
        case Outcome.MISSED:
            return State.MISSED, said or "never started"
        case Outcome.REFUSED:
            return State.REFUSED, said or "stood down"
        case Outcome.ABANDONED:
            return State.ABANDONED, said or "cut short"
        case Outcome.FAILED if not seen:
            return State.NULL, said or "the engine failed"
        case Outcome.FAILED:
            return State.ABANDONED, said or "the engine failed"
        case Outcome.MEASURED | Outcome.LATE:
            if seen:
                return State.LOST, said or "seconds are missing from the record"
            return State.NULL, said or "the engine reported no bytes"


def find_unsteady(
    aligned: Aligned, grades: Sequence[PairGrade], bound_max_s: float
) -> UnsteadyClocks | None:
    """None where every clock held; ``grades`` are in the order of ``aligned.pairs``."""
    said, measured_s = [], 0
    for pair, grade in zip(aligned.pairs, grades, strict=True):
        if not any(grade.completeness.seconds(state) for state in (State.MEASURED, State.LATE)):
            continue
        if troubles := list(clock_troubles(pair, bound_max_s)):
            said.append(f"{pair_name(pair.pair_index)} ({'; '.join(troubles)})")
            measured_s += grade.completeness.measured_s
    if not said:
        return None
    return UnsteadyClocks(
        pairs_count=len(said), measured_s=measured_s, said=tuple(said[:NAMED_COUNT])
    )


def read_ratio(aligned: Aligned, grades: Sequence[PairGrade]) -> float | None:
    """Of the measured pair-seconds, those of pairs whose every clock was read, before and after."""
    measured_s = sum(grade.completeness.measured_s for grade in grades)
    read_s = sum(
        grade.completeness.measured_s
        for pair, grade in zip(aligned.pairs, grades, strict=True)
        if _is_read(pair)
    )
    return read_s / measured_s if measured_s else None


def unread_s(aligned: Aligned, grades: Sequence[PairGrade], bound_max_s: float) -> int:
    """Measured pair-seconds whose clocks nobody read, of pairs of which no trouble is known."""
    return sum(
        grade.completeness.measured_s
        for pair, grade in zip(aligned.pairs, grades, strict=True)
        if not _is_read(pair) and not any(clock_troubles(pair, bound_max_s))
    )


def _is_read(pair: PairEvidence) -> bool:
    """Whether both ends said before and after how far off they were; a dead end did not."""
    report, test = pair.report, pair.server_test
    if report is None or test is None:
        return False
    before = report.clock_before or (pair.claim.clock if pair.claim is not None else None)
    return all(
        reading is not None
        and reading.synchronised
        and reading.offset_s is not None
        and reading.bound_s is not None
        for reading in (before, report.clock_after, test.clock_before, test.clock_after)
    )
