"""Test runs that reach their budget, between two bursts and in a burst, on all tables.

Tests marked with :data:`one_table` use one table, because they do not depend on its adapter.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broadside.coordinator.core.plan.budget import STOPPED_BY
from broadside.coordinator.core.plan.cost_estimate import OverBudget
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.runs import budgets as budgets_module
from broadside.coordinator.runs.budgets import DECIDE_S, LOOK_S, Budgets
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.run_states import ClosedBurst
from broadside.coordinator.views.burst_responses import recomputed
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue, QueueRules
from broadside.exchange.messages import Control, Flow, Interval, Side, Track
from broadside.exchange.ports import Table
from broadside.exchange.records import Document, PrivateRecords, RunRecords
from tests.contract.adapters import COORDINATOR_TABLES, TABLES, Place
from tests.one_table import fabric_in
from tests.unit.coordinator.presences import NOW, Clock, fleet

one_table = pytest.mark.parametrize("table_place", ["embedded"], indirect=True)

SOAK = RunSpec.model_validate(
    {
        "scenario": "soak",
        "pairs_count": 1,
        "bursts_count": 4,
        "burst_s": 10,
        "period_s": 60,
        "objective": {"target_bits_per_second": 1e9},
        # This is a scaled run. The budget is compared to the price at real scale.
        "scale": 100,
        "budget_usd": 5,
    }
)
# With headers this will cost $0.056 at real scale.
GIGABYTE = 1e9


@pytest.fixture(params=COORDINATOR_TABLES)
def table_place(request: pytest.FixtureRequest) -> Place:
    return TABLES[request.param].make(request)


@pytest.fixture
async def coordinator(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Coordinator]:
    # A slow table needs time to return its rows.
    monkeypatch.setattr(budgets_module, "LOOK_S", 60)
    queue = EmbeddedQueue(
        tmp_path / "queue",
        QueueRules(lock_s=60, deliveries_max_count=5, duplicates_s=600),
        busy_s=30,
    )
    clock = Clock()
    new_coordinator = Coordinator(fabric_in(queue, table), now=clock)
    for agent in fleet(3):
        await new_coordinator.fabric.records.fleet.beat(agent)
    vars(new_coordinator)["clock"] = clock
    yield new_coordinator
    await queue.close()


def advance_clock(coordinator: Coordinator, seconds: float) -> None:
    clock: Clock = vars(coordinator)["clock"]
    clock.forward(seconds)


async def send(coordinator: Coordinator, run_id: str, burst_index: int, payload: float) -> None:
    """Store ``payload`` bytes as the result for a burst that was not executed."""
    records = coordinator.fabric.records
    closed = (await records.private.read_closed(run_id, ClosedBurst))[burst_index]
    sent = closed.model_copy(update={"payload_bytes": round(payload)})
    await records.private.save_closed(run_id, burst_index, sent)


async def test_run_above_its_budget_is_rejected_and_not_stored(
    coordinator: Coordinator,
) -> None:
    expensive = SOAK.model_copy(update={"budget_usd": 0.1})
    with pytest.raises(OverBudget, match=r"budget_usd: .* above its budget of \$0.10; raise"):
        await coordinator.launch(expensive, by="tester")
    assert [run async for run in coordinator.fabric.records.private.list_runs()] == []


async def test_run_stops_before_the_burst_that_exceeds_the_budget(
    coordinator: Coordinator,
) -> None:
    plan = await coordinator.launch(SOAK, by="tester")
    run_id = plan.run_id
    budgets = Budgets(coordinator)
    begin = await budgets.read(run_id)
    assert begin.spent.total_usd == pytest.approx(0, abs=0.01)
    advance_clock(coordinator, (plan.bursts[0].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(run_id)
    # It will cost $1.74, but the estimate is $0.07.
    await send(coordinator, run_id, 0, 0.3 * GIGABYTE)
    await budgets.tick()
    # The cost is within the budget.
    assert (await coordinator.stored.status(run_id)).cancel_reason is None
    advance_clock(coordinator, 60)
    await coordinator.advance(run_id)
    await send(coordinator, run_id, 1, 0.4 * GIGABYTE)
    # A new instance should use the same data.
    await Budgets(coordinator).tick()
    status = await coordinator.stored.status(run_id)
    assert status.cancelled_by == STOPPED_BY
    assert "burst 3 of 4" in (status.cancel_reason or "")
    assert "above the budget of $5.00" in (status.cancel_reason or "")
    counts = await coordinator.fabric.queue.counts()
    assert counts.scheduled_count == 0
    meter = await budgets.read(run_id)
    assert meter.stopped == status.cancel_reason
    assert 4 < (meter.spent.total_usd or 0) <= 5
    assert meter.real_ip_bytes == pytest.approx(70e9 * 1500 / 1448)

    advance_clock(coordinator, 1)
    await coordinator.advance(run_id)
    summary = await coordinator.stored.summary(run_id)
    assert summary is not None
    assert (summary.bursts_planned, [burst.index for burst in summary.bursts]) == (2, [0, 1])
    (finding,) = [result for result in summary.findings if result.id == "budget"]
    assert "2 of 4 bursts ran" in finding.sentence
    assert "plan-altered" not in {result.id for result in summary.findings}
    assert "above the budget of $5.00" in finding.sentence
    assert (await recomputed(coordinator, run_id)).summary.findings == summary.findings


async def upload(coordinator: Coordinator, plan: Plan, burst_index: int, payload: float) -> None:
    """Store client seconds for a burst without a measured result."""
    burst = plan.bursts[burst_index]
    seconds = tuple(
        Interval(start_s=i, end_s=i + 1, transferred_bytes=round(payload / burst.duration_s))
        for i in range(burst.duration_s)
    )
    track = Track(
        side=Side.CLIENT,
        flow=Flow.UP,
        first_data_at_s=burst.planned_start_at.timestamp(),
        intervals=seconds,
    )
    [job] = plan.jobs(burst)
    await coordinator.fabric.records.bursts.save_seconds(job, [track], [])


async def test_finished_bursts_without_measurement_are_counted(coordinator: Coordinator) -> None:
    plan = await coordinator.launch(SOAK, by="tester")
    budgets = Budgets(coordinator)
    await upload(coordinator, plan, 0, 0.3 * GIGABYTE)
    advance_clock(coordinator, (plan.bursts[1].planned_start_at - NOW).total_seconds() - 2)
    await budgets.tick()
    # The cost is within the budget.
    assert (await coordinator.stored.status(plan.run_id)).cancel_reason is None
    await upload(coordinator, plan, 1, 0.4 * GIGABYTE)
    advance_clock(coordinator, 50)
    await budgets.tick()
    # There is still time before the decision.
    assert (await coordinator.stored.status(plan.run_id)).cancel_reason is None
    advance_clock(coordinator, 10)
    meter = await budgets.read(plan.run_id)
    assert meter.measured_bytes == pytest.approx(0.7 * GIGABYTE)
    await budgets.tick()
    reason = (await coordinator.stored.status(plan.run_id)).cancel_reason
    assert "burst 3 of 4" in (reason or "")


async def test_burst_in_progress_stops_when_the_budget_is_spent(coordinator: Coordinator) -> None:
    plan = await coordinator.launch(SOAK, by="tester")
    run_id = plan.run_id
    await upload(coordinator, plan, 0, 0.1 * GIGABYTE)
    in_second_s = (plan.bursts[1].planned_start_at - NOW).total_seconds() + 5
    advance_clock(coordinator, in_second_s)
    await upload(coordinator, plan, 1, GIGABYTE)
    await Budgets(coordinator).tick()
    status = await coordinator.stored.status(run_id)
    assert status.cancelled_by == STOPPED_BY
    assert "are spent in burst 2 of 4, above the budget of $5.00" in (status.cancel_reason or "")
    advance_clock(coordinator, 60)
    await coordinator.advance(run_id)
    summary = await coordinator.stored.summary(run_id)
    assert summary is not None
    assert [burst.index for burst in summary.bursts] == [0]
    (finding,) = [result for result in summary.findings if result.id == "budget"]
    assert "1 of 4 bursts ran" in finding.sentence
    assert "plan-altered" not in {result.id for result in summary.findings}


@one_table
async def test_blocked_run_does_not_delay_the_stop_of_others(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await coordinator.launch(SOAK, by="tester", run_id="good")
    await coordinator.launch(SOAK, by="tester", run_id="stuck")
    # The run "good" will be checked last.
    assert list(await coordinator.fabric.records.private.list_open())[-1] == "good"
    for burst_index in range(2):
        await upload(coordinator, plan, burst_index, 0.4 * GIGABYTE)
    advance_clock(coordinator, (plan.bursts[2].planned_start_at - NOW).total_seconds() - 2)
    read, cancel, stopped = RunRecords.read_control, coordinator.cancel, asyncio.Event()

    async def recorded_call(run_id: str, *, by: str, reason: str) -> None:
        await cancel(run_id, by=by, reason=reason)
        stopped.set()

    async def stuck(records: RunRecords, run_id: str) -> Control | None:
        if run_id == "stuck":
            await asyncio.Event().wait()
        return await read(records, run_id)

    monkeypatch.setattr(coordinator, "cancel", recorded_call)
    monkeypatch.setattr(RunRecords, "read_control", stuck)
    monkeypatch.setattr(budgets_module, "LOOK_S", 0.1)
    async with asyncio.timeout(10):
        await Budgets(coordinator).tick()
        await stopped.wait()
    assert "burst 3 of 4" in ((await coordinator.stored.status("good")).cancel_reason or "")


@one_table
async def test_budgets_are_checked_independently_of_the_tick(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test the check interval. When a burst has started, it is too late for a decision."""
    assert 2 * LOOK_S < DECIDE_S
    monkeypatch.setattr(budgets_module, "LOOK_S", 0.01)
    budgets, checks = Budgets(coordinator), 0
    again = asyncio.Event()

    async def check_budgets() -> None:
        nonlocal checks
        checks += 1
        if checks == 2:
            again.set()

    monkeypatch.setattr(budgets, "tick", check_budgets)
    task = asyncio.create_task(budgets.run_forever(60))
    async with asyncio.timeout(10):
        await again.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@one_table
