"""Test runs that reach their budget, stopped between two bursts and judged, on all tables.

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
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
from broadside.exchange.messages import Control, Flow, Interval, Side, Track
from broadside.exchange.ports import Table
from broadside.exchange.records import Document, PrivateRecords, RunRecords
from tests.contract.adapters import OWN_TABLES, TABLES, Place
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
        # This is a scaled run. The budget is compared with the price at real scale.
        "scale": 100,
        "budget_usd": 5,
    }
)
# With its headers this costs $0.056 at real scale.
GIGABYTE = 1e9


@pytest.fixture(params=OWN_TABLES)
def table_place(request: pytest.FixtureRequest) -> Place:
    return TABLES[request.param].make(request)


@pytest.fixture
async def coordinator(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Coordinator]:
    # A slow table needs time to return its rows.
    monkeypatch.setattr(budgets_module, "LOOK_S", 60)
    queue = EmbeddedQueue(
        tmp_path / "queue", lock_s=60, deliveries_max_count=5, duplicates_s=600, busy_s=30
    )
    clock = Clock()
    made = Coordinator(fabric_in(queue, table), now=clock)
    for agent in fleet(3):
        await made.fabric.records.fleet.beat(agent)
    vars(made)["clock"] = clock
    yield made
    await queue.close()


def put_forward(coordinator: Coordinator, seconds: float) -> None:
    clock: Clock = vars(coordinator)["clock"]
    clock.forward(seconds)


async def send(coordinator: Coordinator, run_id: str, burst_index: int, payload: float) -> None:
    """Store ``payload`` bytes as the result of a burst that was not executed."""
    records = coordinator.fabric.records
    closed = (await records.private.read_closed(run_id, ClosedBurst))[burst_index]
    sent = closed.model_copy(update={"payload_bytes": round(payload)})
    await records.private.save_closed(run_id, burst_index, sent)


async def test_a_run_above_its_budget_is_refused_before_anything_is_stored(
    coordinator: Coordinator,
) -> None:
    dear = SOAK.model_copy(update={"budget_usd": 0.1})
    with pytest.raises(OverBudget, match=r"budget_usd: .* above its budget of \$0.10; raise"):
        await coordinator.launch(dear, by="tester")
    assert [run async for run in coordinator.fabric.records.private.list_runs()] == []


async def test_a_soak_stops_before_the_burst_that_would_cross_its_budget(
    coordinator: Coordinator,
) -> None:
    plan = await coordinator.launch(SOAK, by="tester")
    run_id = plan.run_id
    budgets = Budgets(coordinator)
    begin = await budgets.read(run_id)
    assert begin.spent.total_usd == pytest.approx(0, abs=0.01)
    put_forward(coordinator, (plan.bursts[0].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(run_id)
    # It costs $1.74, but the estimate is $0.07.
    await send(coordinator, run_id, 0, 0.3 * GIGABYTE)
    await budgets.tick()
    # The cost is within the budget.
    assert (await coordinator.stored.status(run_id)).cancel_reason is None
    put_forward(coordinator, 60)
    await coordinator.advance(run_id)
    await send(coordinator, run_id, 1, 0.4 * GIGABYTE)
    # A newly started instance has the same data.
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

    put_forward(coordinator, 1)
    await coordinator.advance(run_id)
    summary = await coordinator.stored.summary(run_id)
    assert summary is not None
    assert (summary.bursts_planned, [burst.index for burst in summary.bursts]) == (2, [0, 1])
    (finding,) = [result for result in summary.findings if result.id == "budget"]
    assert "2 of 4 bursts ran" in finding.sentence
    assert "above the budget of $5.00" in finding.sentence
    assert (await recomputed(coordinator, run_id)).summary.findings == summary.findings


async def upload(coordinator: Coordinator, plan: Plan, burst_index: int, payload: float) -> None:
    """Store seconds of a client for a burst without a measured result."""
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


async def test_bursts_that_are_over_and_not_measured_count(coordinator: Coordinator) -> None:
    plan = await coordinator.launch(SOAK, by="tester")
    budgets = Budgets(coordinator)
    await upload(coordinator, plan, 0, 0.3 * GIGABYTE)
    put_forward(coordinator, (plan.bursts[1].planned_start_at - NOW).total_seconds() - 2)
    await budgets.tick()
    # The cost is within the budget.
    assert (await coordinator.stored.status(plan.run_id)).cancel_reason is None
    await upload(coordinator, plan, 1, 0.4 * GIGABYTE)
    put_forward(coordinator, 50)
    await budgets.tick()
    # There is still time until the decision.
    assert (await coordinator.stored.status(plan.run_id)).cancel_reason is None
    put_forward(coordinator, 10)
    meter = await budgets.read(plan.run_id)
    assert meter.measured_bytes == pytest.approx(0.7 * GIGABYTE)
    await budgets.tick()
    reason = (await coordinator.stored.status(plan.run_id)).cancel_reason
    assert "burst 3 of 4" in (reason or "")


@one_table
async def test_a_run_whose_rows_do_not_answer_keeps_no_other_from_its_end(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await coordinator.launch(SOAK, by="tester", run_id="good")
    await coordinator.launch(SOAK, by="tester", run_id="stuck")
    # The run "good" is the last one to be checked.
    assert list(await coordinator.fabric.records.private.list_open())[-1] == "good"
    for burst_index in range(2):
        await upload(coordinator, plan, burst_index, 0.4 * GIGABYTE)
    put_forward(coordinator, (plan.bursts[2].planned_start_at - NOW).total_seconds() - 2)
    read, cancel, stopped = RunRecords.read_control, coordinator.cancel, asyncio.Event()

    async def told(run_id: str, *, by: str, reason: str) -> None:
        await cancel(run_id, by=by, reason=reason)
        stopped.set()

    async def stuck(records: RunRecords, run_id: str) -> Control | None:
        if run_id == "stuck":
            await asyncio.Event().wait()
        return await read(records, run_id)

    monkeypatch.setattr(coordinator, "cancel", told)
    monkeypatch.setattr(RunRecords, "read_control", stuck)
    monkeypatch.setattr(budgets_module, "LOOK_S", 0.1)
    async with asyncio.timeout(10):
        await Budgets(coordinator).tick()
        await stopped.wait()
    assert "burst 3 of 4" in ((await coordinator.stored.status("good")).cancel_reason or "")


@one_table
async def test_budgets_are_looked_at_however_long_a_tick_is(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test the check interval. After the start of a burst it is too late for a decision."""
    assert 2 * LOOK_S < DECIDE_S
    monkeypatch.setattr(budgets_module, "LOOK_S", 0.01)
    budgets, checks = Budgets(coordinator), 0
    again = asyncio.Event()

    async def look() -> None:
        nonlocal checks
        checks += 1
        if checks == 2:
            again.set()

    monkeypatch.setattr(budgets, "tick", look)
    guarding = asyncio.create_task(budgets.run_forever(60))
    async with asyncio.timeout(10):
        await again.wait()
    guarding.cancel()
    await asyncio.gather(guarding, return_exceptions=True)


