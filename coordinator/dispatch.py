"""Puts runs' jobs on the queue, and takes those of cancelled runs off it again."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta

from coordinator.core.runs import Burst, Plan
from coordinator.core.status import VISIBLE_S
from exchange.ports import JobQueue, Outgoing
from exchange.records import Records

log = logging.getLogger(__name__)


class Dispatch:
    """The jobs of this coordinator's runs on their way to the queue."""

    def __init__(self, queue: JobQueue, records: Records, now: Callable[[], datetime]) -> None:
        self._queue = queue
        self._records = records
        self._now = now
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._done: set[str] = set()  # runs of which nothing is left to queue, or to take off

    def forget(self, run_id: str) -> None:
        """The run is over."""
        self._turns.pop(run_id, None)
        self._done.discard(run_id)

    async def queue_bursts(self, plan: Plan) -> None:
        """Queue the jobs of every burst to come that no earlier attempt has queued.

        Dying between the send and the note queues them again: the queue drops the second copy by
        its id, and if the detection window has passed the copy loses its claim. A cancel in the
        middle ends it: each burst is noted first and the cancel looked for after, and who cancels
        does the reverse, so one of the two takes the burst's messages off.
        """
        async with self._turns[plan.run_id]:
            if plan.run_id in self._done:
                return
            queued = await self._records.read_queued(plan.run_id)
            for burst in plan.bursts:
                now = self._now()
                if burst.index in queued or burst.planned_start_at <= now:
                    continue
                numbers = await self._queue.send(
                    [
                        Outgoing(
                            body=job.model_dump_json().encode(),
                            message_id=job.job_id,
                            expires_at=burst.planned_start_at,
                            enqueue_at=_visible_at(burst, now),
                        )
                        for job in plan.jobs(burst)
                    ]
                )
                await self._records.save_queued(plan.run_id, burst.index, numbers)
                control = await self._records.read_control(plan.run_id)
                if control is not None and control.cancelled_at is not None:
                    await self._queue.cancel(numbers)
                    break
            self._done.add(plan.run_id)

    async def take_off(self, plan: Plan) -> int:
        """Cancel the messages of a cancelled run's bursts to come; how many were still there."""
        queued = await self._records.read_queued(plan.run_id)
        now = self._now()
        to_come = {burst.index for burst in plan.bursts if burst.planned_start_at > now}
        numbers = [number for index in sorted(to_come) for number in queued.get(index, ())]
        return await self._queue.cancel(numbers) if numbers else 0


def _visible_at(burst: Burst, now: datetime) -> datetime | None:
    """When a burst's jobs become receivable; None: at once."""
    visible_at = burst.planned_start_at - timedelta(seconds=VISIBLE_S)
    return visible_at if visible_at > now else None
