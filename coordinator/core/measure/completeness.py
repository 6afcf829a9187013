"""State for every planned pair-second, and completeness of a burst.

A pair's planned seconds are counted in the engine's own time. So a start error within the tolerance
does not reduce the coverage. We count whole seconds per state, so sums are exact and can be
computed in any order.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.measure.grid.align import Aligned
from broadside.coordinator.core.measure.records.clock_readings import clock_troubles
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import due_at
from broadside.coordinator.core.summary import Completeness, SecondState, UnsteadyClocks, figure
from broadside.exchange.messages import JobReport, Outcome, pair_name

NAMED_COUNT: Final = 3


# Share of planned seconds. A pair below this limit will not be counted as measured.
PAIR_FLOOR_RATIO: Final = 0.9


def combine(parts: Iterable[Completeness]) -> Completeness:
    """Add up parts. The sum is exact in any order and grouping."""
    seconds = dict.fromkeys(SecondState, 0)
    for part in parts:
        for state in SecondState:
            seconds[state] += part.seconds(state)
    return Completeness.of(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGrade:
    """Result for a pair in a burst.

    Attributes:
        completeness: How many planned seconds are in each state.
        state: ``MEASURED``, or the state with the largest missing share.
        reason: Why the pair was not measured, or ``None`` when it was.
        start_error_s: First data minus planned start in seconds, by corrected clocks. ``None`` if
            there is no data.
        proven_ratio: Share of planned seconds that the receiver itself recorded.
    """

    completeness: Completeness
    state: SecondState
    reason: str | None
    start_error_s: float | None
    proven_ratio: float

    @property
    def measured(self) -> bool:
        """True if the pair was on time and enough of its seconds were recorded."""
        return self.state is SecondState.MEASURED

    @property
    def ran(self) -> bool:
        """True if the pair was on time and ran to the end, even when records are missing."""
        return self.measured or (
            self.state is SecondState.LOST and self.completeness.seconds(SecondState.MEASURED) > 0
        )


def grade(
    evidence: BurstEvidence, aligned: Aligned, late_after_s: float, now: datetime
) -> tuple[PairGrade, ...]:
    """Grade all pairs, in the same order as ``aligned.pairs``.

    Args:
        evidence: Evidence of the burst.
        aligned: The same burst, aligned to the grid.
        late_after_s: A pair is late when its start error is above this limit, in seconds.
        now: Current time. It is used to see if more reports can be expected.

    Returns:
        State and reason of each pair. The state is pending while more reports can be expected.
    """
    burst = evidence.burst
    planned_s = burst.planned_start_at.timestamp()
    over = now >= due_at(burst)
    grades = []
    for row, pair in enumerate(aligned.pairs):
        seen = int(np.all([flow.engine_seen[row] for flow in aligned.flows], axis=0).sum())
        proven = float(min(flow.proven_s[row] for flow in aligned.flows) / max(1, burst.duration_s))
        start = float(aligned.first_data_at_s[row])
        error = None if math.isnan(start) else start - planned_s
        rest_state, rest_reason = _rest(pair, evidence, seen=seen > 0, over=over)
        late = error is not None and (
            abs(error) > late_after_s
            or (pair.report is not None and pair.report.outcome is Outcome.LATE)
        )
        seconds = dict.fromkeys(SecondState, 0)
        seconds[SecondState.LATE if late else SecondState.MEASURED] += seen
        seconds[rest_state] += burst.duration_s - seen
        if seen < PAIR_FLOOR_RATIO * burst.duration_s:
            state, reason = rest_state, rest_reason
            if seen:
                reason = f"{rest_reason} after {seen} of {burst.duration_s} s"
        elif late and error is not None:
            state = SecondState.LATE
            reason = f"data began {abs(error):.1f} s {'after' if error > 0 else 'before'} the start"
        else:
            state, reason = SecondState.MEASURED, None
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
) -> tuple[SecondState, str]:
    """Return the state to use for a pair's unrecorded seconds, and the reason."""
    if pair.report is not None:
        return _rest_reported(pair.report, seen=seen)
    if evidence.cancelled_at is not None:
        return SecondState.ABANDONED, evidence.cancel_reason or "the run was cancelled"
    if not over:
        return SecondState.PENDING, "not reported yet"
    if seen:
        return SecondState.ABANDONED, "the agent stopped reporting"
    if pair.missing_reason is not None:
        return SecondState.LOST, pair.missing_reason
    if pair.claim is None:
        return SecondState.MISSED, "no agent claimed the job"
    return SecondState.LOST, f"{pair.claim.agent_id} claimed the job and did not report"


def _rest_reported(report: JobReport, *, seen: bool) -> tuple[SecondState, str]:
    reported = report.reason or (report.engine.error if report.engine else None)
    match report.outcome:
        case Outcome.MISSED:
            return SecondState.MISSED, reported or "never started"
        case Outcome.REFUSED:
            return SecondState.REFUSED, reported or "refused by the agent without a reason"
        case Outcome.ABANDONED:
            return SecondState.ABANDONED, reported or "stopped before the end"
        case Outcome.FAILED if not seen:
            return SecondState.NULL, reported or "the engine failed"
        case Outcome.FAILED:
            return SecondState.ABANDONED, reported or "the engine failed"
        case Outcome.MEASURED | Outcome.LATE:
            if seen:
                return SecondState.LOST, reported or "seconds are missing from the record"
            return SecondState.NULL, reported or "the engine reported no bytes"


def clock_fields(
    aligned: Aligned, grades: Sequence[PairGrade], bound_max_s: float
) -> dict[str, Any]:
    """Return summary fields about the clocks of all pairs during a burst.

    Args:
        aligned: The aligned burst.
        grades: Grades in the same order as ``aligned.pairs``.
        bound_max_s: Limit for a clock's error bound, in seconds.

    Returns:
        Values by field name of :class:`BurstSummary`. The ratio is None if nothing was measured.
    """
    unsteady, unsteady_s, measured_s, read_s, unread_s = [], 0, 0, 0, 0
    for pair, grade in zip(aligned.pairs, grades, strict=True):
        pair_s = grade.completeness.measured_s
        measured_s += pair_s
        read = _is_read(pair)
        read_s += pair_s if read else 0
        troubles = list(clock_troubles(pair, bound_max_s))
        if not troubles:
            unread_s += 0 if read else pair_s
        elif pair_s or grade.completeness.late_s:
            unsteady.append(f"{pair_name(pair.pair_index)} ({'; '.join(troubles)})")
            unsteady_s += pair_s
    return {
        "unsteady_clocks": UnsteadyClocks(
            pairs_count=len(unsteady), measured_s=unsteady_s, examples=tuple(unsteady[:NAMED_COUNT])
        )
        if unsteady
        else None,
        "clocks_read_ratio": figure(read_s / measured_s) if measured_s else None,
        "clocks_unread_s": unread_s,
    }


def _is_read(pair: PairEvidence) -> bool:
    """Return true if both ends reported a clock offset before and after the burst.

    An end that died cannot have a reading after the burst.
    """
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
