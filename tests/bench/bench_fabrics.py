"""Compare the three fabrics SQLite on one host, HTTPS between hosts, and Azure emulators.

To run it, use ``python -m tests.bench.bench_fabrics [--demo]``.

One process runs twenty agents on a fabric. The time of 1,000 jobs is measured from sending to the
last settled claim. Then all agents upload 1.5 kB, eight at a time, for five seconds. The CPU of the
serving processes is measured too. SQLite does not need a serving process. If most of the time is
CPU of the agents' process, that process is the limit.

Use ``--demo`` to add the start spread of a burst of twelve pairs in a lab.

The Azure emulators are a broker in Python and Azurite. They can be used to measure the cost of our
side, but not the speed of Service Bus or Table Storage.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.agent_gateway.enrolment import Enrolments, JoinTerms
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.http.joining import join, new_code
from broadside.exchange.messages import Role
from broadside.exchange.ports import ExchangeError
from broadside.lab import azure_services
from broadside.lab.serving import ServeProcess
from broadside.lab.site import sqlite_fabric
from tests.bench.bench_hosts import chunk_row, claim_row, cpu_s, outgoing

AGENTS_COUNT: Final = 20
JOBS_COUNT: Final = 1000
UPLOAD_S: Final = 5.0
# Parallel uploads of an agent.
AT_ONCE: Final = 8
PATIENCE_S: Final = 120.0
DEMO: Final = {"embedded": "embedded", "http": "http", "azure": "azure-local"}


@dataclass(slots=True, kw_only=True)
class Agent:
    name: str
    fabric: Fabric
    # Indexes of the pairs that the agent claimed.
    pairs: list[int] = field(default_factory=list)
    uploads_count: int = 0

    async def work(self, claimed: list[float]) -> None:
        while len(claimed) < JOBS_COUNT:
            try:
                delivery = await self.fabric.queue.receive(1.0)
            except ExchangeError:
                continue
            if delivery is None:
                continue
            pair = int(delivery.message_id.rpartition(".")[2])
            await self.fabric.results.insert(claim_row(delivery.message_id, self.name))
            await self.fabric.queue.complete(delivery)
            self.pairs.append(pair)
            claimed.append(time.monotonic())

    async def upload(self, lane: int, until_s: float) -> None:
        row = chunk_row(self.pairs[lane % len(self.pairs)])
        while time.monotonic() < until_s:
            await self.fabric.results.upsert(row)
            self.uploads_count += 1


@contextlib.contextmanager
def served(kind: str, folder: Path) -> Iterator[tuple[Mapping[str, str], list[int]]]:
    """Start a fabric and yield the coordinator's settings and the pids of its services."""
    settings = sqlite_fabric(folder / "data")
    match kind:
        case "http":
            listen = {"BROADSIDE_HOSTS_LISTEN": "127.0.0.1:0", "BROADSIDE_QUEUE_LOCK_S": "60"}
            with ServeProcess({**settings, **listen}, folder) as serving:
                text = serving.log_path.read_text()
                at = text.split("agents on other hosts enroll at ")[1].split()[0]
                yield {**settings, "at": at}, [serving.pid]
        case "azure":
            before = set(children())
            with azure_services.standing(folder) as azure:
                yield {**settings, **azure.fabric()}, sorted(set(children()) - before)
        case _:
            yield settings, []


