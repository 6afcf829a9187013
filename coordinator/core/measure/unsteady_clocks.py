"""Clocks that did not hold through a burst, so that their pairs' seconds are off by who knows what.

The gate is held before a burst; this is the same gate after it.
"""

from collections.abc import Iterator

from broadside.coordinator.core.measure.evidence import PairEvidence
from broadside.exchange.messages import ClockReading, ClockSource


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
