"""Tests to store the inputs of a verdict when they no longer change."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.device.telemetry.run_span import RunSpan, run_span
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.input_collector import InputCollector
from broadside.coordinator.runs.stored_inputs import read_inputs
from broadside.exchange.messages import Flow
from tests.unit.coordinator.presences import NOW
from tests.unit.coordinator.runs.test_overlapping_runs import coordinator, launch, measure

# This is used as a fixture.
__all__ = ["coordinator"]

RECORD = CounterRecord(
    source="lab",
    start_s=np.arange(3.0),
    end_s=np.arange(3.0) + 1,
    bytes=np.array([1.0, np.nan, 2.5]),
    grain_s=1.0,
    read_at=NOW,
    flows=(Flow.UP,),
)


class Source:
    """Reader of a counter and of telemetry that has no result at first."""

    counter = SimpleNamespace(is_polled=False, latency=SimpleNamespace(lag_s=0.0))

    def __init__(self, result: CounterRecord | DeviceTelemetry) -> None:
        self.results = [None, result]

    async def read(self, span: RunSpan) -> Any:
        return self.results.pop(0)

    collect = read


async def collect(
    coordinator: Coordinator, plan: Plan, *, counter: Source | None, telemetry: Source | None
) -> list[bool]:
    """Return the results of three calls."""
    inputs = InputCollector(
        coordinator.fabric.records,
        coordinator.stored.read_plan,
        cast("Any", counter),
        cast("Any", telemetry),
    )
    return [await inputs.collect_inputs(plan, run_span(plan, None)) for _ in range(3)]


async def test_counter_is_stored_once_with_the_bursts_of_other_runs(
    coordinator: Coordinator,
) -> None:
    plan, other = await launch(coordinator), await launch(coordinator)
    for index in (0, 1):
        await measure(coordinator, other, index)
    assert await collect(coordinator, plan, counter=Source(RECORD), telemetry=None) == [
        False,
        True,
        True,
    ]
    inputs = await read_inputs(coordinator.fabric.records, plan, None)
    assert inputs.device_counter is not None
    np.testing.assert_array_equal(inputs.device_counter.bytes, RECORD.bytes)
    assert [one.run_id for one in inputs.context.neighbours] == [other.run_id] * 2
    assert all(one.has_traffic for one in inputs.context.neighbours)


async def test_counter_waits_until_another_run_is_measured(coordinator: Coordinator) -> None:
    plan, other = await launch(coordinator), await launch(coordinator)
    counter = Source(RECORD)
    assert not any(await collect(coordinator, plan, counter=counter, telemetry=None))
    # The record is not read a second time.
    assert counter.results == []
    assert (await read_inputs(coordinator.fabric.records, plan, None)).device_counter is None
    assert other.run_id != plan.run_id


async def test_telemetry_without_a_counter_has_the_times_of_other_runs(
    coordinator: Coordinator,
) -> None:
    plan, other = await launch(coordinator), await launch(coordinator)
    telemetry = Source(DeviceTelemetry(devices=("fw",), read_at=NOW))
    assert await collect(coordinator, plan, counter=None, telemetry=telemetry) == [
        False,
        True,
        True,
    ]
    context = (await read_inputs(coordinator.fabric.records, plan, None)).context
    assert context.telemetry is not None
    assert context.telemetry.devices == ("fw",)
    assert [one.run_id for one in context.neighbours] == [other.run_id] * 2
    assert not any(one.has_traffic for one in context.neighbours)
