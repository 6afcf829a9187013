"""Measure the CPU of a coordinator with 1,000 remote agents, and the waits of the agents.

To run it, use ``python -m tests.bench.bench_hosts``. It will start a real coordinator with its
HTTPS listener. The agents are simulated by their requests. An agent has a stream, sends a heartbeat
every 5 s, uploads its seconds every 3 s, and watches the control row of the run. Twenty agents use
the real adapter to send heartbeats and uploads. The adapter would use too much CPU in this process
if all agents used it.

First all agents receive one job at the same time and claim it. The agents share the machine with
the coordinator, so the printed load should be considered too.
"""

import argparse
import asyncio
import json
import os
import random
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np

from broadside.agent.cpu import parse_process_time
from broadside.coordinator.agent_gateway.enrolment import Enrolled
from broadside.coordinator.auth.static_tokens import digest
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue, QueueRules
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.http.coordinator_client import CoordinatorClient
from broadside.exchange.http.credential import AgentCredential, new_secret
from broadside.exchange.http.http_ports import HttpTable
from broadside.exchange.messages import Claim, Control, JobPhase, Role
from broadside.exchange.ports import Entity, ExchangeError, Outgoing
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import CHUNK as CLIENT_CHUNK
from broadside.exchange.records.keys import CLAIM, ENROLLED, burst_partition
from broadside.exchange.row_text import entity_fields
from broadside.exchange.rows import make_row, message_row
from broadside.lab.serving import ServeProcess
from tests.bench.limit_rows import Row, show
from tests.unit.agent.jobs import make_job

HEARTBEAT_S: Final = 5.0
UPLOAD_S: Final = 3.0
RUN: Final = "bench"
# Growth of an open chunk in three seconds, in bytes.
CHUNK: Final = random.Random(7).randbytes(1_500)
PRESENCE_BYTES: Final = 900
# Number of agents that use the real adapter.
LINKS_COUNT: Final = 20
# Limit as a share of one core.
CPU_MAX: Final = 0.5
BEAT_P99_MAX_S: Final = 0.3


@dataclass(slots=True, kw_only=True)
class Agent:
    """One agent with two connections: its stream, and one for requests.

    Attributes:
        claimed_s: Monotonic time of its claim, or None.
        pair: Index of the claimed pair, or None.
        link: Real adapter for heartbeats and uploads, or None.
    """

    number: int
    secret: str
    port: int
    context: ssl.SSLContext
    beats_s: list[float] = field(default_factory=list)
    uploads_s: list[float] = field(default_factory=list)
    claimed_s: float | None = None
    lines_count: int = 0
    failures_count: int = 0
    pair: int | None = None
    link: CoordinatorClient | None = None
    _session: str = field(default_factory=lambda: uuid4().hex)
    _delivery: "asyncio.Future[Any] | None" = None
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return f"c{self.number:04d}"

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)

    def _head(self, line: str, length: int | None = None) -> bytes:
        reported = "" if length is None else f"Content-Length: {length}\r\n"
        return (
            f"{line} HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer {self.secret}\r\n{reported}\r\n"
        ).encode()

    async def ask(self, do: str, **said: Any) -> Any:
        """Send one operation and return its answer."""
        body = json.dumps([{"id": uuid4().hex, "do": do, **said}]).encode()
        async with self._turn:
            if self._reader is None or self._writer is None:
                self._reader, self._writer = await self._open()
            self._writer.write(self._head("POST /v1/exchange/operations", len(body)) + body)
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            text = await self._reader.readexactly(length)
        [answer] = json.loads(text)
        if "error" in answer:
            raise RuntimeError(answer["said"])
        return answer.get("ok")

    async def stream(self, opened: asyncio.Event) -> None:
        reader, writer = await self._open()
        writer.write(self._head(f"GET /v1/exchange/stream?session={self._session}"))
        await reader.readuntil(b"\r\n\r\n")
        opened.set()
        while line := await reader.readline():
            if not line.startswith(b"{"):
                continue
            self.lines_count += 1
            news = json.loads(line)
            if "want" in news and self._delivery is not None and not self._delivery.done():
                self._delivery.set_result(news["delivery"])

    async def beat_forever(self) -> None:
        row = Entity(
            partition_key="presence",
            row_key=f"client.{self.name}",
            properties={
                "json": json.dumps(
                    {"agent_id": self.name, "role": "client", "more": "x" * PRESENCE_BYTES}
                )
            },
        )
        await self._every(HEARTBEAT_S, self.beats_s, row)

    async def upload_forever(self) -> None:
        assert self.pair is not None
        await self._every(UPLOAD_S, self.uploads_s, chunk_row(self.pair))

    async def _every(self, pause_s: float, took_s: list[float], row: Entity) -> None:
        fields = entity_fields(row)
        await asyncio.sleep(random.random() * pause_s)
        while True:
            began_s = time.monotonic()
            try:
                if self.link is None:
                    await self.ask("upsert", table="results", row=fields)
                else:
                    await HttpTable(self.link, "results").upsert(row)
                took_s.append(time.monotonic() - began_s)
            except (OSError, RuntimeError, ExchangeError, asyncio.IncompleteReadError):
                self.failures_count += 1
                self._reader = None
            await asyncio.sleep(max(0.0, pause_s - (time.monotonic() - began_s)))

    async def want(self) -> None:
        self._delivery = asyncio.get_running_loop().create_future()
        await self.ask("want", session=self._session, want=uuid4().hex, wait_s=110)

    async def take(self) -> None:
        """Process a job from its delivery to the settled claim."""
        assert self._delivery is not None
        delivery = await self._delivery
        job_id = delivery["message_id"]
        pair_index = int(job_id.rpartition(".")[2])
        row = entity_fields(claim_row(job_id, self.name))
        await self.ask("insert", table="results", row=row)
        self.claimed_s = time.monotonic()
        self.pair = pair_index
        await self.ask("complete", token=delivery["token"])

    async def watch(self) -> None:
        await self.ask("watch", session=self._session, partition=f"run.{RUN}")


