from datetime import timedelta
from typing import Any

import pytest

from broadside.agent import worker as worker_module
from broadside.agent.decide import read_job
from broadside.agent.worker import Worker
from broadside.exchange.messages import Claim, Job, JobPhase, JobReport, Outcome, Traffic
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Entity, ExchangeUnavailable
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryQueue, MemoryTable, make_tools, work_until_idle
from tests.unit.agent.jobs import make_job


class LaterTraffic(Traffic):
    """Traffic with a field from a later version."""

    colour: str = "none"


class LaterJob(Job):
    traffic: LaterTraffic


class Bench:
    """Worker with an in-memory queue and table."""

    def __init__(self, **settings: Any) -> None:
        self.queue = MemoryQueue()
        self.table = MemoryTable()
        self.records = records_in(self.table)
        self.worker = Worker(queue=self.queue, tools=make_tools(self.records, **settings))

    async def take(self, body: bytes, message_id: str = "m1", *, planned: bool = True) -> None:
        """Process one message and stop. Use ``planned`` to add the job to the stored plan."""
        job = read_job(body)
        if planned and isinstance(job, Job) and not self.table.away:
            await self.records.runs.save_jobs(job.run_id, job.burst_index, [job])
            self.table.written.clear()
        self.queue.put(body, message_id)
        await work_until_idle(self.worker, self.queue)

    async def report(self) -> JobReport:
        return (await self.records.bursts.read_reports("run-1", 0))[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(worker_module, "CLAIM_PAUSE_S", 0.01)
    monkeypatch.setattr(worker_module, "PAUSE_S", 0.01)
    return Bench()


def due_in(seconds: float, **changes: Any) -> Job:
    return make_job(planned_start_at=utc_now() + timedelta(seconds=seconds), **changes)


async def test_invalid_message_is_dead_lettered_with_reason(bench: Bench) -> None:
    await bench.take(b"10.2.1.3 5201")
    verb, message_id, reason, description = bench.queue.settled[0]
    assert (verb, message_id, reason) == ("dead_letter", "m1", "NotJson")
    assert "not JSON" in description
    assert not bench.table.rows


async def test_job_of_a_later_version_is_refused_with_a_report(bench: Bench) -> None:
    traffic = LaterTraffic(colour="red")
    job = LaterJob.model_validate(dict(due_in(60)) | {"traffic": traffic})
    await bench.records.runs.save_jobs(job.run_id, job.burst_index, [job])
    await bench.take(job.body, planned=False)
    verb, _, reason, description = bench.queue.settled[0]
    assert (verb, reason) == ("dead_letter", "Refused")
    assert "client-1: traffic.colour: this agent does not know 'red'" in description
    report = await bench.report()
    assert report.outcome is Outcome.REFUSED
    assert "install the coordinator's Broadside" in (report.reason or "")


async def test_a_refused_job_is_claimed_and_reported_before_it_is_dead_lettered(
    bench: Bench,
) -> None:
    job = due_in(60, endpoint={"agent_id": "s", "address": "8.8.8.8", "port": 5201})
    await bench.take(job.body)
    verb, _, reason, description = bench.queue.settled[0]
    assert (verb, reason) == ("dead_letter", "Refused")
    assert "client-1: endpoint.address: 8.8.8.8" in description
    report = await bench.report()
    assert report.outcome is Outcome.REFUSED
    assert report.reason is not None
    assert bench.table.written[:2] == ["claim.00002", "report.00002"]
    claim = (await bench.records.bursts.read_claims("run-1", 0))[2]
    assert claim.phase is JobPhase.REPORTED


async def test_a_late_job_is_missed_and_its_message_settled(bench: Bench) -> None:
    await bench.take(due_in(-2).body)
    assert bench.queue.settled == [("complete", "m1")]
    report = await bench.report()
    assert report.outcome is Outcome.MISSED
    assert "after the planned start" in (report.reason or "")


async def test_second_delivery_does_not_change_the_claim(bench: Bench) -> None:
    job = due_in(-2)
    other = Claim(
        job_id=job.job_id,
        agent_id="client-2",
        phase=JobPhase.RUNNING,
        claimed_at=utc_now(),
    )
    await bench.records.bursts.claim(job, other)
    await bench.take(job.body)
    assert bench.queue.settled == [("complete", "m1")]
    assert await bench.records.bursts.read_reports("run-1", 0) == {}
    assert await bench.records.bursts.read_claims("run-1", 0) == {2: other}


async def test_claim_with_a_lost_answer_is_recognised(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = bench.table.insert
    answers = 0

    async def lose_first_answer(entity: Entity) -> str:
        nonlocal answers
        answers += 1
        etag = await insert(entity)
        if answers == 1:
            raise ExchangeUnavailable("cut")
        return etag

    monkeypatch.setattr(bench.table, "insert", lose_first_answer)
    await bench.take(due_in(-2).body)
    assert (await bench.report()).outcome is Outcome.MISSED
    assert bench.queue.settled == [("complete", "m1")]


async def test_replaced_job_is_dropped_without_a_finding(bench: Bench) -> None:
    old = due_in(-2)
    endpoint = {"agent_id": "server-2", "address": "10.2.1.4", "port": 5201}
    new = Job.model_validate(old.model_dump() | {"endpoint": endpoint})
    await bench.records.runs.save_jobs("run-1", 0, [new], [old])
    bench.queue.put(old.body, "old")
    await bench.take(new.body, "new", planned=False)
    assert bench.queue.settled == [("complete", "old"), ("complete", "new")]
    assert (await bench.report()).troubles == ()


async def test_jobs_of_a_burst_are_read_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [due_in(-2, pair_index=index) for index in range(3)]
    await bench.records.runs.save_jobs("run-1", 0, jobs)
    get, reads = bench.table.get, []

    async def count(partition_key: str, row_key: str) -> Entity | None:
        reads.append(row_key)
        return await get(partition_key, row_key)

    monkeypatch.setattr(bench.table, "get", count)
    for job in jobs[:2]:
        bench.queue.put(job.body, job.pair)
    await bench.take(jobs[2].body, planned=False)
    assert len(await bench.records.bursts.read_reports("run-1", 0)) == 3
    assert reads == ["jobs.00000.0000"]


async def test_message_is_returned_if_the_table_is_unavailable(bench: Bench) -> None:
    bench.table.away = True
    # The agent will retry for this time, and should not run a job without a check.
    await bench.take(due_in(0.2).body)
    assert bench.queue.settled == [("abandon", "m1")]
    assert not bench.table.rows
