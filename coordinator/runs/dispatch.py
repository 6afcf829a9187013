"""Dispatch of jobs to the queue, and removal of jobs for cancelled runs."""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from broadside.coordinator.core.live.status import VISIBLE_S
from broadside.coordinator.core.plan.server_failover import Failover, jobs_in, servers_since
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.exchange.messages import Job
from broadside.exchange.pacing import turn_s
from broadside.exchange.ports import JobQueue, Outgoing
from broadside.exchange.records import Records

log = logging.getLogger(__name__)


class Dispatch:
    """Sender of this coordinator's jobs."""

    def __init__(self, queue: JobQueue, records: Records, now: Callable[[], datetime]) -> None:
        self._queue = queue
        self._records = records
        self._now = now
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Runs with no jobs left to queue.
        self._done: set[str] = set()
        # Moves that all queued messages of a run contain.
        self._carried: dict[str, frozenset[tuple[int, int]]] = {}

    def forget(self, run_id: str) -> None:
        """Drop the state for a run that is over."""
        self._turns.pop(run_id, None)
        self._done.discard(run_id)
        self._carried.pop(run_id, None)

    async def queue_bursts(self, plan: Plan, *, within_s: float = math.inf) -> None:
        """Queue jobs for every later burst that is not queued yet.

        If the process fails between the send and the note, the jobs will be queued again. The queue
        uses the message id to drop the second copy. After the detection window, the second copy
        cannot be claimed.

        A cancellation during this call ends it. This call notes each burst and then reads the
        cancellation. A cancellation does the reverse, so one of the two removes the messages of the
        burst.

        Args:
            plan: The plan to use.
            within_s: Time limit in seconds. The call returns after the burst that reaches it, and
                the next call will continue there. With a limit, the call returns at once if another
                call is active.
        """
        turn = self._turns[plan.run_id]
        if within_s < math.inf and turn.locked():
            return
        until_s = time.monotonic() + within_s
        async with turn:
            if plan.run_id in self._done:
                return
            queued = await self._records.private.read_queued(plan.run_id)
            for burst in plan.bursts:
                now = self._now()
                if burst.index in queued or burst.planned_start_at <= now:
                    continue
                if await self._is_cancelled(plan.run_id):
                    break
                jobs, since = await self._save_jobs(plan, burst)
                numbers = await self._queue.send([_outgoing(job, now, since) for job in jobs])
                moved = [since.get(pair.index) for pair in plan.pairs]
                await self._records.private.save_queued(plan.run_id, burst.index, numbers, moved)
                if await self._is_cancelled(plan.run_id):
                    await self._queue.cancel(numbers)
                    break
                if time.monotonic() >= until_s:
                    return
            self._done.add(plan.run_id)

    async def _is_cancelled(self, run_id: str) -> bool:
        control = await self._records.runs.read_control(run_id)
        return control is not None and control.cancelled_at is not None

    async def move(self, plan: Plan, moves: Sequence[Failover]) -> None:
        """Replace the messages of later bursts that do not contain these moves.

        A burst is noted after its new messages are queued and the old ones are removed. The next
        call therefore finishes a call that was interrupted. A repeated call has no effect. A burst
        that is not queued yet is queued later with its moves.

        Args:
            plan: The plan to use.
            moves: Moves that the messages need to contain.
        """
        wanted = frozenset((move.pair_index, move.from_burst_index) for move in moves)
        turn = self._turns[plan.run_id]
        if turn.locked() or wanted <= self._carried.get(plan.run_id, frozenset()):
            # A burst that is being queued at this time will get these moves at the next look.
            return
        async with turn:
            queued = await self._records.private.read_queued(plan.run_id)
            to_come = [burst for burst in plan.bursts if burst.planned_start_at > self._now()]
            for burst in to_come:
                there = queued.get(burst.index)
                if there is None:
                    continue
                needed = servers_since(moves, burst.index)
                lacking = [
                    place
                    for place, pair in enumerate(plan.pairs)
                    if _is_older(there.moved[place], needed.get(pair.index))
                ]
                if not lacking:
                    continue
                jobs, since = await self._save_jobs(plan, burst)
                now = self._now()
                sent = await self._queue.send([_outgoing(jobs[i], now, since) for i in lacking])
                await self._queue.cancel([there.numbers[place] for place in lacking])
                messages = {
                    place: (number, since[jobs[place].pair_index])
                    for place, number in zip(lacking, sent, strict=True)
                }
                await self._records.private.save_moved(plan.run_id, burst.index, messages)
                if await self._is_cancelled(plan.run_id):
                    await self._queue.cancel(sent)
                    return
            if all(burst.index in queued for burst in to_come):
                self._carried[plan.run_id] = wanted

    async def _save_jobs(self, plan: Plan, burst: Burst) -> tuple[list[Job], dict[int, int]]:
        """Store the jobs for a burst in the table that agents compare with each message.

        Returns:
            The jobs in pair order, with the servers after all recorded moves, and the first burst
            with this server by index of each pair that was moved.
        """
        moves = await self._records.runs.read_moves(plan.run_id, Failover)
        jobs, superseded = jobs_in(plan, moves, burst)
        await self._records.runs.save_jobs(plan.run_id, burst.index, jobs, superseded)
        return jobs, servers_since(moves, burst.index)

    async def remove_jobs(self, plan: Plan) -> int:
        """Remove the messages of a cancelled run's later bursts, and return the number removed."""
        queued = await self._records.private.read_queued(plan.run_id)
        now = self._now()
        to_come = {burst.index for burst in plan.bursts if burst.planned_start_at > now}
        numbers = [
            number for index in sorted(to_come & queued.keys()) for number in queued[index].numbers
        ]
        return await self._queue.cancel(numbers) if numbers else 0


def _is_older(since: int | None, needed: int | None) -> bool:
    """Return True if a message with a server since this burst does not contain a needed move."""
    return needed is not None and (since is None or since < needed)


def _outgoing(job: Job, now: datetime, since: Mapping[int, int]) -> Outgoing:
    """Return the message of a job. ``since`` has the first burst with the server of moved pairs."""
    visible_at = job.planned_start_at - timedelta(seconds=VISIBLE_S - turn_s(job.pair_index))
    # The queue will drop a message if the id has been used before, so we need a new id to move a
    # pair.
    suffix = f".{since[job.pair_index]}" if job.pair_index in since else ""
    return Outgoing(
        body=job.body,
        message_id=job.job_id + suffix,
        expires_at=job.planned_start_at,
        enqueue_at=visible_at if visible_at > now else None,
    )
