"""Overlapping reads for a run's control row, and the decision to stop based on them.

Reads overlap so that a slow answer does not delay the next read.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broadside.agent.decide import control_problem
from broadside.exchange.messages import BurstEnd, Control
from broadside.exchange.ports import ExchangeError

# Timeout for a single read.
READ_S: Final = 3.0
# Maximum number of reads to run at a time.
READS_MAX_COUNT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlState:
    """The control row as it was for this request, or later. None if there is no row."""

    control: Control | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """The row could not be read, or has not been read yet."""

    why: str


class ControlReads:
    """Reads for the control row, with answers in the same order as the requests.

    Call :meth:`close` at the end.
    """

    def __init__(
        self, read: Callable[[], Awaitable[Control | None]], stopping: asyncio.Event
    ) -> None:
        self._read = read
        self._stop = asyncio.create_task(stopping.wait())
        # The oldest is the first.
        self._asked: list[asyncio.Task[ControlState | NoAnswer]] = []

    def ask(self) -> None:
        """Start a read, unless too many reads are in progress."""
        if len(self._asked) < READS_MAX_COUNT:
            self._asked.append(asyncio.create_task(self._ask()))

    async def _ask(self) -> ControlState | NoAnswer:
        try:
            async with asyncio.timeout(READ_S):
                return ControlState(control=await self._read())
        except (ExchangeError, TimeoutError) as error:
            return NoAnswer(why=str(error) or "no answer in time")
        except Exception as error:
            # The row cannot be parsed, for any reason.
            return NoAnswer(why=f"the row is unreadable: {type(error).__name__}")

    async def next(self, within_s: float) -> ControlState | NoAnswer | None:
        """Wait for an answer and return the newest one.

        Args:
            within_s: Maximum waiting time in seconds.

        Returns:
            An answer as soon as there is one, otherwise the last failure. None means that no read
            is in progress or that the agent is stopping.
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
                case ControlState() as answer:
                    # Their answers would be older.
                    for older in self._asked[:at]:
                        older.cancel()
                    del self._asked[: at + 1]
                    return answer
                case NoAnswer() as failure:
                    del self._asked[at]
        return failure

    async def close(self) -> None:
        """Cancel all reads."""
        tasks = (self._stop, *self._asked)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# Seconds before the planned start to read the control row again.
LAST_LOOK_S: Final = 1.2
# Seconds before the planned start by which the row should have been read.
LAST_WORD_S: Final = 0.5


@dataclass(slots=True, kw_only=True)
class ControlWatch:
    """Decides if a run should stop, also when its control row cannot always be read.

    The row has to be read at least once before the planned start. An expired lease is ignored until
    :data:`LAST_LOOK_S` before the start, because the coordinator might still renew it. The last
    answer can take until :data:`LAST_WORD_S` before the start.

    After that, a table outage is ignored while the last known lease is valid. When the lease
    expires, the agent will stop, even if the table is not available. This is used as a dead-man
    switch, so it should not wait for new data.

    Attributes:
        instant_s: Unix timestamp for the planned start.
    """

    instant_s: float
    _last: Control | None = None

    def pause_s(self, poll_s: float, now_s: float) -> float:
        """Return the seconds to wait until the next read, which will also be done at both marks.

        Args:
            poll_s: Regular interval between reads in seconds.
            now_s: Current Unix timestamp.
        """
        marks_s = (self.instant_s - LAST_LOOK_S, self.instant_s - LAST_WORD_S)
        return min([poll_s, *(mark_s - now_s for mark_s in marks_s if mark_s > now_s)])

    def judge(self, news: ControlState | NoAnswer | None, now_s: float) -> str | None:
        """Return why the run should stop after this answer.

        Args:
            news: Answer or failure to use, or None if there is no news.
            now_s: Current Unix timestamp.

        Returns:
            The reason for the report. None if the run can continue.
        """
        match news:
            case ControlState(control=control):
                return self.see(control, now_s)
            case NoAnswer(why=why):
                return self.miss(why, now_s)
            case None:
                return None

    def end_of(self, burst_index: int) -> BurstEnd | None:
        """Return the order to end a burst before its planned end, or None if there is none."""
        end = self._last.burst_end if self._last else None
        return end if end is not None and end.burst_index == burst_index else None

    def see(self, control: Control | None, now_s: float) -> str | None:
        """Store a row that was read.

        Args:
            control: The row, or None if there is no row.
            now_s: Current Unix timestamp.

        Returns:
            The reason to stop, for the report. None if the run can continue.
        """
        self._last = control
        return self._problem(now_s)

    def miss(self, why: str, now_s: float) -> str | None:
        """Return why the run should stop after a failed read.

        Args:
            why: Error message.
            now_s: Current Unix timestamp.

        Returns:
            The reason for the report. None if the run can continue.
        """
        if now_s < self.instant_s - LAST_WORD_S:
            return None
        if self._last is None:
            return f"the run's control row could not be read before the planned start: {why}"
        problem = self._problem(now_s)
        return problem and f"{problem} that could be seen; the control row is unreadable: {why}"

    def _problem(self, now_s: float) -> str | None:
        last = self._last
        is_early = now_s < self.instant_s - LAST_LOOK_S
        if is_early and last is not None and last.cancelled_at is None:
            return None
        return control_problem(last, datetime.fromtimestamp(now_s, UTC))
