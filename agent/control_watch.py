"""Judges successive readings of a run's control row. No I/O: the guard feeds it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from agent.control_reads import Answer, NoAnswer
from agent.decide import control_problem
from exchange.messages import Control

LAST_LOOK_S: Final = 1.2  # s before the instant at which the control row is read once more
LAST_WORD_S: Final = 0.5  # s before the instant by which the row must have been read once


@dataclass(slots=True, kw_only=True)
class ControlWatch:
    """What to make of a control row that cannot always be read.

    Before the instant it must have been read at least once, and until the last look a lapsed lease
    is no news: the coordinator may be back in time to renew it. Its answer may take until the last
    word; from then on an outage of the table stops nothing while the lease last read still runs.
    When that lapses the agent stops, table or no table. A dead-man switch that waits for better
    news is none.
    """

    instant_s: float  # epoch s
    _last: Control | None = None

    def pause_s(self, poll_s: float, now_s: float) -> float:
        """How long until the row is read again: at the last look and the last word anyway."""
        marks_s = (self.instant_s - LAST_LOOK_S, self.instant_s - LAST_WORD_S)
        return min([poll_s, *(mark_s - now_s for mark_s in marks_s if mark_s > now_s)])

    def judge(self, news: Answer | NoAnswer | None, now_s: float) -> str | None:
        """Why the run must stop after this news, or None."""
        match news:
            case Answer(control=control):
                return self.see(control, now_s)
            case NoAnswer(why=why):
                return self.miss(why, now_s)
            case None:
                return None

    def see(self, control: Control | None, now_s: float) -> str | None:
        """The row was read: why the run must stop, or None."""
        self._last = control
        return self._problem(now_s)

    def miss(self, why: str, now_s: float) -> str | None:
        """The row could not be read: why the run must stop, or None."""
        if now_s < self.instant_s - LAST_WORD_S:
            return None
        if self._last is None:
            return f"the run's control row could not be read before the instant: {why}"
        problem = self._problem(now_s)
        return problem and f"{problem} that could be seen; the control row is unreadable: {why}"

    def _problem(self, now_s: float) -> str | None:
        last = self._last
        is_early = now_s < self.instant_s - LAST_LOOK_S
        if is_early and last is not None and last.cancelled_at is None:
            return None
        return control_problem(last, datetime.fromtimestamp(now_s, UTC))
