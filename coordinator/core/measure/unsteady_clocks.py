"""Clocks that did not hold through a burst, so that their pairs' seconds are off by who knows what.

The gate is held before a burst; this is the same gate after it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from coordinator.core.measure.align import Aligned
from coordinator.core.measure.completeness import PairGrade
from coordinator.core.measure.evidence import PairEvidence
from coordinator.core.summary import State, UnsteadyClocks
from exchange.messages import ClockReading, ClockSource, pair_name

NAMED_COUNT: Final = 3


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


def clock_troubles(pair: PairEvidence, bound_max_s: float) -> Iterator[str]:
    """What the clocks of a pair's two ends did during the burst."""
    for name, end in (("client", pair.report), ("server", pair.server_test)):
        if end is not None:
            trouble = _trouble(end.clock_before, end.clock_after, bound_max_s)
            if trouble is not None:
                yield f"the {name}'s clock {trouble}"


def _trouble(
    before: ClockReading | None, after: ClockReading | None, bound_max_s: float
) -> str | None:
    """A reading after the burst that nobody gave says nothing: a dead agent is no wrong clock."""
    if after is None or after.source is ClockSource.UNKNOWN:
        return None
    if not after.synchronised or after.bound_s is None:
        return "was not synchronised after the burst"
    if before is not None and before.offset_s is not None and after.offset_s is not None:
        moved_s = after.offset_s - before.offset_s
        if abs(moved_s) > bound_max_s:
            return f"moved by {moved_s * 1e3:+.0f} ms"
    if after.bound_s > bound_max_s:
        return f"was up to {after.bound_s * 1e3:.0f} ms off after the burst"
    return None
