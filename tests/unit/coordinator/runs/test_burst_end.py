"""Tests for bursts that end before their planned end."""

from datetime import timedelta

import pytest

from broadside.coordinator.core.live.status import BurstPhase
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.thresholds import Objective
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import BurstEnd, Control, EndCause
from broadside.exchange.pacing import CONTROL_PAIRS_COUNT
from tests.unit.coordinator.presences import Clock, fleet

SPEC = RunSpec(
    scenario="early",
    pairs_count=1,
    burst_s=280,
    bursts_count=2,
    period_s=300,
    objective=Objective(target_bits_per_second=1e9, stop="when-certain"),
)


async def launched(fabric: Fabric, clock: Clock, spec: RunSpec = SPEC) -> tuple[Coordinator, str]:
    for agent in fleet(2):
        await fabric.records.fleet.beat(agent)
    coordinator = Coordinator(fabric, now=clock)
    return coordinator, (await coordinator.launch(spec, by="tests")).run_id


async def test_first_order_shortens_the_burst_and_keeps_the_seal(
    fabric: Fabric, clock: Clock
) -> None:
    coordinator, run_id = await launched(fabric, clock)
    plan = await coordinator.stored.read_plan(run_id)
    assert all(job.may_end_early for job in plan.jobs(plan.bursts[0]))
    start_at = plan.bursts[0].planned_start_at
    clock.forward((start_at - clock()).total_seconds() + 70)
    at = start_at + timedelta(seconds=74)
    order = await coordinator.end_burst(run_id, 0, cause=EndCause.CERTAIN, reason="certain", at=at)
    again = await coordinator.end_burst(run_id, 0, cause=EndCause.GUARD, reason="late")
    assert order == again
    control = await fabric.records.runs.read_control(run_id)
    assert control is not None
    assert control.burst_end == order
    assert control.cancelled_at is None
    ended = await coordinator.stored.read_plan(run_id)
    first, second = ended.bursts
    assert (first.duration_s, first.longest_s, first.end) == (74, 280, order)
    assert (second.duration_s, second.end) == (280, None)
    assert ended.is_intact
    assert ended.digest() == plan.digest()
    # The jobs are those that were queued.
    assert list(ended.jobs(first)) == list(plan.jobs(plan.bursts[0]))
    clock.forward(10)
    status = await coordinator.stored.status(run_id)
    assert status.bursts[0].phase is BurstPhase.OVER
    assert status.bursts[1].phase is BurstPhase.PLANNED


async def test_burst_that_is_not_running_or_not_allowed_to_end_is_refused(
    fabric: Fabric, clock: Clock
) -> None:
    coordinator, run_id = await launched(fabric, clock)
    with pytest.raises(ValueError, match="not running"):
        await coordinator.end_burst(run_id, 0, cause=EndCause.CERTAIN, reason="certain")
    plain = SPEC.model_copy(update={"objective": Objective()})
    _, run_id = await launched(fabric, clock, plain)
    clock.forward(60)
    with pytest.raises(ValueError, match="do not allow"):
        await coordinator.end_burst(run_id, 0, cause=EndCause.CERTAIN, reason="certain")


async def test_order_is_in_all_copies_of_the_control_row(fabric: Fabric, clock: Clock) -> None:
    runs = fabric.records.runs
    control = Control(run_id="run-1", lease_until_at=clock(), copies_count=2)
    await runs.create("run-1", b"{}", control)
    end = BurstEnd(
        burst_index=3, at=clock(), cause=EndCause.CERTAIN, reason="certain", decided_at=clock()
    )
    await runs.end_burst("run-1", end)
    for pair_index in (0, CONTROL_PAIRS_COUNT):
        copy = await runs.read_control("run-1", pair_index)
        assert copy is not None
        assert copy.burst_end == end
    assert await runs.read_ends("run-1") == [end]
