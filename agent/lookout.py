"""Judges successive readings of a run's control row. No I/O: the guard feeds it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from agent.decide import control_problem
from exchange.messages import Control

LAST_LOOK_S: Final = 1.2  # s before the instant at which the control row is read once more
LAST_WORD_S: Final = 0.5  # s before the instant by which the row must have been read once


@dataclass(slots=True, kw_only=True)
class Lookout:
    """What to make of a control row that cannot always be read.

    Before the instant it must have been read at least once, and until the last look a lapsed lease
    is no news: the coordinator may be back in time to renew it. From then on an outage of the table
    stops nothing while the lease last read still runs; when that lapses the agent stops, table or
    no table. A dead-man switch that waits for better news is none.
    """

    instant_s: float  # epoch s
    _last: Control | None = None

    def see(self, control: Control | None, now_s: float) -> str | None:
        """The row was read: why the run must stop, or None."""
        self._last = control
        return self._problem(now_s)

    def miss(self, why: str, now_s: float) -> str | None:
        """The row could not be read: why the run must stop, or None."""
        if self._last is None:
            if now_s < self.instant_s - LAST_WORD_S:
                return None
            return f"the run's control row could not be read before the instant: {why}"
        problem = self._problem(now_s)
        return problem and f"{problem} that could be seen; the control row is unreadable: {why}"

    def _problem(self, now_s: float) -> str | None:
        last = self._last
        is_early = now_s < self.instant_s - LAST_LOOK_S
        if is_early and last is not None and last.cancelled_at is None:
            return None
        return control_problem(last, datetime.fromtimestamp(now_s, UTC))
