"""Tests to store counter readings, so that they can be used after a restart."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.run_span import RunSpan
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.overlapping_runs import planned_bursts
from broadside.coordinator.runs.reading_store import extend_with_stored, save_readings
from broadside.exchange.messages import Direction
from tests.unit.coordinator.device.telemetry.test_device_counter import (
    START_S,
    series,
    source,
    telemetry_of,
)
from tests.unit.coordinator.presences import NOW
from tests.unit.coordinator.runs.test_overlapping_runs import coordinator, launch

# This is used as a fixture.
__all__ = ["coordinator"]


class ProcessCounter(DeviceCounter):
    """Counter for what one process would read, in seconds from the first planned burst."""

    def __init__(self, plan: Plan, from_s: float, to_s: float) -> None:
        super().__init__([source()])
        begun_s = plan.bursts[0].planned_start_at.timestamp()
        self._telemetry = telemetry_of(
            series((begun_s - START_S + np.arange(from_s, to_s + 1)).tolist())
        )

    async def readings(self, from_at: datetime, before_at: datetime) -> DeviceTelemetry:
        return self._telemetry


def span_of(plan: Plan) -> RunSpan:
    """Return the span of the last burst, as if it were a separate run."""
    burst = plan.bursts[1]
    return RunSpan(
        run_id="mine",
        from_at=plan.bursts[0].planned_start_at - timedelta(seconds=60),
        before_at=burst.planned_end_at + timedelta(seconds=60),
        begun_at=burst.planned_start_at,
        ended_at=burst.planned_end_at,
        direction=Direction.FORWARD,
    )


async def read(coordinator: Coordinator, plan: Plan, live: ProcessCounter) -> CounterRecord:
    """Return the device counter of the last burst when stored readings are added."""
    span = span_of(plan)
    alone = await live.read(span.from_at, span.before_at, span.direction)
    records = coordinator.fabric.records
    read_plan = coordinator.stored.read_plan
    planned = await planned_bursts(records, read_plan, span.from_at, span.before_at)
    return await extend_with_stored(records, planned, span, alone, live)


@pytest.mark.parametrize(
    ("began_s", "known"),
    [
        # This is half a minute before the burst, which should start at 60.
        (30, True),
        # The burst has started, so the traffic up to here is lost.
        (58, False),
    ],
)
async def test_uses_readings_from_before_a_restart(
    coordinator: Coordinator, began_s: float, known: bool
) -> None:
    plan = await launch(coordinator)
    assert plan.bursts[0].planned_start_at > NOW
    records = coordinator.fabric.records
    before = ProcessCounter(plan, -20, 12)
    # To do this twice does not add a reading.
    for _ in range(2):
        await save_readings(records, plan, plan.bursts[0], before.readings)
    device_counter = await read(coordinator, plan, ProcessCounter(plan, began_s, 75))
    begun_s = plan.bursts[0].planned_start_at.timestamp()
    first_s = -20 if known else began_s
    assert device_counter.start_s[0] == pytest.approx(begun_s + first_s, abs=0.01)
    assert np.nansum(device_counter.bytes) == pytest.approx(75 - began_s + 32 * known)
    assert np.isnan(device_counter.bytes).sum() == known


async def test_complete_readings_need_no_stored_ones(coordinator: Coordinator) -> None:
    plan = await launch(coordinator)
    before = ProcessCounter(plan, -90, 12)
    records = coordinator.fabric.records
    await save_readings(records, plan, plan.bursts[0], before.readings)
    live = ProcessCounter(plan, -80, 75)
    device_counter = await read(coordinator, plan, live)
    assert len(device_counter) == 155
    assert not np.isnan(device_counter.bytes).any()
