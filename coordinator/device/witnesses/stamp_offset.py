"""Offset of a device's own time stamps from the coordinator's clock, estimated from its answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# s: stamps are often whole seconds, so that two of them may differ by that much from one clock.
STAMP_STEP_S: Final = 1.0
# s: an offset beyond it is reported. A synchronised clock is off by less than a second; a stamp in
# whole seconds adds one.
OFFSET_MAX_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """One answer that carried a stamp of the device's clock.

    Attributes:
        stamp_s: The stamp (epoch s of the device's clock).
        asked_s: When the question was sent (epoch s of the coordinator's clock).
        answered_s: When the answer had arrived.
        other_at_s: When the question was sent that was still answered with another stamp; None
            where this stamp is a repeated one, or the first.
        repeated: Stamp and figures are those of the answer before.
    """

    stamp_s: float
    asked_s: float
    answered_s: float
    other_at_s: float | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class StampOffset:
    """The estimated offset.

    Attributes:
        offset_s: Device's stamp minus the coordinator's clock.
        bound_s: By how much the offset may be off, either way.
        usable: The answers agree with one offset. False: the stamps must not be used.
        spread_s: By how much answers contradict one offset.
        answers_count: Answers that carried a stamp.
    """

    offset_s: float
    bound_s: float
    usable: bool
    spread_s: float
    answers_count: int

    @property
    def is_large(self) -> bool:
        """Return whether the offset must be reported."""
        return abs(self.offset_s) - self.bound_s > OFFSET_MAX_S


def estimate_offset(sightings: Sequence[Sighting]) -> StampOffset | None:
    """Return the offset that all answers allow; None without an answer.

    Each answer bounds the offset: the device made its stamp after it was asked and before it had
    answered. The intervals of all answers are intersected. A device that refreshes its figures more
    rarely than it is asked repeats its stamp; then only an answer with a new one is used, and the
    stamp was made after the question that was still answered with the one before.
    """
    if not sightings:
        return None
    took_s = max(each.answered_s - each.asked_s for each in sightings)
    options = list(_intervals(sightings))
    for low_s, high_s in options:
        if low_s - high_s <= STAMP_STEP_S:
            contradiction_s = max(0.0, low_s - high_s)
            width_s = abs(high_s - low_s) + (took_s if contradiction_s else 0.0)
            return StampOffset(
                offset_s=(low_s + high_s) / 2,
                bound_s=width_s / 2,
                usable=True,
                spread_s=contradiction_s,
                answers_count=len(sightings),
            )
    low_s, high_s = options[0]
    return StampOffset(
        offset_s=(low_s + high_s) / 2,
        bound_s=(low_s - high_s) / 2,
        usable=False,
        spread_s=low_s - high_s,
        answers_count=len(sightings),
    )


def _intervals(sightings: Sequence[Sighting]) -> Iterator[tuple[float, float]]:
    """Yield the offset's interval by each way of reading the answers, the narrowest first."""
    yield _as_answered(sightings)
    renewed = [each for each in sightings if each.other_at_s is not None]
    if renewed:
        latest_s, _ = _as_answered(renewed)
        yield latest_s, min(each.stamp_s - (each.other_at_s or 0.0) for each in renewed)
    elif all(each.repeated for each in sightings[1:]):
        # One stamp so far: it was as old, when it was first seen, as one may become here.
        low_s, high_s = _as_answered(sightings[:1])
        yield low_s, high_s + sightings[-1].answered_s - sightings[0].answered_s


def _as_answered(sightings: Sequence[Sighting]) -> tuple[float, float]:
    """Return the offsets that all answers allow if each stamp was made for its answer."""
    return (
        max(each.stamp_s - each.answered_s for each in sightings),
        min(each.stamp_s - each.asked_s for each in sightings),
    )


def describe_offset(offset: StampOffset) -> str | None:
    """Return what a reader must know of it; None where the stamps are good."""
    answers = f"{offset.answers_count} answers"
    if not offset.usable:
        from_s, to_s = offset.offset_s - offset.bound_s, offset.offset_s + offset.bound_s
        return (
            f"its time stamps differ from the time of the answer by {from_s:+.1f} to {to_s:+.1f} s "
            f"({answers}): not used; its figures are placed by question and answer, within "
            f"{offset.spread_s:.1f} s"
        )
    if offset.is_large:
        side = "ahead of" if offset.offset_s > 0 else "behind"
        return (
            f"its time stamps are {abs(offset.offset_s):.1f} s {side} the coordinator's clock "
            f"(+- {offset.bound_s:.2f} s, {answers}; {OFFSET_MAX_S:g} s is the limit): corrected"
        )
    return None
