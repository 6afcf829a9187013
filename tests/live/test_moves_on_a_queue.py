"""Test the jobs of a soak on a real queue, with a failover to a spare server and an abort."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broadside.coordinator.core.plan.server_failover import Failover
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.dispatch import Dispatch
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Control, Job, Role
from tests.unit.coordinator.presences import presence

pytestmark = [pytest.mark.live, pytest.mark.asyncio]

SOAK = RunSpec(scenario="soak", pairs_count=2, bursts_count=4, burst_s=10, period_s=40, lead_s=8)


async def publish_heartbeats(fabric: Fabric, *servers: int, silent: int | None = None) -> None:
    """Publish heartbeats for the agents.

    For the ``silent`` server, use a heartbeat from a minute ago.
    """
    now = datetime.now(UTC)
    for index in (1, 2):
        await fabric.records.fleet.beat(presence(Role.CLIENT, index, beat_at=now))
    for index in servers:
        beat_at = now - timedelta(seconds=60 if index == silent else 0)
        await fabric.records.fleet.beat(presence(Role.SERVER, index, beat_at=beat_at))


async def jobs_at(data_path: Path, in_s: float) -> list[Job]:
    """Return the jobs for agents to receive ``in_s`` from now."""
    queue = EmbeddedQueue(data_path, clock=lambda: time.time() + in_s)
    jobs = []
    while (delivery := await queue.receive(0)) is not None:
        jobs.append(Job.model_validate_json(delivery.body))
    await queue.close()
    return jobs


async def test_moves_jobs_of_a_dead_server_once(tmp_path: Path) -> None:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path))
    try:
        one, twin = Coordinator(fabric), Coordinator(fabric)
        await publish_heartbeats(fabric, 1, 2)
        plan = await one.launch(SOAK, by="test")
        before = await fabric.queue.counts()
        await publish_heartbeats(fabric, 1, 2, 3, silent=2)
        await one.advance(plan.run_id)
        await twin.advance(plan.run_id)
        [failover] = await fabric.records.runs.read_moves(plan.run_id, Failover)
        assert (failover.left_agent_id, failover.endpoint.agent_id) == ("server-002", "server-003")
        assert failover.from_burst_index == 1, (
            "an agent may have received the jobs of the first burst"
        )
        assert await fabric.queue.counts() == before, "the number of messages changed"
        status = await one.stored.status(plan.run_id)
        assert any("from burst 2 on it is replaced by server-003" in w for w in status.warnings)
        jobs = await jobs_at(tmp_path, 35)
    finally:
        await fabric.close()
    second = {job.pair_index: job.endpoint.agent_id for job in jobs if job.burst_index == 1}
    assert second == {0: "server-001", 1: "server-003"}
    assert len([job for job in jobs if job.burst_index == 1]) == 2


async def test_cancel_removes_queued_bursts(tmp_path: Path) -> None:
    """Test two coordinators that queue and cancel in any order."""
    fabric = open_fabric(FabricSettings(data_dir=tmp_path))
    try:
        await publish_heartbeats(fabric, 1, 2)
        one, twin = Coordinator(fabric), Coordinator(fabric)
        plan = await one.prepare(SOAK, by="test", run_id="soak-1", listed=True)
        await twin.cancel(plan.run_id, by="ann", reason="too dear")
        await Dispatch(fabric.queue, fabric.records, one.now).queue_bursts(plan)
        counts = await fabric.queue.counts()
        assert (counts.scheduled_count, counts.active_count) == (0, 0)
        control = await fabric.records.runs.read_control(plan.run_id)
    finally:
        await fabric.close()
    assert control is not None
    assert (control.cancelled_by, control.cancel_reason) == ("ann", "too dear")


async def test_unattended_run_keeps_its_fixed_end(
    tmp_path: Path,
) -> None:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path))
    try:
        await publish_heartbeats(fabric, 1, 2)
        coordinator = Coordinator(fabric)
        spec = SOAK.model_copy(update={"unattended_s": 600})
        plan = await coordinator.launch(spec, by="test")
        first = await fabric.records.runs.read_control(plan.run_id)
        await coordinator.advance(plan.run_id)
        later = await fabric.records.runs.read_control(plan.run_id)
    finally:
        await fabric.close()
    expected = Control(run_id=plan.run_id, lease_until_at=plan.created_at + timedelta(seconds=600))
    assert first == later == expected
