"""Work that goes on for as long as its process does, whatever happens to one round of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
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
