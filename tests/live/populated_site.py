"""Coordinator with realistic data for every view of the page, without agents.

Runs, studies, schedules and agents are stored. One run has reached second 40 of a burst, and its
device counter is a CSV file.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx
import uvicorn

from broadside.coordinator.api.app import Extensions, create_app
from broadside.coordinator.bounded_listener import Listener
from broadside.coordinator.device.telemetry.config import open_telemetry
from broadside.coordinator.notices.announcer import NotDelivered, Notice, Receiver
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.import_storage import store_table
from broadside.coordinator.studies.study import Study
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import AgentState, ClockReading, ClockSource, EngineState, Role
from broadside.exchange.records.collection import Collection
from tests.bench.stored_fleet import plan_of, upload
from tests.synthetic import Break, Plant
from tests.synthetic_runs import create_run, store_run
from tests.unit.coordinator.imports import small_tables
from tests.unit.coordinator.presences import fleet, presence
from tests.unit.coordinator.studies.samples import (
    IN_MODES,
    OVER_TWO_DEVICES,
    SWEPT,
    drilled,
    grown,
    searched,
)

LIVE: Final = "20261120-120000-scale-180g-71fe"
OVER: Final = "20261120-090000-scale-180g-b20c"
FAILED: Final = "20261119-090000-scale-180g-0d4e"
BURST_S: Final = 120
SECOND: Final = 40
PAIRS: Final = 12
# Plants by run id, newest first, with a value for the label `policy`.
RUNS: Final = {
    OVER: (Plant(pairs=4, bursts=3, burst_s=30), "alert"),
    "20261120-080000-scale-180g-4a01": (Plant(pairs=4, bursts=2, killed=1, missing=1), "deny"),
    FAILED: (Plant(pairs=4, bursts=3, burst_s=30, slow_firewall=0.05), "off"),
    "20261118-090000-scale-180g-e6b2": (
        Plant(pairs=30, bursts=6, late=1, null=1, killed=1, missing=1, foreign_ratio=0.04),
        "alert",
    ),
    "20261117-090000-scale-180g-11c7": (
        Plant(
            pairs=4,
            bursts=2,
            breaks=(Break(burst=0, from_s=8, length_s=4, factor=0.0),),
            device_counter=False,
        ),
        "off",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place(Receiver):
    name: str
    problem: str | None = None

    async def deliver(self, notice: Notice) -> None:
        if self.problem is not None:
            raise NotDelivered(self.problem)


PLACES: Final = (
    _Place(name="webhook", problem="https://hooks.example.net/broadside answered 503 to the run"),
    _Place(name="otlp"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Populated:
    """Running coordinator.

    Attributes:
        imported: Id of an imported run.
        studies: Ids of the studies by kind.
    """

    url: str
    imported: str
    studies: dict[str, str]


@contextlib.contextmanager
def populated(folder: Path) -> Iterator[Populated]:
    """Store the data and serve it until the end of the block."""
    now = datetime.now(UTC).replace(microsecond=0)
    fabric = open_fabric(FabricSettings(data_dir=folder / "data"))
    imported = asyncio.run(_store_runs(fabric, now))
    studies = asyncio.run(_store_studies(fabric, now))
    asyncio.run(_store_agents(fabric, now))
    sources = open_telemetry(_write_counter(folder, now))
    with Listener("127.0.0.1", 0) as listener:
        app = create_app(
            Coordinator(fabric, sources, now=lambda: now),
            tick_s=0.5,
            extensions=Extensions(places=PLACES),
        )
        config = uvicorn.Config(
            app, http=listener.protocol, ws="none", log_config=None, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        serving = threading.Thread(
            target=asyncio.run, args=(server.serve(sockets=[listener]),), daemon=True
        )
        serving.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            _add_schedules(url)
            yield Populated(url=url, imported=imported, studies=studies)
        finally:
            server.should_exit = True
            serving.join(30)


async def _store_runs(fabric: Fabric, now: datetime) -> str:
    """Store ended runs, an import and a running burst. Return the id of the import."""
    for number, (run_id, (plant, policy)) in enumerate(RUNS.items()):
        created_at = now - timedelta(days=number, hours=3)
        labels = {"device": "fw-weu-01", "policy": policy}
        await store_run(fabric, run_id, plant=plant, created_at=created_at, labels=labels)
    # The receivers of notices get a run that ends after the start of the coordinator.
    listed = await fabric.records.private.read_listed(OVER)
    assert listed is not None and listed.outcome is not None
    ended = listed.outcome.model_copy(update={"ended_at": now})
    await fabric.records.private.save_outcome(OVER, ended)
    table = small_tables.parse(small_tables.fleet(30, 6))
    imported = await store_table(fabric.records, table, now - timedelta(days=30))
    plan = plan_of(PAIRS, BURST_S, LIVE)
    burst = plan.bursts[0].model_copy(update={"planned_start_at": now - timedelta(seconds=SECOND)})
    plan = plan.model_copy(
        update={"bursts": (burst,), "created_at": now - timedelta(seconds=SECOND + 60)}
    )
    await create_run(fabric.records, plan, labels={"device": "fw-weu-01", "ticket": "NET-4711"})
    await upload(fabric, plan, until_s=SECOND - 2)
    return imported.run_id


async def _store_studies(fabric: Fabric, now: datetime) -> dict[str, str]:
    """Store a study of each kind and one in progress. Return the ids by kind."""
    samples = {
        "sweep": SWEPT,
        "search": searched(),
        "matrix": OVER_TWO_DEVICES,
        "scaleout": grown(),
        "drill": drilled(),
    }
    collection = Collection(fabric.private, "studies", Study)
    ids = {}
    for number, (kind, sample) in enumerate(samples.items()):
        created_at = now - timedelta(days=number, hours=1)
        ids[kind] = f"202611{20 - number}-110000-{kind}-00aa"
        update = {"study_id": ids[kind], "created_at": created_at, "ended_at": now}
        await collection.put(ids[kind], sample.model_copy(update=update))
    ids["running"] = "20261120-113000-modes-00ab"
    # The next trial is not due for an hour.
    spec = IN_MODES.spec.model_copy(update={"pause_s": 3600})
    update = {"study_id": ids["running"], "created_at": now, "results": IN_MODES.results[:1]}
    update |= {"conclusion": None, "spec": spec}
    await collection.put(ids["running"], IN_MODES.model_copy(update=update))
    return ids


async def _store_agents(fabric: Fabric, now: datetime) -> None:
    """Store a fleet with each kind of problem. Heartbeats are from shortly after ``now``."""
    at = now + timedelta(minutes=10)
    clock = ClockReading(source=ClockSource.CHRONY, read_at=at, synchronised=True, bound_s=0.0004)
    drifting = clock.model_copy(update={"bound_s": 0.31})
    engines = (
        EngineState(name="http", version="1.0"),
        EngineState(name="ftp", problem="lftp is not installed"),
    )
    agents = fleet(3, beat_at=at, clock=clock, engines=engines, state=AgentState.IDLE)
    agents += [
        presence(Role.CLIENT, 4, beat_at=at, clock=drifting, state=AgentState.BUSY),
        presence(
            Role.SERVER,
            4,
            beat_at=at,
            clock=clock,
            engine_version=None,
            problem="iperf3: not found; install iperf3 3.17 or newer, or set "
            "BROADSIDE_AGENT_IPERF3 to its path",
        ),
        presence(Role.CLIENT, 5, beat_at=now - timedelta(hours=2), clock=clock, gate=False),
    ]
    for agent in agents:
        await fabric.records.fleet.beat(agent)


def _write_counter(folder: Path, now: datetime) -> Path:
    """Write a counter with bins of 5 s, and return the path of the telemetry file."""
    rows = ["time,bytes"]
    for start_s in range(-600, SECOND - 5, 5):
        at = now - timedelta(seconds=SECOND - start_s)
        counted_bytes = 5 * PAIRS * 625e6 * 1.036 if start_s >= 0 else 1e6
        rows.append(f"{at:%Y-%m-%dT%H:%M:%SZ},{counted_bytes:.0f}")
    (folder / "counter.csv").write_text("\n".join(rows) + "\n")
    path = folder / "telemetry.toml"
    path.write_text(
        '[[source]]\ntype = "csv"\ndevice = "fw-weu-01"\nfile = "counter.csv"\n'
        'byte_counter = {column = "bytes", layer = "ip"}\n'
    )
    return path


def _add_schedules(url: str) -> None:
    """Add schedules of each state, as soon as the coordinator answers."""
    bodies = (
        {"name": "nightly", "scenario": "scale-180g", "cron": "0 2 * * *"},
        {
            "name": "saturdays-before-the-change-window",
            "scenario": "burst-280s",
            "cron": "30 3 * * 6",
            "timezone": "America/Argentina/Buenos_Aires",
            "runs_max_count": 12,
        },
        {"name": "once", "scenario": "smoke", "at": "2030-07-01T10:00:00Z"},
    )
    with httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=20)) as client:
        for body in bodies:
            client.post("/v1/schedules", json=body).raise_for_status()
        client.post("/v1/schedules/once/pause").raise_for_status()
