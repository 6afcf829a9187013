"""Judges successive readings of a run's control row. No I/O: the guard feeds it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from agent.decide import control_problem
from exchange.messages import Control

RECOVERY_S: Final = 15.0  # s after an outage in which a coordinator gets round to its leases
LAST_WORD_S: Final = 0.5  # s before the instant by which the row must have been read once


@dataclass(slots=True, kw_only=True)
class Lookout:
    """What to make of a control row that cannot always be read.

    Before the instant it must have been read at least once. From then on an outage of the table
    does not stop a burst until it has lasted ``blind_max_s``; and as the coordinator could not
    renew the lease either, that time is not held against the lease when the table is back.
    """

    instant_s: float  # epoch s
    blind_max_s: float
    _seen_s: float | None = None  # epoch s of the last reading
    _missing: bool = False  # since then, readings failed
    _outage_s: float = 0.0  # s that the last outage took
    _back_s: float = 0.0  # epoch s at which it ended

    def see(self, control: Control | None, now_s: float) -> str | None:
        """The row was read: why the run must stop, or None."""
        if self._missing and self._seen_s is not None:
            self._outage_s, self._back_s = now_s - self._seen_s, now_s
        self._seen_s, self._missing = now_s, False
        forgiven_s = self._outage_s if now_s - self._back_s < RECOVERY_S else 0.0
        return control_problem(control, datetime.fromtimestamp(now_s - forgiven_s, UTC))

    def miss(self, why: str, now_s: float) -> str | None:
        """The row could not be read: why the run must stop, or None."""
        self._missing = True
        if self._seen_s is None:
            if now_s < self.instant_s - LAST_WORD_S:
                return None
            return f"the run's control row could not be read before the instant: {why}"
        blind_s = now_s - self._seen_s
        if blind_s <= self.blind_max_s:
            return None
        return (
            f"the run's control row could not be read for {blind_s:.0f} s, over "
            f"blind_max_s of {self.blind_max_s:g}: {why}"
        )
