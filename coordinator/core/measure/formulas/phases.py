"""Phases of a burst whose load has ramps, as in RFC 9411, section 4.3.4.

Init is before the start and collect is after the end. Only the sustain phase is judged. A burst
without ramps has no phases.
"""

from dataclasses import dataclass
from enum import StrEnum

from broadside.exchange.engines import ramps_s
from broadside.exchange.messages import Traffic


class TrafficPhase(StrEnum):
    """Phase of the load."""

    INIT = "init"
    RAMP_UP = "ramp-up"
    SUSTAIN = "sustain"
    RAMP_DOWN = "ramp-down"
    COLLECT = "collect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustain:
    """Sustain phase of a burst, in seconds after its planned start.

    Attributes:
        from_s: End of the ramp-up.
        to_s: Start of the ramp-down, or the end of a burst that was ended before it.
    """

    from_s: int
    to_s: int

    def phase_at(self, after_s: float, end_s: int) -> TrafficPhase:
        """Return the phase of a second.

        Args:
            after_s: Start of the second after the planned start, in seconds.
            end_s: Length of the burst in seconds.
        """
        if after_s < 0:
            return TrafficPhase.INIT
        if after_s < self.from_s:
            return TrafficPhase.RAMP_UP
        if after_s < self.to_s:
            return TrafficPhase.SUSTAIN
        return TrafficPhase.RAMP_DOWN if after_s < end_s else TrafficPhase.COLLECT


def sustain_of(traffic: Traffic, burst_s: int, duration_s: int) -> Sustain | None:
    """Return the sustain phase of a burst.

    Args:
        traffic: The traffic, which is one part of a mixed run.
        burst_s: Planned length of the burst in seconds.
        duration_s: Its length. A burst that was ended early may have no ramp-down.

    Returns:
        Start and end in seconds from the start of the burst. None if the load has no ramps.
    """
    up_s, down_s = ramps_s(traffic)
    if not up_s and not down_s:
        return None
    return Sustain(from_s=up_s, to_s=max(up_s, min(duration_s, burst_s - down_s)))
