"""Tests for claimed job that need processes, sockets or real time."""

import asyncio

import pytest

from broadside.agent import claimed_job as burst_module
from broadside.exchange.messages import (
    ClockReading,
    ClockSource,
    JobPhase,
    Outcome,
)
from broadside.exchange.outage_log import utc_now
from tests.unit.agent import test_claimed_job
from tests.unit.agent.test_claimed_job import Bench, reading

# Fixtures.
bench = test_claimed_job.bench


@pytest.mark.parametrize("answers", [True, False])
async def test_slow_chronyd_after_arming_is_ignored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    readings = iter([reading(1e-5)])

    async def read_clock(socket: str | None) -> ClockReading:
        if (first := next(readings, None)) is not None:
            return first
        if not answers and utc_now() < bench.job.planned_start_at:
            await asyncio.sleep(60)
        return reading(None, ClockSource.UNKNOWN)

    monkeypatch.setattr(burst_module, "read_clock", read_clock)
    bench.due_soon()
    report = await bench.conduct()
    # The engine does not exist.
    assert report.outcome is Outcome.FAILED
    assert "/nowhere/iperf3" in (report.reason or "")
    assert report.clock_before is not None
    assert report.clock_before.bound_s == 1e-5


async def test_missing_engine_program_fails_the_job(bench: Bench) -> None:
    bench.due_soon()
    report = await bench.conduct()
    assert report.outcome is Outcome.FAILED
    assert "/nowhere/iperf3" in (report.reason or "")
    claim = (await bench.records.bursts.read_claims("run-1", 0))[bench.job.pair_index]
    # Without a gate, the job is ready to wait for the instant.
    assert claim.phase is JobPhase.ARMED
