"""The queue's dead letters with what the table knows of them: read, sent again, purged."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from coordinator.runs.dead_letters import (
    CannotResend,
    DeadJob,
    UnknownDeadLetter,
    explain,
    read_dead_job,
)
from exchange.messages import Claim
from exchange.ports import DeadLetter, JobQueue
from exchange.records import Records

_LOOKED_AT: Final = 1000  # oldest dead letters among which one is looked up by number

log = logging.getLogger(__name__)


class DeadLetters:
    """The dead letters of one queue."""

    def __init__(self, queue: JobQueue, records: Records, now: Callable[[], datetime]) -> None:
        self._queue = queue
        self._records = records
        self._now = now

    async def oldest(self, limit: int) -> list[DeadJob]:
        """The oldest dead letters, explained."""
        return await self._explain(await self._queue.dead_letters(limit))

    async def read(self, sequence_number: int) -> DeadJob:
        """Raises :class:`~coordinator.runs.dead_letters.UnknownDeadLetter`."""
        letters = await self._queue.dead_letters(_LOOKED_AT)
        found = [each for each in letters if each.sequence_number == sequence_number]
        if not found:
            raise UnknownDeadLetter(sequence_number)
        return (await self._explain(found))[0]

    async def resend(self, sequence_number: int) -> DeadJob:
        """Put a dead letter's job back on the queue until its instant.

        Raises :class:`~coordinator.runs.dead_letters.UnknownDeadLetter`,
        :class:`~coordinator.runs.dead_letters.CannotResend`.
        """
        dead = await self.read(sequence_number)
        if dead.resend_problem is not None or dead.planned_start_at is None:
            raise CannotResend(f"dead letter {sequence_number}: {dead.resend_problem}")
        if not await self._queue.resend(sequence_number, dead.planned_start_at):
            raise UnknownDeadLetter(sequence_number)
        log.info("resent %s", dead.message_id, extra={"action": "resend", "run_id": dead.run_id})
        return dead

    async def purge(self, sequence_number: int) -> DeadJob:
        """Remove one for good, and say what it was.

        Raises :class:`~coordinator.runs.dead_letters.UnknownDeadLetter`.
        """
        dead = await self.read(sequence_number)
        if not await self._queue.purge(sequence_number):
            raise UnknownDeadLetter(sequence_number)
        log.info("purged %s", dead.message_id, extra={"action": "purge", "run_id": dead.run_id})
        return dead

    async def purge_oldest(self, limit: int) -> int:
        """Remove at most so many for good; returns how many went."""
        count = await self._queue.purge(limit=limit)
        log.info("purged %d dead letters", count, extra={"action": "purge"})
        return count

    async def _explain(self, letters: Sequence[DeadLetter]) -> list[DeadJob]:
        now = self._now()
        claims: dict[tuple[str, int], Mapping[int, Claim]] = {}
        explained = []
        for letter in letters:
            job, claim = read_dead_job(letter), None
            if job is not None:
                burst = (job.run_id, job.burst_index)
                if burst not in claims:
                    claims[burst] = await self._records.bursts.read_claims(*burst)
                claim = claims[burst].get(job.pair_index)
            explained.append(explain(letter, job, claim, now))
        return explained
