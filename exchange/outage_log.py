"""Log of outages of the services that a process uses, limited in size.

Adapters report each failed attempt and each success, including retries inside an SDK. An outage
starts with the first failure and ends with the first success. If another failure follows shortly
after, it extends the same outage. A job report contains the outages during its job.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from broadside.exchange.messages import TROUBLES_MAX_COUNT, OutageKind, ServiceOutage

# If there is a failure within this time after the end of an outage, the outage will be extended.
_SAME_S: Final = timedelta(seconds=5)


class WriteRefusals:
    """Newest write that each storage rejected because there was no space or no permission."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        # Time and reason by storage.
        self._newest: dict[str, tuple[float, str]] = {}

    def note(self, place: str, why: str) -> None:
        """Store a rejected write. Thread-safe.

        Args:
            place: The name of the storage.
            why: The reason of the rejection.
        """
        self._newest[place] = (self._clock_s(), why)

    def within(self, span_s: float) -> Mapping[str, str]:
        """Return the reason by storage, for writes rejected in the last ``span_s`` seconds."""
        since_s = self._clock_s() - span_s
        return {place: why for place, (at_s, why) in self._newest.items() if at_s >= since_s}


def utc_now() -> datetime:
    """Return the current time in UTC.

    All modules use this function and not ``datetime.now``, which tests cannot replace.
    """
    return datetime.fromtimestamp(time.time(), UTC)


class OutageLog:
    """Newest outages of one process."""

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now
        # Sorted by start.
        self._spells: list[ServiceOutage] = []
        self._reported_at = datetime.min.replace(tzinfo=UTC)

    def failed(self, kind: OutageKind) -> None:
        """Record a failed attempt. The outage continues until :meth:`record_success` is called."""
        self._add(kind, is_over=False)

    def happened(self, kind: OutageKind) -> None:
        """Record an event without duration, such as a dropped duplicate."""
        self._add(kind, is_over=True)

    def record_interval(self, kind: OutageKind, from_at: datetime, to_at: datetime) -> None:
        """Record an outage that has ended, with times known by the caller.

        Args:
            kind: The kind of the outage.
            from_at: The start.
            to_at: The end.
        """
        self._spells.append(ServiceOutage(kind=kind, from_at=from_at, to_at=to_at, count=1))
        del self._spells[:-TROUBLES_MAX_COUNT]

    def record_success(self, kind: OutageKind) -> None:
        """Record a successful attempt, which ends an open outage of this kind."""
        at = self._find(kind)
        if at is not None and self._spells[at].to_at is None:
            self._spells[at] = self._spells[at].model_copy(update={"to_at": self._now()})

    def between(self, from_at: datetime, until_at: datetime) -> tuple[ServiceOutage, ...]:
        """Return the outages that overlap a time range, sorted by start.

        Args:
            from_at: The time to start from.
            until_at: The end of the range.

        Returns:
            Outages with start and end. The end is None while an outage continues.
        """
        return tuple(
            spell
            for spell in self._spells
            if spell.from_at <= until_at and (spell.to_at is None or spell.to_at >= from_at)
        )

    def new_since(self, since_at: datetime) -> tuple[ServiceOutage, ...]:
        """Return the outages since ``since_at``, or since the previous call if that was later."""
        now = self._now()
        outages = self.between(max(since_at, self._reported_at), now)
        self._reported_at = now
        return outages

    def _add(self, kind: OutageKind, *, is_over: bool) -> None:
        now = self._now()
        to_at = now if is_over else None
        at = self._find(kind)
        if at is not None:
            last = self._spells[at]
            if last.to_at is None or now - last.to_at <= _SAME_S:
                changes = {"to_at": to_at, "count": last.count + 1}
                self._spells[at] = last.model_copy(update=changes)
                return
        self._spells.append(ServiceOutage(kind=kind, from_at=now, to_at=to_at, count=1))
        del self._spells[:-TROUBLES_MAX_COUNT]

    def _find(self, kind: OutageKind) -> int | None:
        """Return the index of the newest outage of a kind."""
        return next(
            (at for at in reversed(range(len(self._spells))) if self._spells[at].kind is kind),
            None,
        )
