"""Work that goes on for as long as its process does, whatever happens to one round of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final

RESTART_PAUSE_S: Final = 5.0  # s after a fault of ours in a background task

log = logging.getLogger(__name__)


async def keep_going(work: Callable[[], Awaitable[None]]) -> None:
    """Run a background task to its end, starting it again after a fault of ours.

    A task group ends all its tasks when one raises: a schedule must not end leases.
    """
    while True:
        try:
            await work()
        except Exception:
            log.exception("unexpected", extra={"action": "error"})
            await asyncio.sleep(RESTART_PAUSE_S)
        else:
            return


class Lanes:
    """Works side by side: in each lane one at a time, and none waits behind another's."""

    def __init__(self) -> None:
        self._going: dict[str, asyncio.Task[None]] = {}

    async def go(
        self, works: Mapping[str, Callable[[], Coroutine[None, None, None]]], within_s: float
    ) -> None:
        """Begin each work whose lane is free, and wait for those begun, at most ``within_s`` (s).

        What takes longer goes on. What a work raises is raised here, or at a later call.
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
        """End what goes on."""
        going, self._going = self._going, {}
        for task in going.values():
            task.cancel()
        await asyncio.gather(*going.values(), return_exceptions=True)

    def _clear(self) -> None:
        for lane in [lane for lane, task in self._going.items() if task.done()]:
            self._going.pop(lane).result()
