"""Waiting and working beside a measurement, without ever getting in its way."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping

from broadside.exchange.ports import ExchangeError

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
        log.warning("%s", str(error) or "no answer in time", extra={"action": action, **context})
    except Exception:
        log.exception("unexpected", extra={"action": action, **context})
