"""Reads of a run's control row that overlap, so that a slow answer holds up no later question."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from exchange.messages import Control
from exchange.ports import ExchangeError

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
