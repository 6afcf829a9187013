"""Tests for a failover that another coordinator has to complete."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.core.plan.planner import PRESENCE_STALE_S
from broadside.coordinator.core.plan.server_failover import Failover
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.dispatch import Dispatch
from broadside.coordinator.runs.failover import LOOK_EVERY_S, RESUME_S
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.messages import Job, OutageKind, Role
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import QueueError
from broadside.exchange.records import RunRecords
from tests.one_table import fabric_in
from tests.unit.coordinator.presences import NOW, presence

SOAK = RunSpec(scenario="soak", pairs_count=2, bursts_count=4, burst_s=10, period_s=60, lead_s=55)
MOVED = {0: "server-001", 1: "server-003"}


class Died(BaseException):
    """Raised to simulate a crash."""


class Site:
    """Soak run for which a server will be silent, and to which several coordinators are added."""

    def __init__(self, folder: Path) -> None:
        self.at = NOW
        self.folder = folder
        self.fabric = fabric_in(
            self.queue(), EmbeddedTable(folder, "results"), OutageLog(lambda: self.at)
        )

    def queue(self, in_s: float = 0) -> EmbeddedQueue:
        return EmbeddedQueue(self.folder, clock=lambda: self.at.timestamp() + in_s)

    def coordinator(self) -> Coordinator:
        return Coordinator(self.fabric, now=lambda: self.at)

    async def pass_time(self, seconds: float, *servers: int) -> None:
        self.at += timedelta(seconds=seconds)
        for index in (1, 2):
            await self.fabric.records.fleet.beat(presence(Role.CLIENT, index, beat_at=self.at))
        for index in servers:
            await self.fabric.records.fleet.beat(presence(Role.SERVER, index, beat_at=self.at))

    async def servers_of(self, plan: Plan, burst_index: int) -> dict[int, str]:
        """Return the server by pair, and check that it has only one message."""
        at = plan.bursts[burst_index].planned_start_at
        queue = self.queue((at - self.at).total_seconds() - 1)
        by_name: dict[int, str] = {}
        while (delivery := await queue.receive(0)) is not None:
            job = Job.model_validate_json(delivery.body)
            if job.burst_index == burst_index:
                assert job.pair_index not in by_name
                by_name[job.pair_index] = job.endpoint.agent_id
        await queue.close()
        return by_name


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.pass_time(0, 1, 2)
    yield site
    await site.fabric.close()


async def test_no_failover_before_agents_can_send_a_heartbeat_again(site: Site) -> None:
    """If the table is not available, no agent is able to send a heartbeat."""
    spec = SOAK.model_copy(update={"lead_s": 80})
    coordinator = site.coordinator()
    plan = await coordinator.launch(spec, by="tests")
    await site.pass_time(15)
    site.fabric.troubles.failed(OutageKind.TABLE_AWAY)
    await site.pass_time(20)
    site.fabric.troubles.record_success(OutageKind.TABLE_AWAY)
    records = site.fabric.records
    # The spare server is the first to report.
    await site.pass_time(LOOK_EVERY_S, 3)
    await coordinator.advance(plan.run_id)
    assert await records.runs.read_moves(plan.run_id, Failover) == []
    # This server will not be available again.
    await site.pass_time(PRESENCE_STALE_S, 1, 3)
    await coordinator.advance(plan.run_id)
    [move] = await records.runs.read_moves(plan.run_id, Failover)
    assert move.left_agent_id == "server-002"


async def die(*_: object, **__: object) -> Any:
    raise Died


async def test_next_coordinator_executes_a_decided_failover(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await site.coordinator().launch(SOAK, by="tests")
    await site.pass_time(20, 1, 3)
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Dispatch, "move", die)
        await site.coordinator().advance(plan.run_id)
    assert len(await site.fabric.records.runs.read_moves(plan.run_id, Failover)) == 1
    await site.pass_time(RESUME_S, 1, 3)
    await site.coordinator().advance(plan.run_id)
    for burst in plan.bursts:
        assert await site.servers_of(plan, burst.index) == MOVED


@pytest.mark.parametrize("verb", ["send", "cancel"])
async def test_resumes_a_failover_after_the_first_burst(
    site: Site, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """After a crash or an error, the other messages are sent the next time."""
    coordinator = site.coordinator()
    plan = await coordinator.launch(SOAK, by="tests")
    await site.pass_time(20, 1, 3)
    real, calls = getattr(site.fabric.queue, verb), []

    async def refused(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise QueueError("no")
        return await real(*args)

    with monkeypatch.context() as patch, pytest.raises(QueueError):
        patch.setattr(site.fabric.queue, verb, refused)
        await coordinator.advance(plan.run_id)
    await site.pass_time(max(RESUME_S, LOOK_EVERY_S), 1, 3)
    await coordinator.advance(plan.run_id)
    queued = await site.fabric.records.private.read_queued(plan.run_id)
    assert [burst.moved for burst in queued.values()] == [(None, 0)] * 4
    before = await site.fabric.queue.counts()
    assert (before.active_count, before.scheduled_count) == (0, 8)
    # To do this again has no effect.
    for heir in (coordinator, site.coordinator()):
        await site.pass_time(LOOK_EVERY_S, 1, 3)
        await heir.advance(plan.run_id)
    assert await site.fabric.queue.counts() == before
    await coordinator.cancel(plan.run_id, by="tests", reason="all messages can be removed")
    left = await site.fabric.queue.counts()
    assert (left.active_count, left.scheduled_count) == (0, 0)


async def test_applies_a_failover_to_messages_queued_without_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages can be queued before it is known that a server has to be replaced."""
    plan = await site.coordinator().prepare(SOAK, by="tests", run_id="soak-1", listed=True)
    await site.pass_time(20, 1, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Dispatch, "queue_bursts", lambda *_, **__: site.pass_time(0))
        await site.coordinator().advance(plan.run_id)
    with monkeypatch.context() as patch:

        async def none(*_: object) -> list[Failover]:
            return []

        patch.setattr(RunRecords, "read_moves", none)
        await Dispatch(site.fabric.queue, site.fabric.records, lambda: site.at).queue_bursts(plan)
    assert len(await site.fabric.records.runs.read_moves(plan.run_id, Failover)) == 1
    await site.pass_time(RESUME_S, 1, 3)
    await site.coordinator().advance(plan.run_id)
    assert await site.servers_of(plan, 1) == MOVED
