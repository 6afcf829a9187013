"""Measure a coordinator in a soak of one day with 1,000 pairs.

To run it, use ``.venv/bin/python -m tests.bench.bench_soak [pairs] [bursts]``. If a limit is
missed, the exit code is 1. It should take less than 2 s to plan 24 h with 1,000 agents per side,
and less than 200 ms to read a status or the API at the end. Meanwhile a schedule becomes due at
intervals and logs on standard error. The fabric is the embedded one. Claims, reports and seconds
are simulated.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np

from broadside.coordinator.api.app import create_app
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.plan.planner import plan as make_plan
from broadside.coordinator.core.run_spec import Burst, Plan, RunSpec
from broadside.coordinator.core.summary import canonical
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.requests import ScheduleRequest
from broadside.coordinator.schedules.firing import Schedules
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Side, Traffic
from broadside.exchange.ports import Entity
from broadside.exchange.records import Document
from tests.bench.limit_rows import Row, show
from tests.bench.stored_fleet import VARIANTS_COUNT, client_rows, end_of
from tests.synthetic import Plant, fleet
from tests.synthetic_runs import create_run
from tests.unit.coordinator.presences import fleet as presences

PLAN_MAX_S = 2.0
READ_MAX_S = 0.2
READS_COUNT = 100
STATUS_MAX_TIMES = 1.5
OLD_RUNS_COUNT = 200


class Clock:
    """Clock of the coordinator that the benchmark can set."""

    def __init__(self) -> None:
        # The queue uses the clock of the machine, so messages in the past expire.
        self.at = datetime.now(UTC)

    def now(self) -> datetime:
        return self.at


def main() -> int:
    numbers = [int(argument) for argument in sys.argv[1:]]
    pairs, bursts = (*numbers, *(1000, 48)[len(numbers) :])
    with tempfile.TemporaryDirectory() as folder:
        return int(show(asyncio.run(bench(Path(folder), pairs, bursts))))


async def bench(folder: Path, pairs: int, bursts: int) -> list[Row]:
    spec = RunSpec(
        scenario="soak",
        pairs_count=pairs,
        bursts_count=bursts,
        burst_s=1740,
        period_s=1800,
        traffic=Traffic(streams_count=8),
    )
    rows = []
    fabric = open_fabric(FabricSettings(data_dir=folder / "data"))
    clock = Clock()
    coordinator = Coordinator(fabric, now=clock.now)
    try:
        there = presences(pairs, beat_at=clock.at)
        for presence in there:
            await fabric.records.fleet.beat(presence)
        began_s = time.perf_counter()
        made = make_plan(spec, there, clock.at, "soak-1")
        document = made.model_dump_json().encode()
        took_s = time.perf_counter() - began_s
        print(f"a plan of {len(document)} bytes")
        text = f"plan of {bursts} bursts x {pairs} pairs"
        rows.append(Row(name=text, value=took_s, unit="s", limit=PLAN_MAX_S))
        plan = await launch(coordinator, fabric, spec)
        first_s = await status_s(coordinator, plan)
        await fill(fabric, plan, clock, coordinator)
        app = create_app(coordinator, tick_s=None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://bench") as client:

            def get(path: str) -> Callable[[], Awaitable[object]]:
                async def read() -> None:
                    answer = await client.get(path)
                    assert answer.status_code == 200, (path, answer.text[:300])

                return read

            began_s = time.perf_counter()
            # The application builds its routes at the first request.
            await get("/v1/runs/old-0")()
            print(f"first request, of another run: {(time.perf_counter() - began_s) * 1e3:.0f} ms")
            gc.collect()
            # A real coordinator does not have the objects of the simulation, so the collector skips
            # them.
            gc.freeze()
            run, last = f"/v1/runs/{plan.run_id}", plan.bursts[-1].index + 1
            firing = asyncio.create_task(fire(coordinator, clock))
            for name, path in (
                ("status", run),
                ("run list", "/v1/runs?limit=100"),
                ("progress", f"{run}/progress"),
                ("trends", f"{run}/trends"),
                ("summary", f"{run}/summary"),
                ("price", f"{run}/price"),
                ("bursts", f"{run}/bursts"),
                ("pairs", f"{run}/pairs?burst={last}"),
                ("series", f"{run}/series?burst={last}"),
            ):
                rows.append(await timed(name, get(path), READ_MAX_S))
            firing.cancel()
            [ended] = await asyncio.gather(firing, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended
            schedules = Schedules(fabric.private, coordinator, now=clock.now)
            came_count = len((await schedules.read("often")).history)
            print(f"a schedule came due {came_count} times meanwhile")
            rows.append(await timed("tick at rest", coordinator.tick))
            last_s = await status_s(coordinator, plan)
            rows.append(
                Row(
                    name="a status at the end",
                    value=last_s,
                    unit="CPU-s",
                    limit=STATUS_MAX_TIMES * first_s,
                    peer="at the launch",
                    peer_value=first_s,
                )
            )
    finally:
        await fabric.close()
    return rows


async def status_s(coordinator: Coordinator, plan: Plan) -> float:
    """Return the median CPU seconds of one status."""
    took = []
    for _ in range(READS_COUNT):
        began_s = time.process_time()
        await coordinator.stored.status(plan.run_id)
        took.append(time.process_time() - began_s)
    return float(np.median(took))


async def fire(coordinator: Coordinator, clock: Clock) -> None:
    """Let a schedule become due every ten seconds of a clock that advances one second per step."""
    schedules = Schedules(coordinator.fabric.private, coordinator, now=clock.now)
    requested = ScheduleRequest(name="often", cron="*/10 * * * * *", scenario="smoke")
    await schedules.add(requested.schedule(by="bench", now=clock.at))
    while True:
        await asyncio.sleep(0.1)
        clock.at += timedelta(seconds=1)
        await schedules.tick()


async def launch(coordinator: Coordinator, fabric: Fabric, spec: RunSpec) -> Plan:
    """Queue the whole soak while leases are renewed, and print the time taken."""
    keeping = asyncio.create_task(coordinator.run_forever(1.0))
    requested: list[float] = []

    async def ask() -> None:
        """Measure reads of a control row by an agent in the meantime."""
        while True:
            began_s = time.perf_counter()
            await fabric.records.runs.read_control("nothing")
            requested.append(time.perf_counter() - began_s)
            await asyncio.sleep(0.05)

    asking = asyncio.create_task(ask())
    began_s = time.perf_counter()
    plan = await coordinator.launch(spec, by="bench")
    took_s = time.perf_counter() - began_s
    counts = await fabric.queue.counts()
    print(
        f"launch: {counts.scheduled_count} messages in {took_s:.1f} s; "
        f"a control row read meanwhile p99 {np.quantile(requested, 0.99) * 1e3:.0f} ms"
    )
    for task in (asking, keeping):
        task.cancel()
    await asyncio.gather(asking, keeping, return_exceptions=True)
    return plan


async def fill(fabric: Fabric, plan: Plan, clock: Clock, coordinator: Coordinator) -> None:
    """Store the rows that agents and coordinator would have stored by the end of the soak."""
    pairs = len(plan.pairs)
    made = fleet(
        Plant(
            pairs=pairs, bursts=1, burst_s=1740, period_s=1800, firewall_bits_per_second=None,
            device_counter=False,
        )
    )  # fmt: skip
    began_s = time.perf_counter()
    one = measure_burst(made.plan.spec, made.evidence[0], made.now)
    print(f"one burst measured: {time.perf_counter() - began_s:.1f} s")
    measured = []
    for burst in plan.bursts:
        await fabric.results.batch(list(rows_of(plan, burst)))
        summary = one.summary.model_copy(
            update={"index": burst.index, "planned_start_at": burst.planned_start_at}
        )
        series = replace(
            one.series,
            burst_index=burst.index,
            start_s=round(burst.planned_start_at.timestamp()) - 1,
            planned_start_s=burst.planned_start_at.timestamp(),
        )
        await fabric.records.private.save_document(
            plan.run_id, Document.BURST, canonical(summary), burst.index
        )
        await fabric.records.private.save_document(
            plan.run_id, Document.SERIES, series.pack(), burst.index
        )
        measured.append(replace(one, summary=summary, series=series))
        clock.at = burst.planned_end_at + timedelta(seconds=20)
        if burst is not plan.bursts[-1]:
            evidence = replace(made.evidence[0], burst=burst)
            await coordinator.stored.states.close(plan, evidence, measured[-1])
    began_s = time.perf_counter()
    summary_of_run = summarise_run(plan, measured, None, clock.at)
    document = canonical(summary_of_run)
    await fabric.records.private.save_document(plan.run_id, Document.RUN, document)
    print(f"verdict: {time.perf_counter() - began_s:.1f} s, summary {len(document) / 1e6:.2f} MB")
    for index in range(OLD_RUNS_COUNT):
        created_at = plan.created_at - timedelta(days=1, seconds=index)
        old = plan.model_copy(update={"run_id": f"old-{index}", "created_at": created_at})
        await create_run(fabric.records, old)
        small = summary_of_run.model_copy(update={"run_id": old.run_id, "bursts": ()})
        await fabric.records.private.save_document(old.run_id, Document.RUN, canonical(small))
    began_s = time.perf_counter()
    await coordinator.tick()
    print(f"first tick over {OLD_RUNS_COUNT} old runs: {time.perf_counter() - began_s:.1f} s")


def rows_of(plan: Plan, burst: Burst) -> Iterator[Entity]:
    """Yield claims and reports of a burst, and for the last burst the clients' seconds too."""
    last = burst is plan.bursts[-1]
    for job in plan.jobs(burst):
        variant, seconds = job.pair_index % VARIANTS_COUNT, burst.duration_s if last else 1
        end = end_of(variant, Side.CLIENT, seconds, burst.planned_start_at)
        for row in client_rows(job, end, True, 0.0):
            if last or "json" in row.properties:
                yield row


async def timed(
    name: str, read: Callable[[], Awaitable[object]], limit_s: float | None = None
) -> Row:
    """Return the slowest of many reads, with their median as the peer."""
    took_s = []
    for _ in range(READS_COUNT):
        began_s = time.perf_counter()
        await read()
        took_s.append(time.perf_counter() - began_s)
    median_s = float(np.quantile(took_s, 0.5))
    text = f"{name}: the worst of {READS_COUNT}, the first {took_s[0] * 1e3:.0f} ms"
    return Row(
        name=text, value=max(took_s), unit="s", limit=limit_s, peer="median", peer_value=median_s
    )


if __name__ == "__main__":
    sys.exit(main())
