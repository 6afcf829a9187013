"""Outages of the coordinator itself, stored with each run, and a health check of the queue.

The coordinator does not use the queue between sends, so an outage during a burst would not be
detected. While a run is open, it therefore pings the queue every few seconds. The queue adapter
records the time of each failure.
"""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import Final

from broadside.coordinator.core.run_spec import Plan
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import ExchangeError, JobQueue
from broadside.exchange.records import Document, Records

# Time between two pings of the queue.
LOOK_S: Final = 2.0


async def watch_queue(queue: JobQueue, is_needed: Callable[[], bool]) -> None:
    """Ping the queue periodically while it is needed, until cancelled.

    Args:
        queue: The queue.
        is_needed: Function to check if any run is open.
    """
    while True:
        if is_needed():
            # The queue adapter records the failure.
            with contextlib.suppress(ExchangeError):
                await queue.ping()
        await asyncio.sleep(LOOK_S)


async def save_outages(records: Records, plan: Plan, log: OutageLog, now: datetime) -> None:
    """Store the outages since a run's launch, only once, so that a recomputed verdict is equal.

    Args:
        records: Records to use for access to the tables.
        plan: The plan to use.
        log: Outages of this process.
        now: The current time to use.
    """
    troubles = log.between(plan.created_at, now)
    if troubles and await records.private.read_document(plan.run_id, Document.TROUBLES) is None:
        listed = ",".join(trouble.to_json() for trouble in troubles)
        await records.private.save_document(plan.run_id, Document.TROUBLES, f"[{listed}]".encode())
