"""Clock readings for ends that use the same kernel clock."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from broadside.coordinator.core.measure.evidence import PairEvidence
from broadside.exchange.messages import Claim, ClockReading, JobReport, ServerTest

End = TypeVar("End", Claim, JobReport, ServerTest)


def on_shared_clock(
    pairs: Sequence[PairEvidence], shared_boot_id: str | None
) -> tuple[PairEvidence, ...]:
    """Return pairs with offset and bound set to 0, if all ends use the same clock.

    Between such ends, there is no offset, whatever the clock's own error is. Pairs will not be
    changed if there is no shared clock in the plan, or if an end used another clock. This can
    happen when a pair was moved.

    Args:
        pairs: All pairs in a burst.
        shared_boot_id: The shared kernel's boot id, or ``None`` if there is none.
    """
    if shared_boot_id is None or any(
        reading.boot_id != shared_boot_id for pair in pairs for reading in _readings(pair)
    ):
        return tuple(pairs)
    return tuple(
        replace(
            pair,
            claim=_told(pair.claim, "clock"),
            report=_told(pair.report, "clock_before", "clock_after"),
            server_test=_told(pair.server_test, "clock_before", "clock_after"),
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


def _told(end: End | None, *names: str) -> End | None:
    if end is None:
        return None
    known = {"synchronised": True, "offset_s": 0.0, "bound_s": 0.0}
    changes = {
        name: reading.model_copy(update=known)
        for name in names
        if (reading := getattr(end, name)) is not None
    }
    return end.model_copy(update=changes)
