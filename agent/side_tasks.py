"""Helpers for tasks that should never affect a measurement."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping

from broadside.exchange.ports import ExchangeError

log = logging.getLogger(__name__)


async def pause(stopping: asyncio.Event, pause_s: float) -> None:
    """Wait for some seconds, or until the agent is stopping.

    Args:
        stopping: Set when the agent should stop.
        pause_s: Seconds to wait.
    """
    try:
        async with asyncio.timeout(pause_s):
            await stopping.wait()
    except TimeoutError:
        pass


async def safely(work: Awaitable[object], action: str, context: Mapping[str, object]) -> None:
    """Wait for a task that should not stop a measurement, and log any error.

    Args:
        work: Task to wait for.
        action: Name of the action in the log.
        context: More fields for the log.
    """
    try:
        await work
    except (ExchangeError, TimeoutError) as error:
        log.warning("%s", str(error) or "no answer in time", extra={"action": action, **context})
    except Exception:
        log.exception("unexpected", extra={"action": action, **context})
