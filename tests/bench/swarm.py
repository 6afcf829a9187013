"""Measure one real coordinator with thousands of simulated agents and with viewers.

To run it, use ``python -m tests.bench.swarm [--pairs 1000] [--seconds 30] [--viewers 20] [--fabric
azure]``.

The agents are simulated by their requests through the real adapters. They send heartbeats, check a
job against the plan and claim it. They read the control row of the run once a second, and send the
seconds of both ends every three seconds, and the last records. :mod:`tests.bench.stored_fleet` is
used instead of iperf3. The agents share the machine with the coordinator, so the printed load
should be considered too.

Use ``--fabric azure`` to run it with the recorded emulators. It will print the rows of the busiest
second by partition from their request log, compared with tests/docs_build/azure_limits_page.py. It
will fail if a partition is above half of the limit of Azure. Only the log is used, because the
speed of the emulators is not the speed of Azure.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from broadside.agent.claimed_job import UNTOLD_S
from broadside.agent.worker import Planned, PlannedJobReads
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Claim, Job, JobPhase, Presence, Side
from broadside.exchange.pacing import turn_s
from broadside.exchange.ports import Delivery, Entity
from broadside.lab.broker_process import BrokerProcess
from broadside.lab.servicebus.queues import QueueSettings
from broadside.lab.serving import ServeProcess
from tests.bench.bench_hosts import cpu_s
from tests.bench.limit_rows import Row, show
from tests.bench.stored_fleet import VARIANTS_COUNT, client_rows, end_of, server_rows
from tests.contract.recorded_azure import Answers, Asked, RecordedAzure
from tests.docs_build import azure_limits_page
from tests.unit.coordinator.presences import fleet as presences

ROOT: Final = Path(__file__).parents[2]
# Processes of the agents. Each has its own connections.
PROCESSES_COUNT: Final = 4
# Default settings of agents.
BEAT_S, POLL_S, UPLOAD_S = 5.0, 1.0, 3.0
# Time from the launch to the start of the burst.
LEAD_S: Final = 40
# Time limit for the verdict after the end of the burst.
PATIENCE_S: Final = 120.0
BEAT_P99_MAX_S: Final = 0.15
# Share of the documented rows per second of a partition.
PARTITION_SHARE_MAX: Final = 0.5
LIMITED: Final = ("control", "results", "private")


@dataclass(slots=True, kw_only=True)
class Waits:
    """Durations of requests, and instants of job events.

    Attributes:
        claimed_at_s: Epoch seconds of each claim.
        last_record_at_s: Epoch seconds of the last record of each pair.
    """

    beats_s: list[float] = field(default_factory=list)
    polls_s: list[float] = field(default_factory=list)
    uploads_s: list[float] = field(default_factory=list)
    claimed_at_s: list[float] = field(default_factory=list)
    last_record_at_s: list[float] = field(default_factory=list)

    def add(self, other: "Waits") -> None:
        for name in self.__dataclass_fields__:
            getattr(self, name).extend(getattr(other, name))


@dataclass(slots=True, kw_only=True)
class Agents:
    """Part of the fleet's pairs on one fabric."""

    fabric: Fabric
    waits: Waits = field(default_factory=Waits)

    async def timed(self, took_s: list[float], asking: Awaitable[object]) -> None:
        began_s = time.monotonic()
        await asking
        took_s.append(time.monotonic() - began_s)

    async def beat_forever(self, label: Presence) -> None:
        await asyncio.sleep(random.random() * BEAT_S)
        while True:
            began_s = time.monotonic()
            row = label.model_copy(update={"beat_at": datetime.now(UTC)})
            await self.timed(self.waits.beats_s, self.fabric.agent_records.fleet.beat(row))
            await asyncio.sleep(max(0.0, began_s + BEAT_S - time.monotonic()))

    async def work(self) -> None:
        """Wait for a job as one client and process it to its end, for both ends of the pair."""
        delivery: Delivery | None = None
        while delivery is None:
            delivery = await self.fabric.queue.receive(self.fabric.receive_wait_s)
        job, records = Job.model_validate_json(delivery.body), self.fabric.agent_records
        stored = await PlannedJobReads(records.runs).find(job, delivery.body)
        claim = Claim(
            job_id=job.job_id,
            agent_id=f"client-{job.pair_index + 1:03d}",
            phase=JobPhase.CLAIMED,
            claimed_at=datetime.now(UTC),
        )
        if not isinstance(stored, Planned) or not await records.bursts.claim(job, claim):
            raise RuntimeError(f"{job.job_id}: {stored}")
        await self.fabric.queue.complete(delivery)
        self.waits.claimed_at_s.append(time.time())
        polling = asyncio.create_task(self._poll_forever(job))
        begin_s = job.planned_start_at.timestamp()
        end_s, sent_s = begin_s + job.duration_s, UNTOLD_S
        await _until(begin_s + UPLOAD_S + turn_s(job.pair_index, UPLOAD_S))
        while (now_s := time.time()) < end_s:
            await self._store_records(job, int(now_s - begin_s), sent_s)
            sent_s = float(int(now_s - begin_s))
            await _until(now_s + UPLOAD_S)
        polling.cancel()
        await _until(end_s + turn_s(job.pair_index))
        await self._store_records(job, None, 0.0)
        self.waits.last_record_at_s.append(time.time())

    async def _poll_forever(self, job: Job) -> None:
        read = self.fabric.agent_records.runs.read_control
        while True:
            await self.timed(self.waits.polls_s, read(job.run_id, job.pair_index))
            await asyncio.sleep(POLL_S)

    async def _store_records(self, job: Job, until_s: int | None, from_s: float) -> None:
        """Store the records of both ends so far.

        An ``until_s`` of None stores all and ends the test.
        """
        seconds, variant = until_s or job.duration_s, job.pair_index % VARIANTS_COUNT
        over, start = until_s is None, job.planned_start_at
        reported = [
            list(rows(job, end_of(variant, side, seconds, start), over, from_s))
            for side, rows in ((Side.CLIENT, client_rows), (Side.SERVER, server_rows))
        ]
        # A claim is written once.
        if not over and from_s > UNTOLD_S:
            reported[0] = [row for row in reported[0] if "json" not in row.properties]
        await asyncio.gather(*(self._save(rows) for rows in reported))

    async def _save(self, rows: Sequence[Entity]) -> None:
        parts: defaultdict[str, list[Entity]] = defaultdict(list)
        for row in rows:
            parts[row.partition_key].append(row)
        for part in parts.values():
            await self.timed(self.waits.uploads_s, self.fabric.results.batch(part))


