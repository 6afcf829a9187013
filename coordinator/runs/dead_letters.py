"""Dead letters, which are messages that agents have rejected.

They can be read, explained, sent again and removed.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from broadside.coordinator.request_errors import CannotResend, UnknownDeadLetter
from broadside.exchange.messages import (
    JOB_MAX_BYTES,
    Claim,
    Job,
    Message,
    OptionalBurstIndex,
    UtcDatetime,
    pair_name,
)
from broadside.exchange.ports import DeadLetter, JobQueue
from broadside.exchange.records import Records
from broadside.exchange.strict_json import parse_strict_model

BODY_SHOWN_CHARS: Final = 200

_AGAIN: Final = "then launch again: the run's later bursts send jobs of their own"
_SENDER: Final = (
    "another program than this Broadside sent it: find the sender by the message id, and allow "
    "only coordinators to send (role 'Azure Service Bus Data Sender')"
)
# Advice by the first field that the rejecting agent names (agent/decide.py).
_REFUSALS: Final[Mapping[str, str]] = {
    "endpoint.address": "if the target is a server of this fleet, add its network to "
    f"BROADSIDE_AGENT_ALLOWED_NETWORKS on every client agent, restart them, {_AGAIN}",
    "endpoint.port": "serve from ports of 1024 and above, or lower "
    f"BROADSIDE_AGENT_TARGET_PORT_MIN on every client agent, restart them, {_AGAIN}",
    "duration_s": "launch a shorter burst, or raise BROADSIDE_AGENT_DURATION_MAX_S on every client "
    f"agent, restart them, {_AGAIN}",
    "traffic.stream_bits_per_second": "pace the streams (traffic.stream_bits_per_second), or raise "
    f"BROADSIDE_AGENT_BITS_PER_SECOND_MAX on every client agent, restart them, {_AGAIN}",
    "version": f"install the coordinator's version of Broadside on that agent, {_AGAIN}",
}
_REASONS: Final[Mapping[str, str]] = {
    "NotJson": _SENDER,
    "NotAJob": _SENDER,
    "TooMuch": _SENDER,
    "Unreadable": _SENDER,
    "NotPlanned": f"it is a job, but differs from the run's plan: {_SENDER}",
    "UnsupportedVersion": f"install one version of Broadside on coordinator and agents, {_AGAIN}",
    "MaxDeliveryCountExceeded": "agents received it several times and stopped, or did not "
    "write to the table: read the agent logs of that time, and run `broadside doctor` on one",
    "TTLExpiredException": "no agent received it before its start time: start as many client "
    "agents as pairs. Turn off dead-lettering on expiration; the coordinator detects missed jobs",
}
_FOREIGN: Final = (
    "Broadside does not set messages aside for this reason: find the program that reads the queue"
)


class DeadJob(Message):
    """A dead letter with its cause and advice.

    Attributes:
        sequence_number: Number of the message in the queue.
        message_id: Id of the message.
        reason: Reason code of the agent.
        description: Why the agent rejected the message.
        dead_at: Time when it was rejected. None if the queue does not report it.
        run_id: Id of the run. None if the body is not a job.
        pair_index: Index of the pair, from 0. None if the body is not a job.
        target: Address and port of the pair's server. None if the body is not a job.
        planned_start_at: Planned start of the burst. None if the body is not a job.
        claimed_by: Agent that claimed the job. None if it was not claimed.
        body: The first characters of the body.
        advice: What to do.
        resend_problem: Why it cannot be sent again. None if it can.
    """

    sequence_number: int
    message_id: str
    reason: str
    description: str
    dead_at: UtcDatetime | None = None
    run_id: str | None = None
    burst_index: OptionalBurstIndex = None
    pair_index: int | None = None
    target: str | None = None
    planned_start_at: UtcDatetime | None = None
    claimed_by: str | None = None
    body: str
    advice: str
    resend_problem: str | None = None

    @property
    def pair(self) -> str | None:
        return None if self.pair_index is None else pair_name(self.pair_index)


def read_dead_job(letter: DeadLetter) -> Job | None:
    """Return the job in a dead letter, or None if this version cannot read one."""
    try:
        return parse_strict_model(Job, letter.body, JOB_MAX_BYTES)
    except ValueError:
        return None


def explain(letter: DeadLetter, job: Job | None, claim: Claim | None, now: datetime) -> DeadJob:
    """Explain a dead letter and give advice.

    Args:
        letter: The dead letter.
        job: The job in the letter, or None if it has no valid job.
        claim: The stored claim of the job, or None if it was not claimed.
        now: The current time to use.

    Returns:
        The letter with its cause in words, its advice, and whether it can be resent.
    """
    return DeadJob(
        sequence_number=letter.sequence_number,
        message_id=letter.message_id,
        reason=letter.reason,
        description=letter.description,
        dead_at=letter.dead_at,
        run_id=job and job.run_id,
        burst_index=None if job is None else job.burst_index,
        pair_index=None if job is None else job.pair_index,
        target=job and _target(job),
        planned_start_at=job and job.planned_start_at,
        claimed_by=claim and claim.agent_id,
        body=letter.body[: 4 * BODY_SHOWN_CHARS].decode(errors="replace")[:BODY_SHOWN_CHARS],
        advice=_advice(letter),
        resend_problem=_resend_problem(job, claim, now),
    )


def _target(job: Job) -> str:
    address = job.endpoint.address
    return (
        f"[{address}]:{job.endpoint.port}" if ":" in address else f"{address}:{job.endpoint.port}"
    )


def _advice(letter: DeadLetter) -> str:
    if letter.reason != "Refused":
        return _REASONS.get(letter.reason, _FOREIGN)
    # The text after the agent's name.
    _, _, refusal = letter.description.partition(": ")
    field = refusal.partition(":")[0]
    return _REFUSALS.get(field, "follow the description on the agent that it names")


def _resend_problem(job: Job | None, claim: Claim | None, now: datetime) -> str | None:
    """Return the reason for which a job cannot run again, or None.

    A late job is a missed measurement. A claimed job is already recorded.
    """
    if job is None:
        return "its body is not a job that this Broadside knows; an agent would set it aside again"
    overdue_s = (now - job.planned_start_at).total_seconds()
    if overdue_s >= 0:
        return (
            f"start time {job.planned_start_at:%Y-%m-%d %H:%M:%S}Z passed {overdue_s:.0f} s ago: "
            "a late job is a missed measurement; launch again"
        )
    if claim is not None:
        return (
            f"agent {claim.agent_id} already claimed it, so agents would drop a second delivery; "
            "correct the cause and launch again"
        )
    return None


# Number of the oldest dead letters that a search by number reads.
_LOOKED_AT: Final = 1000

log = logging.getLogger(__name__)


class DeadLetters:
    """Dead letters of one queue."""

    def __init__(self, queue: JobQueue, records: Records, now: Callable[[], datetime]) -> None:
        self._queue = queue
        self._records = records
        self._now = now

    async def oldest(
        self, limit: int, *, from_number: int = 0, run_id: str | None = None
    ) -> list[DeadJob]:
        """Return the oldest dead letters with explanations, at most ``limit``.

        Args:
            limit: Maximum number of dead letters to return.
            from_number: Smallest sequence number.
            run_id: Run of the jobs. None means all.
        """
        if not from_number and run_id is None:
            return await self._explain(await self._queue.dead_letters(limit))
        letters = [
            letter
            for letter in await self._queue.dead_letters(_LOOKED_AT)
            if letter.sequence_number >= from_number
        ]
        if run_id is None:
            return await self._explain(letters[:limit])
        return [job for job in await self._explain(letters) if job.run_id == run_id][:limit]

    async def read(self, sequence_number: int) -> DeadJob:
        """Return one dead letter with its explanation.

        Raises:
            UnknownDeadLetter: No dead letter has this number.
        """
        letters = await self._queue.dead_letters(_LOOKED_AT)
        matches = [letter for letter in letters if letter.sequence_number == sequence_number]
        if not matches:
            raise UnknownDeadLetter(sequence_number)
        return (await self._explain(matches))[0]

    async def resend(self, sequence_number: int) -> DeadJob:
        """Put the job from a dead letter back on the queue until it is due to start.

        Raises:
            UnknownDeadLetter: No dead letter has this number.
            CannotResend: The job cannot produce a measurement any more.
        """
        dead = await self.read(sequence_number)
        if dead.resend_problem is not None or dead.planned_start_at is None:
            raise CannotResend(f"dead letter {sequence_number}: {dead.resend_problem}")
        if not await self._queue.resend(sequence_number, dead.planned_start_at):
            raise UnknownDeadLetter(sequence_number)
        log.info("resent %s", dead.message_id, extra={"action": "resend", "run_id": dead.run_id})
        return dead

    async def purge(self, sequence_number: int) -> DeadJob:
        """Delete a dead letter permanently, and return the explanation for it.

        Raises:
            UnknownDeadLetter: No dead letter has this number.
        """
        dead = await self.read(sequence_number)
        if not await self._queue.purge(sequence_number):
            raise UnknownDeadLetter(sequence_number)
        log.info("purged %s", dead.message_id, extra={"action": "purge", "run_id": dead.run_id})
        return dead

    async def purge_oldest(self, limit: int) -> int:
        """Delete at most ``limit`` dead letters permanently, and return the number deleted."""
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
