"""Reads of a run's control row that overlap, so that a slow answer holds up no later question; and
the watch that keeps them going while a job is under way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broadside.agent.decide import control_problem
from broadside.exchange.messages import Control
from broadside.exchange.ports import ExchangeError

READ_S: Final = 3.0  # s that one read may take
READS_MAX_COUNT: Final = 3  # under way at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The row, as it was when it was asked for, or later; None: there is none."""

    control: Control | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """The row could not be read, or not yet."""

    why: str


class ControlReads:
    """Questions for the row, and the answers in the order of asking; :meth:`close` it."""

    def __init__(
        self, read: Callable[[], Awaitable[Control | None]], stopping: asyncio.Event
    ) -> None:
        self._read = read
        self._stop = asyncio.create_task(stopping.wait())
        self._asked: list[asyncio.Task[Answer | NoAnswer]] = []  # oldest first

    def ask(self) -> None:
        """Begin a read, unless too many are under way."""
        if len(self._asked) < READS_MAX_COUNT:
            self._asked.append(asyncio.create_task(self._ask()))

    async def _ask(self) -> Answer | NoAnswer:
        try:
            async with asyncio.timeout(READ_S):
                return Answer(control=await self._read())
        except (ExchangeError, TimeoutError) as error:
            return NoAnswer(why=str(error) or "no answer in time")
        except Exception as error:  # whatever the row is made of: it says nothing
            return NoAnswer(why=f"the row is unreadable: {type(error).__name__}")

    async def next(self, within_s: float) -> Answer | NoAnswer | None:
        """The newest answer as soon as there is one, else what is known by then.

        None: nothing is asked and not answered, or the agent is stopping.
        """
        await asyncio.wait(
            {self._stop, *self._asked},
            timeout=max(within_s, 0.0),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._stop.done():
            return None
        failure = NoAnswer(why="no answer in time") if self._asked else None
        for at, task in reversed(list(enumerate(self._asked))):
            if not task.done():
                continue
            match task.result():
                case Answer() as answer:
                    for older in self._asked[:at]:  # theirs would be older news
                        older.cancel()
                    del self._asked[: at + 1]
                    return answer
                case NoAnswer() as failure:
                    del self._asked[at]
        return failure

    async def close(self) -> None:
        tasks = (self._stop, *self._asked)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