def cpu_s(pid: int) -> float:
    return parse_process_time(Path(f"/proc/{pid}/stat").read_text()).cpu_s


async def prepare(data_dir: Path, agents_count: int, at: datetime) -> list[str]:
    """Enroll agents and store the control row of their run, and return the agents' secrets."""
    secrets = [new_secret() for _ in range(agents_count)]
    fabric = open_fabric(FabricSettings(data_dir=data_dir))
    shelf = Collection(fabric.private, ENROLLED, Enrolled)
    for number, secret in enumerate(secrets):
        enrolled = Enrolled(
            agent_id=f"c{number:04d}",
            role=Role.CLIENT,
            sha256=digest(secret),
            join="bench",
            enrolled_at=at,
        )
        await shelf.put(enrolled.key, enrolled)
    control = Control(run_id=RUN, lease_until_at=at + timedelta(hours=1))
    await fabric.records.runs.create(RUN, b"plan", control)
    await fabric.close()
    return secrets


def claim_row(job_id: str, agent_id: str) -> Entity:
    claim = Claim(
        job_id=job_id, agent_id=agent_id, phase=JobPhase.CLAIMED, claimed_at=datetime.now(UTC)
    )
    return message_row(burst_partition(RUN, 0), f"{CLAIM}{job_id.rpartition('.')[2]}", claim)


def chunk_row(pair_index: int) -> Entity:
    key = f"{CLIENT_CHUNK}{pair_index:05d}.000"
    return make_row(burst_partition(RUN, 0), key, {"client_up_0": CHUNK})


def outgoing(pair_index: int, at: datetime) -> Outgoing:
    start_at = at + timedelta(minutes=10)
    job = make_job(run_id=RUN, pair_index=pair_index, planned_start_at=start_at)
    return Outgoing(
        body=job.body, message_id=job.job_id, expires_at=job.planned_start_at, enqueue_at=None
    )