def children() -> list[int]:
    """Return the pids of this process and of all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    results = [os.getpid()]
    for pid in results:
        results += [child for child, parent in parents.items() if parent == pid]
    return results[1:]


def settings_of(environment: Mapping[str, str], credential: Path | None = None) -> FabricSettings:
    fields = {
        name.removeprefix("BROADSIDE_").lower(): value
        for name, value in environment.items()
        if name.startswith("BROADSIDE_")
    }
    if credential is not None:
        fields |= {"fabric": "http", "credential_file": str(credential)}
    return FabricSettings.model_validate(fields)


async def open_agents(
    environment: Mapping[str, str], embedded: Fabric, folder: Path
) -> list[Agent]:
    names = [f"a{number:02d}" for number in range(AGENTS_COUNT)]
    if (at := environment.get("at")) is None:
        return [Agent(name=name, fabric=open_fabric(settings_of(environment))) for name in names]
    now = datetime.now(UTC)
    code, secret = new_code(load_authority(folder / "data", now).authority)
    until = now + timedelta(hours=1)
    await Enrolments(embedded.private).add_code(
        secret, JoinTerms(Role.CLIENT, AGENTS_COUNT, until), by="bench", now=now
    )
    agents = []
    for name in names:
        path = folder / f"{name}.json"
        await join(code, (at,), name, "client", path)
        agents.append(Agent(name=name, fabric=open_fabric(settings_of(environment, path))))
    return agents


async def measure(kind: str, folder: Path) -> dict[str, float]:
    with served(kind, folder) as (environment, pids):
        local = open_fabric(settings_of(environment))
        agents = await open_agents(environment, local, folder)

        def spent_s() -> float:
            return sum(map(cpu_s, pids))

        try:
            claimed: list[float] = []
            workers = [asyncio.create_task(agent.work(claimed)) for agent in agents]
            # Streams and connections are established after this time.
            await asyncio.sleep(2.0)
            began_s, before_s, local_s = time.monotonic(), spent_s(), time.process_time()
            now = datetime.now(UTC)
            await local.queue.send([outgoing(number, now) for number in range(JOBS_COUNT)])
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*workers)
            claims_s, claims_cpu_s = claimed[JOBS_COUNT - 1] - began_s, spent_s() - before_s
            agents_cpu_s = time.process_time() - local_s
            began_s, before_s = time.monotonic(), spent_s()
            until_s = began_s + UPLOAD_S
            lanes = [
                agent.upload(n, until_s) for agent in agents if agent.pairs for n in range(AT_ONCE)
            ]
            await asyncio.gather(*lanes)
            took_s, uploads_cpu_s = time.monotonic() - began_s, spent_s() - before_s
            count = sum(agent.uploads_count for agent in agents)
        finally:
            for fabric in (local, *(agent.fabric for agent in agents)):
                await fabric.close()
    return {
        "claims_s": claims_s,
        "claims_cpu_s": claims_cpu_s,
        "agents_cpu_s": agents_cpu_s,
        "uploads_per_s": count / took_s,
        "upload_cpu_ms": uploads_cpu_s / count * 1e3,
    }


def start_spread_s(kind: str) -> float | None:
    """Return the start spread of the first burst of a demo in seconds, or None if unknown."""
    argv = [sys.executable, "-m", "broadside.coordinator", "demo", "--fabric", DEMO[kind]]
    size = ["--pairs", "12", "--bursts", "1", "-o", "json"]
    ran = subprocess.run([*argv, *size], capture_output=True, check=False, timeout=400)
    answer = json.loads(ran.stdout)["bursts"][0].get("start_spread_s")
    return None if answer is None else float(answer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=tuple(DEMO), action="append")
    parser.add_argument("--demo", action="store_true", help="and the start spread; needs root")
    options = parser.parse_args()
    print(f"load average, 1 min: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        "fabric     1,000 claimed   CPU of it   agents' CPU   uploads    CPU of one   start spread"
    )
    for kind in options.only or DEMO:
        with tempfile.TemporaryDirectory(prefix="broadside-bench-") as folder:
            result = asyncio.run(measure(kind, Path(folder)))
        spread_s = start_spread_s(kind) if options.demo else None
        spread = "-" if spread_s is None else f"{spread_s * 1e3:8.1f} ms"
        print(
            f"{kind:10} {result['claims_s']:8.2f} s    {result['claims_cpu_s']:6.2f} s"
            f"     {result['agents_cpu_s']:6.2f} s  {result['uploads_per_s']:7.0f}/s"
            f"  {result['upload_cpu_ms']:7.2f} ms   {spread}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