async def _until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.time()))


async def _be_agents(environment: Mapping[str, str], pairs: int, part: range) -> Waits:
    """Simulate a part of the fleet until its jobs have ended."""
    agents = Agents(fabric=open_fabric(_settings(environment)))
    fleet = presences(pairs)
    clients, servers = fleet[:pairs], fleet[pairs:]
    beating = [
        asyncio.create_task(agents.beat_forever(item))
        for item in (*clients[part.start : part.stop], *servers[part.start : part.stop])
    ]
    try:
        await asyncio.gather(*(agents.work() for _ in part))
    finally:
        for task in beating:
            task.cancel()
        await asyncio.gather(*beating, return_exceptions=True)
        await agents.fabric.close()
    return agents.waits


def be_agents(environment: Mapping[str, str], pairs: int, part: range) -> Waits:
    """Run :func:`_be_agents` in this process."""
    return asyncio.run(_be_agents(environment, pairs, part))


def _settings(environment: Mapping[str, str]) -> FabricSettings:
    return FabricSettings.model_validate(
        {name.removeprefix("BROADSIDE_").lower(): value for name, value in environment.items()}
    )


# The run -----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Watched:
    """Record of a run as its operators saw it.

    Attributes:
        snapshots_count: Snapshots of all viewers together.
        ended_at_s: Epoch seconds of the end of the burst.
        core: Share of one core, from the start to the end of the burst.
    """

    snapshots_count: int = 0
    status_s: list[float] = field(default_factory=list)
    ended_at_s: float = 0.0
    verdict_at_s: float = 0.0
    summary: dict[str, Any] = field(default_factory=dict)
    core: float = 0.0


