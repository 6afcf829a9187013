"""Estimate of the offset between a device's timestamps and the coordinator clock."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# Timestamps often have whole seconds. Two of them can therefore differ by this time from one
# clock.
STAMP_STEP_S: Final = 1.0
# A larger offset is reported. A synchronised clock is off by less than a second, and a timestamp
# in whole seconds adds one.
OFFSET_MAX_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Response:
    """Response with a timestamp of the device clock.

    Attributes:
        stamp_s: The timestamp (epoch s of the device clock).
        sent_s: Time of the request (epoch s of the coordinator clock).
        answered_s: Time of the response (same clock).
        other_at_s: Time of the last request whose response had another timestamp. ``None`` for a
            repeated timestamp or the first one.
        repeated: Whether timestamp and values equal those of the response before.
    """

    stamp_s: float
    sent_s: float
    answered_s: float
    other_at_s: float | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Estimated clock offset.

    Attributes:
        offset_s: Device's timestamp minus the coordinator clock.
        bound_s: Uncertainty of the offset in both directions.
        usable: Whether one offset fits all responses. If False, timestamps must not be used.
        spread_s: Difference by which the responses contradict a single offset.
        answers_count: Number of responses with a timestamp.
    """

    offset_s: float
    bound_s: float
    usable: bool
    spread_s: float
    answers_count: int

    @property
    def is_large(self) -> bool:
        """Return True if the offset needs to be reported."""
        return abs(self.offset_s) - self.bound_s > OFFSET_MAX_S


def estimate_offset(responses: Sequence[Response]) -> ClockOffset | None:
    """Return the offset that fits all responses, or ``None`` if there are none.

    Each response limits the offset, because the timestamp needs to be made between request and
    response. The result is the intersection of the intervals of all responses. If a device
    refreshes its values less often than it is polled, it will repeat its timestamp. In this case,
    only responses with a new timestamp are used. It was made after the last request that received
    the old one.
    """
    if not responses:
        return None
    took_s = max(item.answered_s - item.sent_s for item in responses)
    options = list(_intervals(responses))
    for low_s, high_s in options:
        if low_s - high_s <= STAMP_STEP_S:
            contradiction_s = max(0.0, low_s - high_s)
            width_s = abs(high_s - low_s) + (took_s if contradiction_s else 0.0)
            return ClockOffset(
                offset_s=(low_s + high_s) / 2,
                bound_s=width_s / 2,
                usable=True,
                spread_s=contradiction_s,
                answers_count=len(responses),
            )
    low_s, high_s = options[0]
    return ClockOffset(
        offset_s=(low_s + high_s) / 2,
        bound_s=(low_s - high_s) / 2,
        usable=False,
        spread_s=low_s - high_s,
        answers_count=len(responses),
    )


def _intervals(responses: Sequence[Response]) -> Iterator[tuple[float, float]]:
    """Yield the interval of the offset for item interpretation, the narrowest first."""
    yield _as_answered(responses)
    renewed = [item for item in responses if item.other_at_s is not None]
    if renewed:
        latest_s, _ = _as_answered(renewed)
        yield latest_s, min(item.stamp_s - (item.other_at_s or 0.0) for item in renewed)
    elif all(item.repeated for item in responses[1:]):
        # There is only one timestamp so far. At its first response it may already have had the age
        # that it reached since.
        low_s, high_s = _as_answered(responses[:1])
        yield low_s, high_s + responses[-1].answered_s - responses[0].answered_s


def _as_answered(responses: Sequence[Response]) -> tuple[float, float]:
    """Return the interval of the offset if item timestamp was created for its response."""
    return (
        max(item.stamp_s - item.answered_s for item in responses),
        min(item.stamp_s - item.sent_s for item in responses),
    )


def describe_offset(offset: ClockOffset) -> str | None:
    """Return a message about the offset, or ``None`` if the timestamps are correct."""
    answers = f"{offset.answers_count} answers"
    if not offset.usable:
        from_s, to_s = offset.offset_s - offset.bound_s, offset.offset_s + offset.bound_s
        return (
            f"its time stamps differ from the time of the answer by {from_s:+.1f} to {to_s:+.1f} s "
            f"({answers}): not used; its values get the time between request and answer, "
            f"within {offset.spread_s:.1f} s"
        )
    if offset.is_large:
        side = "ahead of" if offset.offset_s > 0 else "behind"
        return (
            f"its time stamps are {abs(offset.offset_s):.1f} s {side} the coordinator's clock "
            f"(+- {offset.bound_s:.2f} s, {answers}; {OFFSET_MAX_S:g} s is the limit): corrected"
        )
    return None
