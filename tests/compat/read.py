"""Read the fixtures of an earlier version with the code of this checkout and print the results.

``python -m tests.compat.read VERSION`` prints a JSON object with the verdict of each run, stored
and computed again, the state of its seal, and the number of rows by kind.
"""

import asyncio
import json
import re
import sqlite3
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from broadside.agent.decide import read_job
from broadside.coordinator.agent_gateway.enrolment import Enrolled, JoinCode
from broadside.coordinator.auth.audit import AuditRow
from broadside.coordinator.auth.static_tokens import Token
from broadside.coordinator.core.plan.reserved import Reservation
from broadside.coordinator.core.plan.schedule import Firing, Schedule
from broadside.coordinator.core.plan.server_failover import Failover
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.launch import LaunchRecord
from broadside.coordinator.runs.run_states import ClosedBurst
from broadside.coordinator.studies.study import Study
from broadside.coordinator.studies.switch_lock import SwitchLock
from broadside.exchange.embedded.backup import restore
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import (
    Claim,
    Control,
    HostInfo,
    Job,
    JobReport,
    Message,
    Presence,
    ServerTest,
    Tunnel,
)
from broadside.exchange.ports import Entity
from broadside.exchange.records import Judging, RunHeader
from broadside.exchange.records.job_digests import digest_of
from broadside.exchange.rows import parse_row
from broadside.exchange.version import version_number

FIXTURES: Final = Path(__file__).parents[1] / "data" / "compat"


def _age(version: str) -> tuple[int, ...]:
    """Return a sort key of a version, oldest first. Commits are older than all releases."""
    parts = version.split(".")
    return tuple(map(int, parts)) if len(parts) > 1 else ()


VERSIONS: Final = sorted((path.name for path in FIXTURES.iterdir() if path.is_dir()), key=_age)
# Packages of the newest version before this one.
PREVIOUS: Final = max(
    (path for path in FIXTURES.glob("*/source.tar.xz") if path.parent.name != version_number()),
    key=lambda path: _age(path.parent.name),
)

# Table, partition, key and model. See broadside.exchange.records.keys.
MODELS: Final[tuple[tuple[str, str, str, type[Message]], ...]] = (
    ("control", r"run\..*", "control", Control),
    ("control", r"run\..*", r"moved\..*", Failover),
    ("results", r"burst\..*", r"claim\..*", Claim),
    ("results", r"burst\..*", r"report\..*", JobReport),
    ("results", r"tests\..*", r"[^.]*\.[^.]*\.[^.]*", ServerTest),
    ("results", "presence", ".*", Presence),
    ("results", "passport", ".*", HostInfo),
    ("results", r"tunnel\..*", r"ask\..*", Tunnel),
    ("private", "runs", r"[0-9].*", RunHeader),
    ("private", r"run\..*", "header", RunHeader),
    ("private", r"run\..*", r"closed\..*", ClosedBurst),
    ("private", r"run\..*", "judging", Judging),
    ("private", "schedules", ".*", Schedule),
    ("private", r"fired\..*", ".*", Firing),
    ("private", "studies", ".*", Study),
    ("private", "switches", ".*", SwitchLock),
    ("private", "launches", ".*", LaunchRecord),
    ("private", "reservations", ".*", Reservation),
    ("private", "tokens", ".*", Token),
    ("private", "joins", ".*", JoinCode),
    ("private", "enrolled", ".*", Enrolled),
    ("private", r"audit\..*", ".*", AuditRow),
)


def laid_out(version: str, folder: Path) -> Path:
    """Restore the backup of a version and return the data directory."""
    restore(FIXTURES / version / "backup.tar.gz", folder / "data")
    return folder / "data"


def unpack_source(file: Path, folder: Path) -> Path:
    """Unpack the packages of a version into a folder for PYTHONPATH."""
    with tarfile.open(file) as archive:
        # Python's documentation recommends this for versions without filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(folder)  # noqa: S202 - our own
    return folder


