"""Tests for jobs that end before an engine is started. See the live tests for the others."""

from datetime import timedelta

import pytest

from broadside.agent import claimed_job as burst_module
from broadside.agent import control_reads as watch
from broadside.agent.agent_context import Tools
from broadside.agent.claimed_job import ClaimedJob
from broadside.agent.installed_engines import InstalledEngine
from broadside.exchange.engines import find
from broadside.exchange.messages import (
    Claim,
    ClockReading,
    ClockSource,
    Control,
    IdleRtt,
    JobPhase,
    JobReport,
    Outcome,
)
from broadside.exchange.outage_log import utc_now
from broadside.exchange.records import RunHeader
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryTable, make_tools
from tests.unit.agent.jobs import make_job


class Bench:
    """Set up to run one job on an in-memory table. It will be due in some seconds."""

    def __init__(self) -> None:
        self.table = MemoryTable()
        self.records = records_in(self.table)
        self.tools: Tools = make_tools(self.records, control_poll_s=0.01, arm_lead_s=8)
        self.now = utc_now()
        self.job = make_job(planned_start_at=self.now + timedelta(seconds=8))

    def due_soon(self) -> None:
        """Set the start to two seconds from now, for tests that need to wait for it."""
        due_at = utc_now() + timedelta(seconds=2)
        self.job = self.job.model_copy(update={"planned_start_at": due_at})

    async def conduct(self, lease_s: float = 60.0) -> JobReport:
        header = RunHeader(run_id="run-1", scenario="t", created_at=self.now, created_by="t")
        control = Control(run_id="run-1", lease_until_at=self.now + timedelta(seconds=lease_s))
        await self.records.create_run(header, b"{}", control)
        claim = Claim(
            job_id=self.job.job_id, agent_id="client-1", phase=JobPhase.CLAIMED, claimed_at=self.now
        )
        return await ClaimedJob(self.job, claim, self.tools).conduct()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    async def read_clock(socket: str | None) -> ClockReading:
        return ClockReading(
            source=ClockSource.CHRONY, read_at=utc_now(), synchronised=True, bound_s=1e-5
        )

    monkeypatch.setattr(burst_module, "read_clock", read_clock)
    for module in (burst_module, watch):
        # The first check will then be the last.
        monkeypatch.setattr(module, "LAST_LOOK_S", 60)
    return Bench()


async def test_expired_lease_abandons_the_job_before_the_instant(bench: Bench) -> None:
    report = await bench.conduct(lease_s=-1)
    assert report.outcome is Outcome.ABANDONED
    assert "lease lapsed" in (report.reason or "")
    assert report.reported_at < bench.job.planned_start_at
    assert (report.engine, report.process_start_at, report.start_method) == (None, None, None)


async def test_missing_control_row_abandons_the_job(bench: Bench) -> None:
    claim = Claim(
        job_id=bench.job.job_id, agent_id="client-1", phase=JobPhase.CLAIMED, claimed_at=bench.now
    )
    report = await ClaimedJob(bench.job, claim, bench.tools).conduct()
    assert (report.outcome, report.reason) == (Outcome.ABANDONED, "the run has no control row")


async def test_stopping_agent_abandons_the_job(bench: Bench) -> None:
    bench.tools.stopping.set()
    report = await bench.conduct()
    assert (report.outcome, report.reason) == (Outcome.ABANDONED, "the agent is stopping")


async def test_clock_above_the_limit_is_refused_with_its_reading(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.job = bench.job.model_copy(update={"clock_bound_max_s": 1e-6})
    report = await bench.conduct()
    assert report.outcome is Outcome.REFUSED
    assert "over the gate" in (report.reason or "")
    assert report.clock_before is not None
    assert report.clock_before.bound_s == 1e-5


def reading(bound_s: float | None, source: ClockSource = ClockSource.CHRONY) -> ClockReading:
    at = utc_now()
    return ClockReading(
        source=source, read_at=at, synchronised=bound_s is not None, bound_s=bound_s
    )


@pytest.mark.parametrize("bound_s", [0.4, None])
async def test_clock_step_after_arming_refuses_the_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, bound_s: float | None
) -> None:
    readings = iter([reading(1e-5)])

    async def read_clock(socket: str | None) -> ClockReading:
        return next(readings, reading(bound_s))

    monkeypatch.setattr(burst_module, "read_clock", read_clock)
    report = await bench.conduct()
    assert report.outcome is Outcome.REFUSED
    assert (report.reason or "").startswith("after arming: clock ")
    assert report.reported_at < bench.job.planned_start_at
    assert report.engine is None
    assert report.clock_before is not None
    assert report.clock_before.bound_s == bound_s


async def test_unsupported_engine_is_refused(bench: Bench) -> None:
    bench.job = make_job(planned_start_at=bench.job.planned_start_at, traffic={"engine": "iperf4"})
    report = await bench.conduct()
    assert report.outcome is Outcome.REFUSED
    assert "iperf4" in (report.reason or "")
    assert report.clock_before is not None


async def test_internal_error_still_writes_a_report(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(ClaimedJob, "_prepare", broken)
    report = await bench.conduct()
    assert report.outcome is Outcome.FAILED
    assert "ZeroDivisionError" in (report.reason or "")


@pytest.mark.parametrize(("engine", "probed"), [("iperf3", False), ("http", True), ("ftp", True)])
async def test_without_a_gate_only_daemon_ports_are_probed_for_idle_rtt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, engine: str, probed: bool
) -> None:
    """Check that a single-test server is not probed, because that would end it."""
    seen = []

    async def from_handshakes(address: str, port: int, bind: str | None) -> IdleRtt:
        seen.append((address, port))
        return IdleRtt(least_s=0.001, median_s=0.002, samples_count=3, how="handshakes")

    monkeypatch.setattr(burst_module, "from_handshakes", from_handshakes)
    bench.due_soon()
    traffic = bench.job.traffic.model_copy(update={"engine": engine})
    bench.job = bench.job.model_copy(update={"traffic": traffic})
    claim = Claim(
        job_id=bench.job.job_id, agent_id="client-1", phase=JobPhase.CLAIMED, claimed_at=bench.now
    )
    job = ClaimedJob(bench.job, claim, bench.tools)
    known = find(engine)
    assert known is not None
    installed = InstalledEngine(engine=known, tools={})
    monkeypatch.setattr(type(bench.tools), "installed", lambda *_: installed)
    await job._measure_idle_rtt()
    endpoint = bench.job.endpoint
    assert seen == ([(endpoint.address, endpoint.port)] if probed else [])
    assert (job._idle_rtt is not None) == probed
