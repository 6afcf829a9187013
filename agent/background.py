"""Waiting and working beside a measurement, without ever getting in its way."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from exchange.ports import ExchangeError

RESTART_PAUSE_S: Final = 5.0  # s after a fault of ours in a background task

log = logging.getLogger(__name__)


async def pause(stopping: asyncio.Event, pause_s: float) -> None:
    """Wait, but not for an agent that is stopping."""
    try:
        async with asyncio.timeout(pause_s):
            await stopping.wait()
    except TimeoutError:
        pass


async def safely(work: Awaitable[object], action: str, context: Mapping[str, object]) -> None:
    """Do what must not stop a measurement; a failure is logged."""
    try:
        await work
    except (ExchangeError, TimeoutError) as error:
        log.warning("%s", error or "no answer in time", extra={"action": action, **context})
    except Exception:
        log.exception("unexpected", extra={"action": action, **context})


async def keep_going(work: Callable[[], Awaitable[None]]) -> None:
    """Run a background task to its end, starting it again after a fault of ours."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("unexpected", extra={"action": "error"})
            await asyncio.sleep(RESTART_PAUSE_S)
        else:
            return