async def watch(serving: ServeProcess, pairs: int, seconds: int, viewers: int) -> Watched:
    """Launch a run when the fleet is complete, and poll until there is a verdict."""
    seen = Watched()
    fields = {"pairs_count": pairs, "bursts_count": 1, "burst_s": seconds, "lead_s": LEAD_S}
    async with httpx.AsyncClient(base_url=serving.url, timeout=60) as client:
        body = {"scenario": "smoke", "overrides": fields}
        refused_until_s = time.monotonic() + PATIENCE_S
        while (answer := await client.post("/v1/runs", json=body)).status_code >= 300:
            if time.monotonic() > refused_until_s:
                raise RuntimeError(answer.text)
            # The launch is refused until all agents have registered.
            await asyncio.sleep(2)
        run_id = answer.json()["run_id"]
        status = (await client.get(f"/v1/runs/{run_id}")).json()
        began_at = datetime.fromisoformat(status["bursts"][0]["planned_start_at"])
        seen.ended_at_s = began_at.timestamp() + seconds
        following = [asyncio.create_task(_follow(client, run_id, seen)) for _ in range(viewers)]
        await _until(began_at.timestamp())
        before_s = cpu_s(serving.pid)
        try:
            async with asyncio.timeout(seconds + PATIENCE_S):
                await _poll(client, run_id, serving, seen, before_s, seconds)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
    return seen


async def _poll(
    client: httpx.AsyncClient,
    run_id: str,
    serving: ServeProcess,
    seen: Watched,
    before_s: float,
    seconds: int,
) -> None:
    while True:
        began_s = time.monotonic()
        (await client.get(f"/v1/runs/{run_id}")).raise_for_status()
        seen.status_s.append(time.monotonic() - began_s)
        if not seen.core and time.time() >= seen.ended_at_s:
            seen.core = (cpu_s(serving.pid) - before_s) / seconds
        answer = await client.get(f"/v1/runs/{run_id}/summary")
        if answer.status_code == 200:
            seen.verdict_at_s, seen.summary = time.time(), answer.json()
            return
        await asyncio.sleep(0.5)


async def _follow(client: httpx.AsyncClient, run_id: str, seen: Watched) -> None:
    async with client.stream("GET", f"/v1/runs/{run_id}/events", timeout=None) as stream:
        async for line in stream.aiter_lines():
            seen.snapshots_count += line == "event: seconds" and time.time() < seen.ended_at_s


@contextlib.contextmanager
def fabric_of(kind: str, folder: Path) -> Iterator[tuple[dict[str, str], RecordedAzure | None]]:
    """Yield the environment of a fabric, and the emulator with the request log (Azure only)."""
    if kind == "embedded":
        yield {"BROADSIDE_DATA_DIR": str(folder / "data")}, None
        return
    (folder / "broker").mkdir()
    jobs = {"jobs": QueueSettings(lock_s=60, max_delivery_count=5)}
    broker = BrokerProcess(folder / "broker", jobs)
    broker.start()
    try:
        with RecordedAzure(Answers(ROOT / "tests/contract/azure_answers.toml")) as azure:
            azure.create("control", "results", "private", "raw")
            yield (
                {
                    "BROADSIDE_FABRIC": "azure",
                    "BROADSIDE_DATA_DIR": str(folder / "data"),
                    "BROADSIDE_SERVICEBUS_CONNECTION_STRING": broker.connection_string,
                    "BROADSIDE_SERVICEBUS_QUEUE": "jobs",
                    "BROADSIDE_TABLES_CONNECTION_STRING": azure.connection_string,
                    "BROADSIDE_BLOBS_CONNECTION_STRING": azure.connection_string,
                    "BROADSIDE_BLOBS_CONTAINER": "raw",
                },
                azure,
            )
    finally:
        broker.stop()


