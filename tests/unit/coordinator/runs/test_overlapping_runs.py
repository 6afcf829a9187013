"""Tests to find other runs that can be in the same device counter."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import OverlappingBursts
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.device.telemetry.run_span import RunSpan
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.overlapping_runs import (
    OLDER_MAX_COUNT,
    find_bursts_beside,
    find_overlapping_bursts,
)
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Control, Direction, Flow
from broadside.exchange.records import Document, RunHeader, RunOutcome
from tests.synthetic import Plant
from tests.synthetic import fleet as synthetic
from tests.unit.coordinator.presences import NOW, fleet

SPEC = {
    "scenario": "smoke",
    "pairs_count": 1,
    "bursts_count": 2,
    "burst_s": 10,
    "period_s": 60,
    "lead_s": 30,
    "objective": {"target_bits_per_second": 1e9},
}


@pytest.fixture
async def coordinator(fabric: Fabric) -> Coordinator:
    for agent in fleet(5):
        await fabric.records.fleet.beat(agent)
    return Coordinator(fabric, now=lambda: NOW)


async def launch(coordinator: Coordinator, **changes: Any) -> Plan:
    return await coordinator.launch(RunSpec.model_validate({**SPEC, **changes}), by="tester")


def seconds() -> BurstSeries:
    made = synthetic(Plant(pairs=1, bursts=1, burst_s=10))
    return measure_burst(made.plan.spec, made.evidence[0], made.now).series


async def measure(coordinator: Coordinator, plan: Plan, index: int) -> BurstSeries:
    """Store a series as if this burst were measured."""
    series = seconds()
    records = coordinator.fabric.records.private
    await records.save_document(plan.run_id, Document.SERIES, series.pack(), index)
    return series


def span_of(run_id: str, from_at: datetime = NOW - timedelta(seconds=360)) -> RunSpan:
    return RunSpan(
        run_id=run_id,
        from_at=from_at,
        before_at=NOW + timedelta(seconds=360),
        begun_at=NOW,
        ended_at=NOW + timedelta(seconds=20),
        direction=Direction.FORWARD,
    )


async def find(
    coordinator: Coordinator,
    *,
    begun_before_at: datetime = NOW,
    flows: tuple[Flow, ...] = (Flow.UP,),
    from_at: datetime = NOW - timedelta(seconds=360),
    counts_from_s: float | None = None,
) -> OverlappingBursts | None:
    empty = np.empty(0)
    device_counter = CounterRecord(
        source="lab",
        start_s=empty,
        end_s=empty,
        bytes=empty,
        grain_s=1.0,
        read_at=NOW,
        flows=flows,
        counts_from_s=counts_from_s,
    )
    return await find_overlapping_bursts(
        coordinator.fabric.records,
        coordinator.stored.read_plan,
        span_of("mine", from_at),
        device_counter,
        begun_before_at=begun_before_at,
    )


async def test_measured_bursts_of_other_runs_overlap(coordinator: Coordinator) -> None:
    plan = await launch(coordinator)
    series = [await measure(coordinator, plan, index) for index in (0, 1)]
    result = await find(coordinator)
    assert result is not None
    assert result.unknown_from_s is None
    assert [(item.run_id, item.burst_index) for item in result.bursts] == [
        (plan.run_id, 0),
        (plan.run_id, 1),
    ]
    for item, measured in zip(result.bursts, series, strict=True):
        assert item.start_s == measured.start_s
        np.testing.assert_array_equal(item.received_bytes, measured.received_bytes)
    again = OverlappingBursts.load(result.dump())
    assert again.bursts[1].run_id == plan.run_id
    np.testing.assert_array_equal(again.bursts[1].received_bytes, series[1].received_bytes)


async def test_ignores_bursts_before_the_counter_started(
    coordinator: Coordinator,
) -> None:
    """If the firewall is new, its bytes must not be explained by an old run."""
    plan = await launch(coordinator)
    for index in (0, 1):
        await measure(coordinator, plan, index)
    result = await find(coordinator, counts_from_s=plan.bursts[0].planned_end_at.timestamp())
    assert result is not None
    assert [burst.burst_index for burst in result.bursts] == [1]


async def test_waits_for_an_unmeasured_run_or_trims_the_counter(coordinator: Coordinator) -> None:
    plan = await launch(coordinator)
    await measure(coordinator, plan, 0)
    second_at = plan.bursts[1].planned_start_at
    later = await find(coordinator, begun_before_at=second_at)
    assert later is not None
    assert later.unknown_from_s == second_at.timestamp()
    assert OverlappingBursts.load(later.dump()).unknown_from_s == later.unknown_from_s
    assert await find(coordinator, begun_before_at=second_at + timedelta(seconds=1)) is None


async def test_run_that_the_counter_does_not_count_has_no_bytes(coordinator: Coordinator) -> None:
    around = await launch(coordinator, device={"path": "bypass"})
    await measure(coordinator, around, 0)
    stopped = await launch(coordinator)
    await coordinator.cancel(stopped.run_id, by="tester", reason="before its first burst")
    back = await launch(coordinator, traffic={"direction": "reverse"})
    await measure(coordinator, back, 0)
    await measure(coordinator, back, 1)
    recorded = await launch(coordinator)
    await coordinator.fabric.records.private.save_document(recorded.run_id, Document.IMPORT, b"{}")
    result = await find(coordinator, flows=(Flow.DOWN,))
    assert result is not None
    assert result.unknown_from_s is None
    assert {item.run_id for item in result.bursts} == {around.run_id, back.run_id}
    assert not any(
        item.received_bytes.any()
        for item in result.bursts
        # This is empty because only the upload has bytes.
    )
    of_one = [item for item in result.bursts if item.run_id == around.run_id]
    assert [(item.start_s, len(item.received_bytes)) for item in of_one] == [
        (int(burst.planned_start_at.timestamp()), burst.duration_s) for burst in around.bursts
    ]


async def test_telemetry_shows_the_bursts_of_other_runs_that_sent(coordinator: Coordinator) -> None:
    mine, other = await launch(coordinator), await launch(coordinator)
    await launch(coordinator, device={"path": "bypass"})
    stopped, recorded = await launch(coordinator), await launch(coordinator)
    await coordinator.cancel(stopped.run_id, by="tester", reason="before its first burst")
    records = coordinator.fabric.records
    await records.private.save_document(recorded.run_id, Document.IMPORT, b"{}")
    result = await find_bursts_beside(records, coordinator.stored.read_plan, span_of(mine.run_id))
    assert [(item.run_id, item.span_s) for item in result.bursts] == [
        (other.run_id, (burst.planned_start_at.timestamp(), burst.planned_end_at.timestamp()))
        for burst in other.bursts
    ]
    assert not any(item.has_traffic for item in result.bursts)


async def test_open_run_overlaps_despite_many_newer_runs(
    coordinator: Coordinator,
) -> None:
    plan = await launch(coordinator, bursts_count=1)
    await measure(coordinator, plan, 0)
    over = RunOutcome(cancelled=False, verdict="pass", ended_at=NOW, completeness_ratio=1.0)
    for number in range(OLDER_MAX_COUNT + 1):
        header = RunHeader(
            run_id=f"later-{number}",
            scenario="t",
            created_at=NOW + timedelta(seconds=1),
            created_by="tests",
            outcome=over,
        )
        await coordinator.fabric.records.private.show_run(header)
    result = await find(coordinator, from_at=NOW + timedelta(seconds=2))
    assert result is not None
    assert [burst.run_id for burst in result.bursts] == [plan.run_id]


async def test_ignores_unreadable_runs(coordinator: Coordinator) -> None:
    """If a run cannot be read, other runs should not have to wait for it."""
    plan = await launch(coordinator)
    for index in (0, 1):
        await measure(coordinator, plan, index)
    records = coordinator.fabric.records
    control = Control(run_id="any", lease_until_at=NOW)
    for run_id in ("foreign", "removed"):
        header = RunHeader(run_id=run_id, scenario="t", created_at=NOW, created_by="tests")
        await records.create_run(header, b'{"version": 99}', control)
    await records.drop_run("removed")
    damaged = await launch(coordinator)
    await records.private.save_document(damaged.run_id, Document.SERIES, b"no series", 0)
    result = await find(coordinator)
    assert result is not None
    assert [burst.run_id for burst in result.bursts] == [plan.run_id] * 2
