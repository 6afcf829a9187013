"""What the coordinator itself lived through, kept with each run, and a look at the queue.

A coordinator has no use for the queue between its sends; an outage while bursts run would go
unseen. So while it looks after a run it asks the queue for a sign of life every few seconds, and
the adapter dates what fails.
"""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from broadside.coordinator.core.plan.spec import Plan
from broadside.exchange.messages import Trouble
from broadside.exchange.ports import ExchangeError, JobQueue
from broadside.exchange.records import Document, Records
from broadside.exchange.troubles import TroubleLog

LOOK_S: Final = 2.0  # s between two looks at the queue

_TROUBLES: Final = TypeAdapter(tuple[Trouble, ...])


async def watch_queue(queue: JobQueue, is_needed: Callable[[], bool]) -> None:
    """Ask for signs of life while somebody needs the queue, until cancelled."""
    while True:
        if is_needed():
            with contextlib.suppress(ExchangeError):  # its adapter has dated it
                await queue.ping()
        await asyncio.sleep(LOOK_S)


async def keep_troubles(
    records: Records, plan: Plan, log: TroubleLog, now: datetime
) -> tuple[Trouble, ...]:
    """Store what happened since a run's launch, once: it must recompute to the same bytes."""
    kept = await records.private.read_document(plan.run_id, Document.TROUBLES)
    if kept is not None:
        return _TROUBLES.validate_json(kept)
    troubles = log.between(plan.created_at, now)
    if troubles:
        listed = ",".join(trouble.to_json() for trouble in troubles)
        await records.private.save_document(plan.run_id, Document.TROUBLES, f"[{listed}]".encode())
    return troubles


async def read_troubles(records: Records, run_id: str) -> tuple[Trouble, ...]:
    kept = await records.private.read_document(run_id, Document.TROUBLES)
    return () if kept is None else _TROUBLES.validate_json(kept)
