"""Tests for leases, which should not change when the wall clock is set."""

import logging
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from broadside.coordinator.core.plan.planner import plan
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.runs.leases import Leases
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.messages import Control, OutageKind, Role
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.records import RunHeader
from tests.one_table import records_in
from tests.unit.coordinator.presences import NOW, presence

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize("step", [-DAY, -HOUR, HOUR, DAY], ids=str)
async def test_wall_clock_step_neither_ends_nor_extends_leases(
    step: timedelta, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wall_at, elapsed_s = NOW, 0.0

    def now() -> datetime:
        return wall_at + timedelta(seconds=elapsed_s)

    fleet = [presence(role, 1, beat_at=NOW) for role in Role]
    run = plan(RunSpec(scenario="soak", pairs_count=1, burst_s=600), fleet, NOW, "run-1")
    table = EmbeddedTable(tmp_path, "rows")
    records = records_in(table)
    header = RunHeader(run_id="run-1", scenario="soak", created_at=NOW, created_by="x")
    lease = timedelta(seconds=run.spec.lease_s)
    await records.create_run(
        header, run.model_dump_json().encode(), Control(run_id="run-1", lease_until_at=NOW + lease)
    )
    troubles = OutageLog(now)
    leases = Leases(records, now, troubles, monotonic_s=lambda: elapsed_s)
    leases.hold(run)
    await leases.renew()
    for _ in range(20):
        elapsed_s += run.spec.lease_s / 4
        if elapsed_s == run.spec.lease_s:
            wall_at += step
        await leases.renew()
        control = await records.runs.read_control("run-1")
        true_at = NOW + timedelta(seconds=elapsed_s)
        assert control is not None
        assert true_at < control.lease_until_at <= true_at + lease
    everything = troubles.between(NOW - 2 * DAY, NOW + 2 * DAY)
    assert [outage.kind for outage in everything] == [OutageKind.CLOCK_STEPPED]
    steps = [
        r for r in caplog.records if r.levelno == logging.WARNING and "was set by" in r.message
    ]
    assert len(steps) == 1
    await table.close()