async def rows_of(fabric: Fabric, data_dir: Path, table: str) -> AsyncIterator[Entity]:
    with closing(sqlite3.connect(data_dir / f"{table}.sqlite3")) as database:
        result = database.execute("SELECT DISTINCT partition_key FROM entity").fetchall()
    for (partition,) in result:
        async for row in getattr(fabric, table).scan(partition):
            yield row


async def messages_of(fabric: Fabric, data_dir: Path) -> AsyncIterator[tuple[Message, str]]:
    """Yield all rows with a message and the stored text. They must be readable."""
    for table in ("control", "results", "private"):
        async for row in rows_of(fabric, data_dir, table):
            for place, partition, key, model in MODELS:
                if (
                    place == table
                    and re.fullmatch(partition, row.partition_key)
                    and re.fullmatch(key, row.row_key)
                    and "json" in row.properties
                ):
                    yield parse_row(model, row), str(row.properties["json"])
                    break
            else:
                assert "json" not in row.properties, f"{table}: {row.partition_key}|{row.row_key}"


def queued_bodies(data_dir: Path) -> list[bytes]:
    """Return the messages on the queue."""
    with closing(sqlite3.connect(data_dir / "queue.sqlite3")) as database:
        return [
            body for (body,) in database.execute("SELECT body FROM message WHERE reason IS NULL")
        ]


async def read_runs(fabric: Fabric) -> dict[str, dict[str, Any]]:
    """Return the verdict and the seal of all judged runs."""
    coordinator = Coordinator(fabric)
    by_name = {}
    async for header in fabric.records.private.list_runs(limit=1_000):
        plan = await coordinator.stored.read_plan(header.run_id)
        # Imports have no seal.
        seal = plan.seal_sha256
        fields: dict[str, Any] = {"plan_sha256": seal, "seal": "altered"}
        if plan.is_intact:
            fields["seal"] = "none" if seal is None else "verified"
        stored = await coordinator.stored.summary(header.run_id)
        again = await coordinator.recompute(header.run_id)
        if stored is not None and again is not None:
            ids = [finding.id for finding in again.findings]
            fields |= {
                "verdict": stored.verdict.value,
                "again": again.verdict.value,
                "plan_altered": "plan-altered" in ids,
            }
        by_name[header.run_id] = fields
    return by_name


async def jobs_again(fabric: Fabric) -> dict[str, bool]:
    """Return, for each run, whether jobs created from its plan are equal to the queued bytes."""
    coordinator = Coordinator(fabric)
    by_name = {}
    async for header in fabric.records.private.list_runs(limit=1_000):
        plan = await coordinator.stored.read_plan(header.run_id)
        if await coordinator.stored.imported(header.run_id) is not None:
            continue
        for burst in plan.bursts:
            for job in plan.jobs(burst):
                planned = await fabric.records.runs.read_jobs(
                    job.run_id, job.burst_index, job.pair_index
                )
                assert planned is not None, job.job_id
                by_name[job.job_id] = planned.by_pair[job.pair_index] == digest_of(job.body)
    return by_name


async def read_all(version: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        data_dir = laid_out(version, Path(folder))
        fabric = open_fabric(FabricSettings(data_dir=data_dir))
        try:
            kinds: Counter[str] = Counter()
            async for message, _ in messages_of(fabric, data_dir):
                kinds[type(message).__name__] += 1
            jobs = await jobs_again(fabric)
            for body in queued_bodies(data_dir):
                job = read_job(body)
                assert isinstance(job, Job), body
                jobs[job.job_id] &= job.body == body
            runs = await read_runs(fabric)
        finally:
            await fabric.close()
    return {"runs": runs, "jobs": jobs, "rows": dict(sorted(kinds.items()))}


if __name__ == "__main__":
    json.dump(asyncio.run(read_all(sys.argv[1])), sys.stdout, indent=1)
