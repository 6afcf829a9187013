"""Readings of a counter outlive the process that took them, and make no ledger look whole."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.evidence import FirewallLedger
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.stabilization import RunSpan
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.reading_store import extend_with_stored, save_readings
from broadside.exchange.messages import Direction
from tests.unit.coordinator.device.telemetry.test_device_counter import (
    START_S,
    series,
    source,
    told,
)
from tests.unit.coordinator.presences import NOW
from tests.unit.coordinator.runs.test_overlapping_runs import coordinator, launch

__all__ = ["coordinator"]  # the fixture


class Asked(DeviceCounter):
    """What a process read between two instants, s from the first planned burst."""

    def __init__(self, plan: Plan, from_s: float, to_s: float) -> None:
        super().__init__([source()])
        begun_s = plan.bursts[0].planned_start_at.timestamp()
        self._told = told(series((begun_s - START_S + np.arange(from_s, to_s + 1)).tolist()))

    async def readings(self, from_at: datetime, before_at: datetime) -> DeviceTelemetry:
        return self._told


def span_of(plan: Plan) -> RunSpan:
    """Of the second burst of a plan, as if it were a run."""
    burst = plan.bursts[1]
    return RunSpan(
        run_id="mine",
        from_at=plan.bursts[0].planned_start_at - timedelta(seconds=60),
        before_at=burst.planned_end_at + timedelta(seconds=60),
        begun_at=burst.planned_start_at,
        ended_at=burst.planned_end_at,
        direction=Direction.FORWARD,
    )


async def read(coordinator: Coordinator, plan: Plan, live: Asked) -> FirewallLedger:
    """The ledger of the second burst, with what was kept."""
    span = span_of(plan)
    alone = await live.read(span.from_at, span.before_at, span.direction)
    records = coordinator.fabric.records
    return await extend_with_stored(records, coordinator.stored.read_plan, span, alone, live)


@pytest.mark.parametrize(
    ("began_s", "known"),
    [
        (30, True),  # half a minute before the second burst, which is at 60
        (58, False),  # as it began: what went through right before it is nobody's
    ],
)
async def test_what_was_read_before_a_restart_is_read_again(
    coordinator: Coordinator, began_s: float, known: bool
) -> None:
    plan = await launch(coordinator)
    assert plan.bursts[0].planned_start_at > NOW
    records = coordinator.fabric.records
    before = Asked(plan, -20, 12)
    for _ in range(2):  # each reading once
        await save_readings(records, plan.run_id, plan.bursts[0], before.readings)
    ledger = await read(coordinator, plan, Asked(plan, began_s, 75))
    begun_s = plan.bursts[0].planned_start_at.timestamp()
    first_s = -20 if known else began_s
    assert ledger.start_s[0] == pytest.approx(begun_s + first_s, abs=0.01)
    assert np.nansum(ledger.bytes) == pytest.approx(75 - began_s + 32 * known)
    assert np.isnan(ledger.bytes).sum() == known


async def test_who_read_it_all_needs_nobody_else(coordinator: Coordinator) -> None:
    plan = await launch(coordinator)
    before = Asked(plan, -90, 12)
    records = coordinator.fabric.records
    await save_readings(records, plan.run_id, plan.bursts[0], before.readings)
    live = Asked(plan, -80, 75)
    ledger = await read(coordinator, plan, live)
    assert len(ledger) == 155
    assert not np.isnan(ledger.bytes).any()
