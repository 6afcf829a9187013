"""Tests for endpoints, which must not be used by more than one open run."""

import asyncio
from datetime import datetime, timedelta

import pytest

from broadside.coordinator.core.plan.planner import Infeasible
from broadside.coordinator.core.run_spec import Plan, RunSpec, due_at
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.presences import NOW, Clock, fleet

TWO = RunSpec(scenario="two", pairs_count=2, bursts_count=2, burst_s=10, period_s=60, lead_s=30)


async def store_heartbeats(fabric: Fabric, pairs_count: int, at: datetime = NOW) -> None:
    for presence in fleet(pairs_count):
        await fabric.records.fleet.beat(presence.model_copy(update={"beat_at": at}))


@pytest.fixture
async def coordinator(fabric: Fabric, clock: Clock) -> Coordinator:
    """Return a coordinator of a fleet with two pairs."""
    await store_heartbeats(fabric, 2)
    return Coordinator(fabric, now=clock)


def ports(*plans: Plan) -> list[tuple[str, int]]:
    return [
        (pair.endpoint.agent_id, port)
        for plan in plans
        for pair in plan.pairs
        for port in pair.endpoint.ports
    ]


@pytest.mark.parametrize("launches_count", [2, 5])
async def test_concurrent_launches_share_no_endpoint(fabric: Fabric, launches_count: int) -> None:
    await store_heartbeats(fabric, 2 * launches_count)
    others = [Coordinator(fabric, now=Clock()) for _ in range(launches_count)]
    plans = await asyncio.gather(*(other.launch(TWO, by="test") for other in others))
    assert len(set(ports(*plans))) == 2 * launches_count


async def test_refusal_lists_the_runs_that_reserve_endpoints(fabric: Fabric) -> None:
    await store_heartbeats(fabric, 3)
    coordinator = Coordinator(fabric, now=Clock())
    first = await coordinator.launch(TWO, by="test")
    with pytest.raises(Infeasible) as refused:
        await coordinator.launch(TWO, by="test")
    text = str(refused.value)
    assert "have 1 free ports" in text
    assert "but 3 client agents are live; 2 ports and 2 clients are reserved" in text
    assert first.run_id in text
    assert [header.run_id async for header in fabric.records.private.list_runs()] == [first.run_id]


async def test_run_reserves_its_endpoints_between_bursts(
    fabric: Fabric, clock: Clock, coordinator: Coordinator
) -> None:
    plan = await coordinator.launch(TWO, by="test")
    clock.at = plan.bursts[0].planned_end_at + timedelta(seconds=20)
    await store_heartbeats(fabric, 2, clock.at)
    with pytest.raises(Infeasible):
        await coordinator.launch(TWO, by="test")


async def test_cancelled_run_releases_its_endpoints(coordinator: Coordinator) -> None:
    first = await coordinator.launch(TWO, by="test")
    await coordinator.cancel(first.run_id, by="test", reason="enough")
    second = await coordinator.launch(TWO, by="test")
    assert sorted(ports(second)) == sorted(ports(first))


async def test_dropped_run_releases_its_endpoints(
    coordinator: Coordinator,
) -> None:
    await coordinator.prepare(TWO, by="schedule", run_id="hidden")
    with pytest.raises(Infeasible):
        await coordinator.launch(TWO, by="test")
    await coordinator.drop("hidden")
    await coordinator.launch(TWO, by="test")


async def test_reservation_of_a_dead_coordinator_ends_with_its_run(fabric: Fabric) -> None:
    await store_heartbeats(fabric, 2)
    clock = Clock()
    dead = await Coordinator(fabric, now=clock).launch(TWO, by="test")
    clock.at = due_at(dead.bursts[-1])
    await store_heartbeats(fabric, 2, clock.at)
    alive = await Coordinator(fabric, now=clock).launch(TWO, by="test")
    assert sorted(ports(alive)) == sorted(ports(dead))


async def test_repeated_launch_gets_its_reserved_endpoints(coordinator: Coordinator) -> None:
    """The first attempt can fail before the run is stored."""
    drafted = (await coordinator.draft(TWO)).model_copy(update={"run_id": "again"})
    await coordinator._reservations.take(drafted)
    await coordinator.launch(TWO, by="test", run_id="again")


def test_changed_plan_is_not_intact() -> None:
    plan = Plan(run_id="r", created_at=NOW, spec=TWO, pairs=(), bursts=()).sealed()
    stored = Plan.model_validate_json(plan.model_dump_json())
    assert stored.is_intact
    assert stored.seal_sha256 == plan.digest()
    eased = TWO.model_copy(update={"clock_bound_max_s": 5.0})
    assert not stored.model_copy(update={"spec": eased}).is_intact
