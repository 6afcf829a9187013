"""Client agent, which takes a job from the queue and runs it until there is a report.

The order of the steps is important if this process dies at any point::

    receive   The message is locked. If the agent dies, another agent will get it.
    check     The plan of the run, which agents cannot write, must have the same job. Otherwise
              the message goes to the dead-letter queue. If the plan is not available, the job
              is not run.
    claim     The row can be created only once, so no other agent can send from now on. If the
              agent dies, there is no report, and the coordinator will mark the job as abandoned.
    settle    If the agent dies before this, the message is delivered again. The second agent
              cannot claim the job and drops the message.
    arm       The engine dies with this process. The gate sends nothing before the planned start.
    control   If the run was cancelled or there is no coordinator, the engine is stopped before
              the planned start.
    run       Rows are updated every few seconds using the same keys. The server's agent records
              its own end, no matter how this agent ends.
    report    The seconds are written first and the report after that, so a job with a report has
              all its rows.

The settings of this agent can reject a job (target, limits, version). Such a job is claimed,
reported and then sent to the dead-letter queue, in this order. This way it is recorded once, and an
operator can see it. It is not given to another agent, because the settings there are most likely
the same. If the clock gate rejects a job some minutes later, the message is already settled, so
there is only a report.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, assert_never

from broadside.agent.agent_context import Tools
from broadside.agent.claimed_job import TROUBLES_BEFORE, ClaimedJob
from broadside.agent.decide import InvalidJob, JobOutcome, Unfamiliar, check, read_job
from broadside.agent.presence import AgentHealth
from broadside.agent.side_tasks import pause, safely
from broadside.exchange.messages import (
    Claim,
    Job,
    JobPhase,
    JobReport,
    OutageKind,
    Outcome,
    plain_text,
)
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Delivery, ExchangeError, JobQueue
from broadside.exchange.records import RunRecords
from broadside.exchange.records.job_digests import PlannedJobs, digest_of
from broadside.exchange.records.keys import JOBS_PAIRS_COUNT

READ_TIMEOUT_S: Final = 5.0


# Number of rows to keep in memory.
KEPT_COUNT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan has the same job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """The job was planned, but the pair has been moved to another server since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlanned:
    """The plan has a different job or none at all."""

    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The plan is not available."""

    why: str


class PlannedJobReads:
    """Compares jobs with the plan, using at most one request per job.

    The rows are kept in memory for other jobs in the same burst.
    """

    def __init__(self, runs: RunRecords) -> None:
        self._runs = runs
        self._cached: OrderedDict[tuple[str, int, int], PlannedJobs] = OrderedDict()

    async def find(self, job: Job, body: bytes) -> Planned | Superseded | NotPlanned | Unknown:
        """Compare a message with the plan of the run.

        Args:
            job: Job in the message.
            body: Body of the message.

        Returns:
            Planned if the digests match, otherwise superseded, not planned, or unknown (no plan
            available).
        """
        digest = digest_of(body)
        place = (job.run_id, job.burst_index, job.pair_index // JOBS_PAIRS_COUNT)
        cached = self._cached.get(place)
        if cached is not None and cached.by_pair.get(job.pair_index) == digest:
            return Planned()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                planned = await self._runs.read_jobs(job.run_id, job.burst_index, job.pair_index)
        except (ExchangeError, TimeoutError) as error:
            return Unknown(why=str(error) or "no answer in time")
        if planned is None:
            return NotPlanned(description=f"{job.job_id}: no plan on record has such a burst")
        self._cache(place, planned)
        planned_job = planned.by_pair.get(job.pair_index)
        if planned_job == digest:
            return Planned()
        if digest in planned.superseded:
            return Superseded()
        if planned_job is None:
            return NotPlanned(description=f"{job.job_id}: the run's plan does not have this pair")
        return NotPlanned(
            description=f"{job.job_id}: this is not the job that the run's plan has for the pair "
            f"(SHA-256 {digest.hex()[:16]}..., planned {planned_job.hex()[:16]}...)"
        )

    def _cache(self, place: tuple[str, int, int], planned: PlannedJobs) -> None:
        self._cached[place] = planned
        self._cached.move_to_end(place)
        while len(self._cached) > KEPT_COUNT:
            self._cached.popitem(last=False)


# Seconds to wait before trying again while the queue is not available.
PAUSE_S: Final = 2.0
# Part of the lock time of a message that is needed to settle it.
LOCK_MARGIN: Final = timedelta(seconds=10)
CLAIM_TRIES: Final = 3
CLAIM_PAUSE_S: Final = 0.5

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Worker:
    """Main loop of a client agent.

    ``receive_wait_s`` is the time in seconds to wait for a message.
    """

    queue: JobQueue
    tools: Tools
    receive_wait_s: float = 2.0
    _busy: bool = False
    _planned_jobs: PlannedJobReads = field(init=False)

    def __post_init__(self) -> None:
        self._planned_jobs = PlannedJobReads(self.tools.records.runs)

    def condition(self) -> AgentHealth:
        """Return the state of this agent for the heartbeat."""
        return AgentHealth(
            busy=self._busy,
            engine=self.tools.engine,
            gate=self.tools.gate is not None,
            tunnels=self.tools.tunnels,
            engines=tuple(installed.state for installed in self.tools.installed_engines.values()),
        )

    async def run(self) -> None:
        """Take jobs from the queue until the agent is stopping."""
        stopping = self.tools.stopping
        while not stopping.is_set():
            try:
                delivery = await self._receive()
            except ExchangeError as error:
                log.warning("no jobs: %s", error, extra={"action": "receive_failed"})
                await pause(stopping, PAUSE_S)
                continue
            except Exception:
                # An unexpected error in an adapter should not stop this agent.
                log.exception("no jobs", extra={"action": "receive_failed"})
                await pause(stopping, PAUSE_S)
                continue
            if delivery is None:
                continue
            if stopping.is_set():
                await self._settle(self.queue.abandon(delivery))
            else:
                await self._take_safely(delivery)

    async def _receive(self) -> Delivery | None:
        """Return a message, or None if there is none or the agent is stopping."""
        receiving = asyncio.create_task(self.queue.receive(self.receive_wait_s))
        stop = asyncio.create_task(self.tools.stopping.wait())
        try:
            await asyncio.wait({receiving, stop}, return_when=asyncio.FIRST_COMPLETED)
            return await receiving if receiving.done() else None
        finally:
            for task in (receiving, stop):
                # If a message was locked, it is given back.
                task.cancel()
            await asyncio.gather(receiving, stop, return_exceptions=True)

    # One message ------------------------------------------------------------------------------

    async def _take_safely(self, delivery: Delivery) -> None:
        """Handle a message. An error should only affect this message, and never the agent."""
        try:
            await self._take(delivery)
        except Exception as error:
            log.exception("message failed", extra={"action": "error"})
            self.tools.troubles.happened(OutageKind.UNREADABLE)
            reason = f"{type(error).__name__} while it was taken"
            await self._settle(self.queue.dead_letter(delivery, "Unreadable", reason))

    async def _take(self, delivery: Delivery) -> None:
        planned = read_job(delivery.body)
        if isinstance(planned, InvalidJob):
            log.error(
                "poison message %s: %s",
                plain_text(delivery.message_id, 200),
                planned.description,
                extra={"action": "dead_letter"},
            )
            self.tools.troubles.happened(OutageKind.UNREADABLE)
            await self._settle(
                self.queue.dead_letter(delivery, planned.reason, planned.description)
            )
            return
        job = planned.job if isinstance(planned, Unfamiliar) else planned
        context = {"job_id": job.job_id}
        if not await self._believe(job, delivery):
            return
        now = utc_now()
        claim = Claim(
            job_id=job.job_id,
            agent_id=self.tools.settings.agent_id,
            phase=JobPhase.CLAIMED,
            claimed_at=now,
        )
        try:
            won = await self._claim(job, claim)
        except ExchangeError as error:
            log.warning("no claim: %s", error, extra={"action": "claim_failed", **context})
            await self._settle(self.queue.abandon(delivery))
            await pause(self.tools.stopping, PAUSE_S)
            return
        if not won:
            self.tools.troubles.happened(OutageKind.DUPLICATE)
            log.info(
                "another agent has already claimed this job",
                extra={"action": "claim_lost", **context},
            )
            await self._settle(self.queue.complete(delivery))
            return
        if isinstance(planned, Unfamiliar):
            ending: JobOutcome | None = JobOutcome(outcome=Outcome.REFUSED, reason=planned.reason)
        else:
            ending = check(job, self.tools.settings, now)
        if ending is not None and ending.outcome is Outcome.REFUSED:
            await self._finish(job, claim, self._standing_report(job, claim, ending))
            await self._settle(
                self.queue.dead_letter(delivery, "Refused", f"{claim.agent_id}: {ending.reason}")
            )
            return
        await self._settle(self.queue.complete(delivery))
        if ending is not None:
            await self._finish(job, claim, self._standing_report(job, claim, ending))
            return
        self._set_busy(True)
        try:
            await self._conduct(job, claim)
        finally:
            self._set_busy(False)

    async def _believe(self, job: Job, delivery: Delivery) -> bool:
        """Return True if the run's plan has the same job. If not, settle the message.

        While the plan is not available, the message is kept until its lock ends or until its
        planned start. After that it is given back or the job is missed. A job is never run without
        this check.
        """
        context = {"job_id": job.job_id}
        until_at = min(delivery.locked_until_at - LOCK_MARGIN, job.planned_start_at)
        while True:
            lookup = await self._planned_jobs.find(job, delivery.body)
            match lookup:
                case Planned():
                    return True
                case Superseded():
                    log.info("its pair moved", extra={"action": "superseded", **context})
                    await self._settle(self.queue.complete(delivery))
                    return False
                case NotPlanned():
                    self.tools.troubles.happened(OutageKind.FORGED)
                    log.error("%s", lookup.description, extra={"action": "not_planned", **context})
                    await self._settle(
                        self.queue.dead_letter(delivery, "NotPlanned", lookup.description)
                    )
                    return False
                case Unknown():
                    log.warning(
                        "the job could not be verified: %s",
                        lookup.why,
                        extra={"action": "plan_unread", **context},
                    )
                case _:
                    assert_never(lookup)
            await pause(self.tools.stopping, PAUSE_S)
            if self.tools.stopping.is_set() or utc_now() >= until_at:
                await self._settle(self.queue.abandon(delivery))
                return False

    async def _claim(self, job: Job, claim: Claim) -> bool:
        """Create the claim row, and try again if there is no response.

        If only the response was lost, the second try will find the row. Raises ``ExchangeError`` if
        the table is still not available after that.
        """
        for _ in range(CLAIM_TRIES - 1):
            try:
                return await self.tools.records.bursts.claim(job, claim)
            except ExchangeError:
                await asyncio.sleep(CLAIM_PAUSE_S)
        return await self.tools.records.bursts.claim(job, claim)

    async def _conduct(self, job: Job, claim: Claim) -> None:
        log.info(
            "claimed %s, due at %s",
            job.pair,
            job.planned_start_at.isoformat(),
            extra={"action": "claim", "job_id": job.job_id},
        )
        burst = ClaimedJob(job, claim, self.tools)
        report = await burst.conduct()
        await self._finish(job, burst.claim, report)

    async def _finish(self, job: Job, claim: Claim, report: JobReport) -> None:
        """Save the report and then set the claim to its last phase."""
        log.log(
            logging.INFO if report.outcome is Outcome.MEASURED else logging.WARNING,
            "%s",
            report.reason or "as planned",
            extra={"action": "report", "job_id": job.job_id, "outcome": report.outcome},
        )
        try:
            await self.tools.results.save_report(report)
            await self.tools.results.save_claim(
                job, claim.model_copy(update={"phase": JobPhase.REPORTED})
            )
        except ExchangeError:
            # The spool handles outages, so in this case the row was rejected.
            log.exception("no report", extra={"action": "report_failed", "job_id": job.job_id})

    def _standing_report(self, job: Job, claim: Claim, ending: JobOutcome) -> JobReport:
        """Return the report of a job for which nothing was started."""
        return JobReport(
            job_id=job.job_id,
            run_id=job.run_id,
            burst_index=job.burst_index,
            pair_index=job.pair_index,
            agent_id=self.tools.settings.agent_id,
            outcome=ending.outcome,
            reason=ending.reason,
            planned_start_at=job.planned_start_at,
            reported_at=utc_now(),
            troubles=self.tools.troubles.new_since(claim.claimed_at - TROUBLES_BEFORE),
        )

    async def _settle(self, verb: Awaitable[None]) -> None:
        """Settle a message.

        If this fails, the message will be delivered again, but the claim already exists.
        """
        await safely(verb, "settle_failed", {})

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        self.tools.changed.set()
