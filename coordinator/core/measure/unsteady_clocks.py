"""Detection of clocks that were not steady during a burst.

If a clock is not steady, we do not know by how much its pair's seconds are off. The limit is the
same as for the clock gate before a burst.
"""

from collections.abc import Iterator

from broadside.coordinator.core.measure.evidence import PairEvidence
from broadside.exchange.messages import ClockReading, ClockSource


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
                yield f"the {name}'s clock {trouble}"


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
