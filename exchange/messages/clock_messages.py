"""What an agent knows of its clock."""

from enum import StrEnum

from exchange.messages.message_base import Message, Text, UtcDatetime, Whole


class ClockSource(StrEnum):
    CHRONY = "chrony"
    ADJTIMEX = "adjtimex"
    UNKNOWN = "unknown"


class ClockReading(Message):
    """What an agent knew of its own clock at one instant.

    ``bound_s`` is the largest error the source admits: ``|offset| + root dispersion +
    root delay / 2`` for chrony (RFC 5905, section 11.2: root distance), the kernel's ``maxerror``
    for adjtimex. ``None`` is an unknown bound, which the clock gate treats as too large.
    """

    source: ClockSource
    read_at: UtcDatetime
    synchronised: bool
    offset_s: float | None = None  # s, positive when the local clock is ahead
    bound_s: float | None = None  # s, >= 0
    reference: Text | None = None  # the source's name or address
    stratum: Whole | None = None
