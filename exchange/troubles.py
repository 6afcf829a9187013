"""What a process lived through with the services it needs: dated, counted, bounded.

Adapters tell it of every attempt that failed and of every one that went well, also of those that
an SDK repeats by itself. A *spell* begins with the first failure and ends with the first success;
failures soon after make it one spell with the last. A report carries the spells of its job.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from broadside.exchange.messages import TROUBLES_MAX_COUNT, Trouble, TroubleKind

_SAME_S: Final = timedelta(seconds=5)  # a failure so soon after a spell's end belongs to it


class WriteRefusals:
    """The newest write that each place of this process refused for want of room or of a right."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._newest: dict[str, tuple[float, str]] = {}  # when and why, by place

    def note(self, place: str, why: str) -> None:
        """Remember a refusal; on any thread."""
        self._newest[place] = (self._clock_s(), why)

    def within(self, span_s: float) -> Mapping[str, str]:
        """Return why, by place, for refusals of the last ``span_s``."""
        since_s = self._clock_s() - span_s
        return {place: why for place, (at_s, why) in self._newest.items() if at_s >= since_s}


def utc_now() -> datetime:
    return datetime.now(UTC)


class TroubleLog:
    """The newest spells of one process."""

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now
        self._spells: list[Trouble] = []  # by their beginning
        self._told_at = datetime.min.replace(tzinfo=UTC)

    def failed(self, kind: TroubleKind) -> None:
        """An attempt failed: this goes on until :meth:`went_well` says otherwise."""
        self._add(kind, is_over=False)

    def happened(self, kind: TroubleKind) -> None:
        """Something that takes no time, such as a duplicate that was dropped."""
        self._add(kind, is_over=True)

    def spanned(self, kind: TroubleKind, from_at: datetime, to_at: datetime) -> None:
        """Something that is over, of a span that the caller knows better than our clock."""
        self._spells.append(Trouble(kind=kind, from_at=from_at, to_at=to_at, count=1))
        del self._spells[:-TROUBLES_MAX_COUNT]

    def went_well(self, kind: TroubleKind) -> None:
        at = self._find(kind)
        if at is not None and self._spells[at].to_at is None:
            self._spells[at] = self._spells[at].model_copy(update={"to_at": self._now()})

    def between(self, from_at: datetime, until_at: datetime) -> tuple[Trouble, ...]:
        """The spells that reach into a span, whole, by their beginning."""
        return tuple(
            spell
            for spell in self._spells
            if spell.from_at <= until_at and (spell.to_at is None or spell.to_at >= from_at)
        )

    def tell(self, since_at: datetime) -> tuple[Trouble, ...]:
        """The spells since then that were not over when this was last called."""
        now = self._now()
        told = self.between(max(since_at, self._told_at), now)
        self._told_at = now
        return told

    def _add(self, kind: TroubleKind, *, is_over: bool) -> None:
        now = self._now()
        to_at = now if is_over else None
        at = self._find(kind)
        if at is not None:
            last = self._spells[at]
            if last.to_at is None or now - last.to_at <= _SAME_S:
                changes = {"to_at": to_at, "count": last.count + 1}
                self._spells[at] = last.model_copy(update=changes)
                return
        self._spells.append(Trouble(kind=kind, from_at=now, to_at=to_at, count=1))
        del self._spells[:-TROUBLES_MAX_COUNT]

    def _find(self, kind: TroubleKind) -> int | None:
        """The newest spell of a kind."""
        return next(
            (at for at in reversed(range(len(self._spells))) if self._spells[at].kind is kind),
            None,
        )