async def test_remeasured_burst_is_added_again(
    coordinator: Coordinator,
) -> None:
    plan = await coordinator.launch(SOAK.model_copy(update={"bursts_count": 1}), by="tester")
    budgets = Budgets(coordinator)
    advance_clock(coordinator, (plan.bursts[0].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(plan.run_id)
    assert await coordinator.stored.summary(plan.run_id) is not None
    for payload in (7, 0.3 * GIGABYTE):
        await send(coordinator, plan.run_id, 0, payload)
        assert (await budgets.read(plan.run_id)).measured_bytes == pytest.approx(payload)


@one_table
async def test_cost_is_read_without_the_seconds(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that costs can be read without the seconds, which can be hundreds of megabytes."""
    plan = await coordinator.launch(SOAK, by="tester")
    for burst_index in (0, 1):
        await upload(coordinator, plan, burst_index, 0.1 * GIGABYTE)
    advance_clock(coordinator, (plan.bursts[-1].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(plan.run_id)
    assert await coordinator.stored.summary(plan.run_id) is not None
    read, names = PrivateRecords.read_document, []

    async def recorded_call(
        records: PrivateRecords, run_id: str, document: Document, *of: int
    ) -> bytes | None:
        names.append(document)
        return await read(records, run_id, document, *of)

    monkeypatch.setattr(PrivateRecords, "read_document", recorded_call)
    meter = await Budgets(coordinator).read(plan.run_id)
    assert meter.measured_bytes == pytest.approx(0.2 * GIGABYTE)
    assert names
    assert Document.SERIES not in names


async def test_cost_of_an_older_version_is_computed_from_seconds(
    coordinator: Coordinator,
) -> None:
    plan = await coordinator.launch(SOAK, by="tester")
    await upload(coordinator, plan, 0, 0.1 * GIGABYTE)
    advance_clock(coordinator, (plan.bursts[-1].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(plan.run_id)
    records = coordinator.fabric.records
    for index, closed in (await records.private.read_closed(plan.run_id, ClosedBurst)).items():
        older = closed.model_copy(update={"payload_bytes": None})
        await records.private.save_closed(plan.run_id, index, older)
    meter = await Budgets(coordinator).read(plan.run_id)
    assert meter.measured_bytes == pytest.approx(0.1 * GIGABYTE)


@one_table
async def test_run_without_a_budget_is_not_stopped(coordinator: Coordinator) -> None:
    free = SOAK.model_copy(update={"budget_usd": None})
    plan = await coordinator.launch(free, by="tester")
    advance_clock(coordinator, (plan.bursts[0].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(plan.run_id)
    await send(coordinator, plan.run_id, 0, 1000 * GIGABYTE)
    await Budgets(coordinator).tick()
    assert (await coordinator.stored.status(plan.run_id)).cancelled_by is None
