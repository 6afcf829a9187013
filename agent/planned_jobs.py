"""Holds a job against its run's plan before anything of it is believed.

The queue is no proof: whoever may send to it may send a job. The coordinator writes what the jobs
of a burst hash to where agents cannot write (:mod:`exchange.records.job_digests`).
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from exchange.messages import Job
from exchange.ports import ExchangeError
from exchange.records import RunRecords
from exchange.records.job_digests import PlannedJobs, digest_of
from exchange.records.keys import JOBS_PAIRS_COUNT

READ_TIMEOUT_S: Final = 5.0
KEPT_COUNT: Final = 16  # rows, the latest


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan says the very same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """It was so planned, until the pair was given another server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlanned:
    """The plan says something else, or nothing."""

    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """What the plan says could not be read."""

    why: str


class PlannedJobReads:
    """At most one read a job; what was read is kept for the burst's other jobs."""

    def __init__(self, runs: RunRecords) -> None:
        self._runs = runs
        self._kept: OrderedDict[tuple[str, int, int], PlannedJobs] = OrderedDict()

    async def hold(self, job: Job, body: bytes) -> Planned | Superseded | NotPlanned | Unknown:
        """What the plan says of a message that reads as this job."""
        digest = digest_of(body)
        place = (job.run_id, job.burst_index, job.pair_index // JOBS_PAIRS_COUNT)
        kept = self._kept.get(place)
        if kept is not None and kept.by_pair.get(job.pair_index) == digest:
            return Planned()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                found = await self._runs.read_jobs(job.run_id, job.burst_index, job.pair_index)
        except (ExchangeError, TimeoutError) as error:
            return Unknown(why=str(error) or "no answer in time")
        if found is None:
            return NotPlanned(description=f"{job.job_id}: no plan on record has such a burst")
        self._keep(place, found)
        meant = found.by_pair.get(job.pair_index)
        if meant == digest:
            return Planned()
        if digest in found.superseded:
            return Superseded()
        if meant is None:
            return NotPlanned(description=f"{job.job_id}: the run's plan has no such pair")
        return NotPlanned(
            description=f"{job.job_id}: this is not the job that the run's plan has for the pair "
            f"(SHA-256 {digest.hex()[:16]}..., planned {meant.hex()[:16]}...)"
        )

    def _keep(self, place: tuple[str, int, int], found: PlannedJobs) -> None:
        self._kept[place] = found
        self._kept.move_to_end(place)
        while len(self._kept) > KEPT_COUNT:
            self._kept.popitem(last=False)
