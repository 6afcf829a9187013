"""Puts runs' jobs on the queue, and takes those of cancelled runs off it again."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from coordinator.core.moves import Move, pairs_in
from coordinator.core.runs import Burst, Plan
from coordinator.core.status import VISIBLE_S
from exchange.messages import Job
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
            moves = await self._records.read_moves(plan.run_id, Move)
            for burst in plan.bursts:
                now = self._now()
                if burst.index in queued or burst.planned_start_at <= now:
                    continue
                if await self._is_cancelled(plan.run_id):
                    break
                numbers = await self._queue.send(
                    [_outgoing(job, now) for job in _moved(plan, moves, burst).jobs(burst)]
                )
                await self._records.save_queued(plan.run_id, burst.index, numbers)
                if await self._is_cancelled(plan.run_id):
                    await self._queue.cancel(numbers)
                    break
            self._done.add(plan.run_id)

    async def _is_cancelled(self, run_id: str) -> bool:
        control = await self._records.read_control(run_id)
        return control is not None and control.cancelled_at is not None

    async def move(self, plan: Plan, moves: Sequence[Move]) -> None:
        """Replace the messages of pairs that were moved, in the bursts that are queued."""
        async with self._turns[plan.run_id]:
            queued = await self._records.read_queued(plan.run_id)
            places = {pair.index: place for place, pair in enumerate(plan.pairs)}
            first = min(move.from_burst_index for move in moves)
            for burst in plan.bursts[first:]:
                if burst.index not in queued:
                    continue  # will be queued with its moves
                numbers = list(queued[burst.index])
                meant = {
                    move.pair_index: move for move in moves if move.from_burst_index <= burst.index
                }
                jobs = [
                    job
                    for job in _moved(plan, tuple(meant.values()), burst).jobs(burst)
                    if job.pair_index in meant
                ]
                now = self._now()
                # The id that the queue dropped duplicates by is the first message's: another one.
                sent = await self._queue.send(
                    [
                        _outgoing(job, now, suffix=f".{meant[job.pair_index].from_burst_index}")
                        for job in jobs
                    ]
                )
                old = [numbers[places[job.pair_index]] for job in jobs]
                for job, number in zip(jobs, sent, strict=True):
                    numbers[places[job.pair_index]] = number
                await self._records.save_queued(plan.run_id, burst.index, numbers)
                await self._queue.cancel(old)

    async def take_off(self, plan: Plan) -> int:
        """Cancel the messages of a cancelled run's bursts to come; how many were still there."""
        queued = await self._records.read_queued(plan.run_id)
        now = self._now()
        to_come = {burst.index for burst in plan.bursts if burst.planned_start_at > now}
        numbers = [number for index in sorted(to_come) for number in queued.get(index, ())]
        return await self._queue.cancel(numbers) if numbers else 0


def _moved(plan: Plan, moves: Sequence[Move], burst: Burst) -> Plan:
    """The plan as it is in one burst."""
    if not moves:
        return plan
    return plan.model_copy(update={"pairs": pairs_in(plan, moves, burst.index)})


def _outgoing(job: Job, now: datetime, *, suffix: str = "") -> Outgoing:
    visible_at = job.planned_start_at - timedelta(seconds=VISIBLE_S)
    return Outgoing(
        body=job.model_dump_json().encode(),
        message_id=job.job_id + suffix,
        expires_at=job.planned_start_at,
        enqueue_at=visible_at if visible_at > now else None,
    )