@one_table
async def test_a_burst_that_was_measured_again_for_the_verdict_is_added_up_again(
    coordinator: Coordinator,
) -> None:
    plan = await coordinator.launch(SOAK.model_copy(update={"bursts_count": 1}), by="tester")
    budgets = Budgets(coordinator)
    put_forward(coordinator, (plan.bursts[0].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(plan.run_id)
    assert await coordinator.stored.summary(plan.run_id) is not None
    for payload in (7, 0.3 * GIGABYTE):
        await send(coordinator, plan.run_id, 0, payload)
        assert (await budgets.read(plan.run_id)).measured_bytes == pytest.approx(payload)


@one_table
async def test_what_a_run_has_cost_is_read_without_its_seconds(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that costs are read without the seconds, which can be hundreds of megabytes."""
    plan = await coordinator.launch(SOAK, by="tester")
    for burst_index in (0, 1):
        await upload(coordinator, plan, burst_index, 0.1 * GIGABYTE)
    put_forward(coordinator, (plan.bursts[-1].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(plan.run_id)
    assert await coordinator.stored.summary(plan.run_id) is not None
    read, names = PrivateRecords.read_document, []

    async def told(
        records: PrivateRecords, run_id: str, document: Document, *of: int
    ) -> bytes | None:
        names.append(document)
        return await read(records, run_id, document, *of)

    monkeypatch.setattr(PrivateRecords, "read_document", told)
    meter = await Budgets(coordinator).read(plan.run_id)
    assert meter.measured_bytes == pytest.approx(0.2 * GIGABYTE)
    assert names
    assert Document.SERIES not in names


async def test_what_an_older_broadside_measured_is_added_up_from_its_seconds(
    coordinator: Coordinator,
) -> None:
    plan = await coordinator.launch(SOAK, by="tester")
    await upload(coordinator, plan, 0, 0.1 * GIGABYTE)
    put_forward(coordinator, (plan.bursts[-1].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(plan.run_id)
    records = coordinator.fabric.records
    for index, closed in (await records.private.read_closed(plan.run_id, ClosedBurst)).items():
        older = closed.model_copy(update={"payload_bytes": None})
        await records.private.save_closed(plan.run_id, index, older)
    meter = await Budgets(coordinator).read(plan.run_id)
    assert meter.measured_bytes == pytest.approx(0.1 * GIGABYTE)


@one_table
async def test_nobody_elses_run_is_stopped(coordinator: Coordinator) -> None:
    free = SOAK.model_copy(update={"budget_usd": None})
    plan = await coordinator.launch(free, by="tester")
    put_forward(coordinator, (plan.bursts[0].planned_end_at - NOW).total_seconds() + 30)
    await coordinator.advance(plan.run_id)
    await send(coordinator, plan.run_id, 0, 1000 * GIGABYTE)
    await Budgets(coordinator).tick()
    assert (await coordinator.stored.status(plan.run_id)).cancelled_by is None