async def measure(folder: Path, agents_count: int, seconds: float) -> list[Row]:
    data_dir = folder / "data"
    at = datetime.now(UTC)
    secrets = await prepare(data_dir, agents_count, at)
    environment = {
        "BROADSIDE_DATA_DIR": str(data_dir),
        "BROADSIDE_HOSTS_LISTEN": "127.0.0.1:0",
        "BROADSIDE_QUEUE_LOCK_S": "60",
    }
    with ServeProcess(environment, folder) as serving:
        text = serving.log_path.read_text()
        port = int(text.split("agents on other hosts enroll at ")[1].split()[0].rpartition(":")[2])
        authority = (data_dir / "tls" / "authority.pem").read_text()
        context = ssl.create_default_context(cadata=authority)
        context.check_hostname = False
        agents = [
            Agent(number=number, secret=secret, port=port, context=context)
            for number, secret in enumerate(secrets)
        ]
        pid = serving.pid
        tasks = []
        # Handshakes cost CPU on both sides, so the agents start in groups.
        for start in range(0, agents_count, 50):
            part = agents[start : start + 50]
            opened = [asyncio.Event() for _ in part]
            tasks += [
                asyncio.create_task(agent.stream(event))
                for agent, event in zip(part, opened, strict=True)
            ]
            await asyncio.gather(*(event.wait() for event in opened))
            await asyncio.gather(*(agent.want() for agent in part))
        queue = EmbeddedQueue(data_dir, QueueRules(lock_s=60))
        began_s, cpu_before_s = time.monotonic(), cpu_s(pid)
        await queue.send([outgoing(number, at) for number in range(agents_count)])
        await asyncio.gather(*(agent.take() for agent in agents))
        claimed_s = max(agent.claimed_s or 0.0 for agent in agents)
        claims_cpu_s = cpu_s(pid) - cpu_before_s
        await queue.close()
        await asyncio.gather(*(agent.watch() for agent in agents))
        for agent in agents[:LINKS_COUNT]:
            proof = AgentCredential(
                coordinators=(f"https://127.0.0.1:{port}",),
                authority=authority,
                agent_id=agent.name,
                role="client",
                secret=agent.secret,
                issued_s=time.time(),
            )
            agent.link = CoordinatorClient(proof)
        for agent in agents:
            tasks += [
                asyncio.create_task(agent.beat_forever()),
                asyncio.create_task(agent.upload_forever()),
            ]
        # The phases of the heartbeats become stable.
        await asyncio.sleep(2 * HEARTBEAT_S)
        for agent in agents:
            agent.beats_s.clear()
            agent.uploads_s.clear()
        cpu_before_s, began_load_s = cpu_s(pid), time.monotonic()
        await asyncio.sleep(seconds)
        passed_s = time.monotonic() - began_load_s
        cpu_ratio = (cpu_s(pid) - cpu_before_s) / passed_s
        for task in tasks:
            task.cancel()
        with suppress(Exception):
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(agent.link.close() for agent in agents if agent.link))
    beats = [took_s for agent in agents for took_s in agent.beats_s]
    by_link = [took_s for agent in agents if agent.link for took_s in agent.beats_s]
    uploads = [took_s for agent in agents for took_s in agent.uploads_s]
    name = f"{agents_count} agents over HTTPS"

    def p99(label: str, values: list[float], limit: float | None = None) -> Row:
        # If no request was answered, the whole time is a lower bound.
        known = values or [passed_s]
        p50, p99 = (float(item) for item in np.quantile(known, (0.5, 0.99)))
        text = f"{name}: {label}, p99"
        return Row(name=text, value=p99, unit="s", limit=limit, peer="p50", peer_value=p50)

    return [
        Row(name=f"{name}: load average", value=os.getloadavg()[0], unit=""),
        Row(
            name=f"{name}: requests that failed",
            value=sum(agent.failures_count for agent in agents),
            unit="",
            limit=0,
        ),
        Row(
            name=f"{name}: first job sent to last claim",
            value=claimed_s - began_s,
            unit="s",
            peer="the coordinator's CPU",
            peer_value=claims_cpu_s,
        ),
        p99("a heartbeat", beats, BEAT_P99_MAX_S),
        p99(f"a heartbeat of {LINKS_COUNT} by the real link", by_link),
        p99("an upload", uploads),
        Row(
            name=f"{name}: requests a second",
            value=(len(beats) + len(uploads)) / passed_s,
            unit="",
        ),
        Row(name=f"{name}: coordinator, of a core", value=cpu_ratio, unit="", limit=CPU_MAX),
    ]


def rows(agents_count: int = 1000, seconds: float = 20) -> Iterator[Row]:
    """Run a coordinator with remote agents and yield its rows."""
    with tempfile.TemporaryDirectory(prefix="broadside-bench-") as folder:
        yield from asyncio.run(measure(Path(folder), agents_count, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    return show(rows(options.agents, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
