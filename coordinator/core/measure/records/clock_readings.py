"""Clock readings of both ends: clocks that were not steady, and ends that share a kernel clock.

If a clock is not steady, we do not know by how much its pair's seconds are off. The limit is the
same as for the clock gate before a burst.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.exchange.messages import Claim, ClockReading, ClockSource, JobReport, ServerTest

End = TypeVar("End", Claim, JobReport, ServerTest)


def clock_troubles(pair: PairEvidence, bound_max_s: float) -> Iterator[str]:
    """Yield clock problems at both ends during the burst.

    Args:
        pair: Pair to check.
        bound_max_s: Limit for the error bound and for any change in the offset, in seconds.
    """
    for name, end in (("client", pair.report), ("server", pair.server_test)):
        if end is not None:
            trouble = _trouble(end.clock_before, end.clock_after, bound_max_s)
            if trouble is not None:
                yield f"the clock of the {name}, {end.agent_id}, {trouble}"


def _trouble(
    before: ClockReading | None, after: ClockReading | None, bound_max_s: float
) -> str | None:
    """Return a clock's problem, or ``None`` if there is none.

    If there is no reading after the burst, there is nothing to report. An agent may be dead without
    having a wrong clock.
    """
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


def on_shared_clock(
    pairs: Sequence[PairEvidence], shared_boot_id: str | None
) -> tuple[PairEvidence, ...]:
    """Return pairs with offset and bound set to 0, if all ends use the same clock.

    Between such ends, the offset is 0 for any error of the clock. Pairs are not changed if
    there is no shared clock in the plan, or if an end used another clock. This can happen when a
    pair was moved.

    Args:
        pairs: All pairs in a burst.
        shared_boot_id: The shared kernel's boot id, or ``None`` if there is none.

    Returns:
        Copies in the same order, or the same pairs if there is no shared clock.
    """
    if shared_boot_id is None or any(
        reading.boot_id != shared_boot_id for pair in pairs for reading in _readings(pair)
    ):
        return tuple(pairs)
    return tuple(
        replace(
            pair,
            claim=_corrected(pair.claim, "clock"),
            report=_corrected(pair.report, "clock_before", "clock_after"),
            server_test=_corrected(pair.server_test, "clock_before", "clock_after"),
        )
        for pair in pairs
    )


def _readings(pair: PairEvidence) -> Iterator[ClockReading]:
    for end, names in (
        (pair.claim, ("clock",)),
        (pair.report, ("clock_before", "clock_after")),
        (pair.server_test, ("clock_before", "clock_after")),
    ):
        for name in names:
            reading = getattr(end, name, None)
            if reading is not None:
                yield reading


def _corrected(end: End | None, *names: str) -> End | None:
    if end is None:
        return None
    known = {"synchronised": True, "offset_s": 0.0, "bound_s": 0.0}
    changes = {
        name: reading.model_copy(update=known)
        for name in names
        if (reading := getattr(end, name)) is not None
    }
    return end.model_copy(update=changes)
