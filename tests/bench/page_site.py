"""Live page with a simulated run of any number of pairs, one snapshot after the other."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI
from fastapi.sse import EventSourceResponse, ServerSentEvent

from broadside.coordinator.api import page_files as web
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.live.live_view import (
    LiveFinding,
    LiveSnapshot,
    LiveStatus,
    PlannedCells,
    changed_seconds,
    counter_message,
    live_status,
    make_snapshot,
    seconds_message,
)
from broadside.coordinator.core.live.status import BurstPhase, BurstStatus, RunState, RunStatus
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import RunSummary
from tests.synthetic import Fleet, Plant, fleet

RUN_ID = "20261120-120000-simulated-0001"
# Delay of uploads.
UPLOAD_LAG_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Replay of one burst with a snapshot every ``snapshot_s`` seconds.

    Attributes:
        begin_s: Seconds of the burst in the first snapshot.
        stop_s: Second at which the burst stops, or None to continue to the verdict.
    """

    made: Fleet
    measured: BurstMeasurement
    run_summary: RunSummary
    snapshot_s: float
    begin_s: int = 0
    stop_s: int | None = None

    @property
    def burst_s(self) -> int:
        return self.made.plan.bursts[0].duration_s


def simulate(plant: Plant, *, snapshot_s: float, **span: Any) -> Simulation:
    """Simulate and measure a synthetic fleet with a firewall."""
    made = fleet(plant, target_bits_per_second=180e9)
    measured = measure_burst(made.plan.spec, made.evidence[0], made.now)
    summary = summarise_run(made.plan, [measured], made.device_counter, made.now)
    return Simulation(
        made=made, measured=measured, run_summary=summary, snapshot_s=snapshot_s, **span
    )


def _shown(simulation: Simulation, second: int) -> LiveSnapshot:
    """Return the snapshot at a second, in which some pairs are one or two seconds late."""
    series, summary = simulation.measured.series, simulation.run_summary.bursts[0]
    known_s = max(0, second - UPLOAD_LAG_S)
    offset = int(series.planned_start_s) - series.start_s
    behind = np.arange(len(summary.pairs)) % UPLOAD_LAG_S
    columns = np.arange(series.flows[0].pairs_bits_per_second.shape[1])[None, :]
    missing = columns >= (offset + second - behind)[:, None]
    rates = np.where(missing, np.nan, series.flows[0].pairs_bits_per_second).astype(np.float32)
    coverage = np.where(columns[0] >= offset + second, 0.0, series.coverage_ratio)
    flow = replace(series.flows[0], pairs_bits_per_second=rates)
    cut = replace(series, flows=(flow,), coverage_ratio=coverage)
    return make_snapshot(
        summary,
        cut,
        PlannedCells(pairs_count=len(rates), seconds=simulation.burst_s),
        known_s=known_s,
        final=False,
    )


def _counter_until(device_counter: CounterRecord, until_s: float) -> CounterRecord:
    included = device_counter.end_s <= until_s
    return replace(
        device_counter,
        start_s=device_counter.start_s[included],
        end_s=device_counter.end_s[included],
        bytes=device_counter.bytes[included],
    )


def _status(simulation: Simulation, second: int) -> LiveStatus:
    plan = simulation.made.plan.model_copy(update={"run_id": RUN_ID})
    burst, pairs = plan.bursts[0], len(plan.pairs)
    is_up = BurstStatus(
        index=0,
        planned_start_at=burst.planned_start_at,
        planned_end_at=burst.planned_end_at,
        phase=BurstPhase.RUNNING if second >= 0 else BurstPhase.ARMING,
        pairs_planned=pairs,
        claimed_count=pairs,
        armed_count=pairs - 2 if second < 0 else pairs,
        reported_count=0,
        outcomes={},
    )
    status = RunStatus(
        run_id=RUN_ID,
        scenario=plan.spec.scenario,
        state=RunState.RUNNING if second >= 0 else RunState.ARMING,
        created_at=plan.created_at,
        ends_at=burst.planned_end_at,
        bursts=(is_up,),
    )
    # The page uses the coordinator's clock, so a replay only has to set the time.
    return live_status(plan, status, 0, burst.planned_start_at + timedelta(seconds=second))


def create_app(simulation: Simulation) -> FastAPI:
    """Create an application with only the routes that the page needs."""
    app = FastAPI()
    burst = simulation.made.plan.bursts[0]

    @app.get("/v1/me")
    async def me() -> dict[str, Any]:
        return {"name": "anybody", "role": "operator", "signed_in": False}

    @app.get("/v1/runs")
    async def runs() -> list[dict[str, Any]]:
        now = datetime.now(UTC).isoformat()
        return [
            {"run_id": RUN_ID, "scenario": "simulated", "created_at": now, "created_by": "bench"}
        ]

    @app.get("/v1/runs/{run_id}/price")
    async def price(run_id: str) -> dict[str, Any]:
        bill = {"lines": [], "total_usd": 4.2, "total_low_usd": 4.2, "total_high_usd": 4.2}
        return {"charged": True, "prices_as_of": "2026-11-01", "spent": bill, "projected": bill}

    @app.get("/v1/runs/{run_id}/events", response_class=EventSourceResponse)
    async def events(run_id: str) -> AsyncIterator[ServerSentEvent]:
        before = None
        stop_s = simulation.burst_s if simulation.stop_s is None else simulation.stop_s
        for second in range(simulation.begin_s, stop_s + 1):
            status = _status(simulation, second)
            yield ServerSentEvent(event="status", raw_data=status.model_dump_json())
            if second > 0:
                now = _shown(simulation, second)
                changed = changed_seconds(before, now)
                message = seconds_message(now, changed)
                yield ServerSentEvent(event="seconds", raw_data=message.model_dump_json())
                if now.figures is not None and second > UPLOAD_LAG_S:
                    text = now.figures.model_dump_json()
                    yield ServerSentEvent(event="figures", raw_data=text)
                    for finding in now.findings:
                        item = LiveFinding(burst_index=0, id=finding.id, finding=finding)
                        yield ServerSentEvent(event="finding", raw_data=item.model_dump_json())
                if simulation.made.device_counter is not None:
                    until_s = burst.planned_start_at.timestamp() + second
                    device_counter = counter_message(
                        _counter_until(simulation.made.device_counter, until_s), burst
                    )
                    yield ServerSentEvent(
                        event="counter", raw_data=device_counter.model_dump_json()
                    )
                before = now
            await asyncio.sleep(simulation.snapshot_s)
        if simulation.stop_s is not None:
            await asyncio.sleep(3600)
        summary = simulation.run_summary.model_copy(update={"run_id": RUN_ID})
        yield ServerSentEvent(event="summary", raw_data=summary.model_dump_json())

    app.include_router(web.router)
    return app


@contextlib.contextmanager
def standing(simulation: Simulation) -> Iterator[str]:
    """Serve the site on a free loopback port and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            create_app(simulation), log_level="warning", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