def rows(
    pairs: int = 1000, seconds: int = 30, viewers: int = 20, kind: str = "embedded"
) -> Iterator[Row]:
    """Run one burst from the launch to its verdict and yield its rows."""
    waits = Waits()
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="broadside-swarm-") as name,
        fabric_of(kind, Path(name)) as (environment, azure),
        ServeProcess(environment, Path(name)) as serving,
        context.Pool(PROCESSES_COUNT) as pool,
    ):
        cuts = np.linspace(0, pairs, PROCESSES_COUNT + 1).astype(int).tolist()
        parts = [range(*ends) for ends in pairwise(cuts)]
        carried = [pool.apply_async(be_agents, (environment, pairs, part)) for part in parts]
        seen = asyncio.run(watch(serving, pairs, seconds, viewers))
        for item in carried:
            waits.add(item.get(PATIENCE_S))
        requested = tuple(azure.asked) if azure else ()
        label = Path(f"/proc/{serving.pid}/status").read_text()
        peak_mb = int(label.split("VmHWM:")[1].split()[0]) / 1024
    name = f"swarm of {pairs} pairs, {kind}"
    load = os.getloadavg()[0]
    measured = seen.summary["bursts"][0]["pairs_measured"]
    yield Row(name=f"{name}: load average of {os.cpu_count()} cores", value=load, unit="")
    yield Row(name=f"{name}: pairs not measured", value=pairs - measured, unit="pairs", limit=0)

    def p99(label: str, values: list[float], limit: float | None = None) -> Row:
        p50, p99 = (float(item) for item in np.quantile(values, (0.5, 0.99)))
        text = f"{name}: {label}, p99"
        return Row(name=text, value=p99, unit="s", limit=limit, peer="p50", peer_value=p50)

    yield p99("a heartbeat", waits.beats_s, BEAT_P99_MAX_S if kind == "embedded" else None)
    yield p99("a look at control", waits.polls_s)
    yield p99("an upload", waits.uploads_s)
    yield p99("a status over the API", seen.status_s)
    claimed_s = max(waits.claimed_at_s) - min(waits.claimed_at_s)
    yield Row(name=f"{name}: first claim to last", value=claimed_s, unit="s")
    last_s = seen.verdict_at_s - max(waits.last_record_at_s)
    yield Row(name=f"{name}: last record to verdict", value=last_s, unit="s")
    yield Row(name=f"{name}: end to verdict", value=seen.verdict_at_s - seen.ended_at_s, unit="s")
    yield Row(name=f"{name}: coordinator, of a core", value=seen.core, unit="")
    yield Row(name=f"{name}: coordinator, memory", value=peak_mb, unit="MB")
    if viewers:
        pace_s = seconds * viewers / max(1, seen.snapshots_count)
        yield Row(name=f"{name}: seconds a look, {viewers} viewers", value=pace_s, unit="s")
    if requested:
        yield from worst_seconds(requested, pairs, name)


def worst_seconds(requests: Sequence[Asked], pairs: int, name: str) -> Iterator[Row]:
    """Yield the busiest second of each kind of partition, compared with the documented figure.

    An emulator on two cores that is slower than 1,000 agents receives delayed requests at once. A
    row may then be above the documented figure. No row may use half of the partition's limit.
    """
    counts: Counter[tuple[str, str, int]] = Counter()
    for one in requests:
        if one.what in LIMITED and one.partition is not None:
            counts[one.what, one.partition, int(one.at_s)] += max(1, one.rows_count)
    worst: dict[str, int] = {}
    for (table, partition, _), count in counts.items():
        kind = f"{table}: {partition.partition('.')[0]}"
        worst[kind] = max(worst.get(kind, 0), count)
    for kind, count in sorted(worst.items()):
        yield Row(
            name=f"{name}: {kind}, rows in a partition's worst second",
            value=count,
            unit="rows",
            limit=PARTITION_SHARE_MAX * azure_limits_page.PARTITION_PER_S,
            peer="azure-limits.md",
            peer_value=azure_limits_page.most_of(pairs, kind),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--fabric", choices=("embedded", "azure"), default="embedded")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    return show(
        rows(arguments.pairs, arguments.seconds, arguments.viewers, arguments.fabric),
        as_json=arguments.json,
    )


if __name__ == "__main__":
    sys.exit(main())
