"""Helpers for background tasks that recover from errors and run as long as the process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final

# How long to wait after an unexpected error before we start the task again.
RESTART_PAUSE_S: Final = 5.0

log = logging.getLogger(__name__)


async def restart_on_error(work: Callable[[], Awaitable[None]]) -> None:
    """Run a background task to its end and restart it after an unexpected error.

    If a task raises an exception, a task group will cancel all its tasks. You can use this function
    to prevent that. For example, an error in the schedules should not stop the lease renewals.
    """
    while True:
        try:
            await work()
        except Exception:
            log.exception("unexpected", extra={"action": "error"})
            await asyncio.sleep(RESTART_PAUSE_S)
        else:
            return


class KeyedTaskRunner:
    """Runs tasks by key, at most one per key, without blocking the other keys."""

    def __init__(self) -> None:
        self._going: dict[str, asyncio.Task[None]] = {}

    async def go(
        self, works: Mapping[str, Callable[[], Coroutine[None, None, None]]], within_s: float
    ) -> None:
        """Start a task for each key that has no running task, and wait for these tasks.

        Args:
            works: Functions that create a coroutine, by key. A key with a running task is skipped.
            within_s: The maximum time to wait for the started tasks, in seconds. A task that needs
                longer continues in the background.

        Raises:
            Exception: A task has failed. If it fails after ``within_s``, the next call will raise
                the error.
        """
        self._clear()
        begun = {
            lane: asyncio.create_task(work())
            for lane, work in works.items()
            if lane not in self._going
        }
        self._going |= begun
        if begun:
            await asyncio.wait(begun.values(), timeout=within_s)
        self._clear()

    async def end(self) -> None:
        """Cancel all running tasks and wait for their end."""
        going, self._going = self._going, {}
        for task in going.values():
            task.cancel()
        await asyncio.gather(*going.values(), return_exceptions=True)

    def _clear(self) -> None:
        """Remove finished tasks and raise the error of the first task that failed."""
        for lane in [lane for lane, task in self._going.items() if task.done()]:
            self._going.pop(lane).result()
