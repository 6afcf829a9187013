"""Real agents on loopback, with a clock that passes the clock gate, and their records."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from broadside.agent.engine_process import EngineError, Iperf3Program, find_iperf3
from broadside.exchange.engines import filled_in
from broadside.exchange.engines.iperf3 import streams_json
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Claim, Control, Job, JobReport, Presence
from broadside.exchange.ports import Outgoing
from broadside.exchange.records import RunHeader
from broadside.exchange.second_rows import TestSeconds
from tests.live.free_ports import free_port
from tests.live.warm import shell
from tests.one_table import PairSeconds, read_seconds

REPORT_WITHIN_S: Final = 60.0
# The time from launch to the planned start. Agents on busy cores need it to claim and arm.
START_S: Final = 3.5


def find_engine(*, streaming: bool) -> Iperf3Program | None:
    """Return an iperf3 of this machine.

    Use ``streaming`` to select JSON intervals or a single report.
    """
    for setting in (os.environ.get("BROADSIDE_AGENT_IPERF3"), None, "/usr/bin/iperf3"):
        try:
            engine = find_iperf3(setting)
        except EngineError:
            continue
        if streams_json(engine.version) is streaming:
            return engine
    return None


def find_any_engine() -> Iperf3Program:
    """Return an iperf3 of this machine, preferably one that streams JSON."""
    result = find_engine(streaming=True) or find_engine(streaming=False)
    assert result is not None, "iperf3: not installed; apt-get install iperf3"
    return result


def presences_in(data_dir: Path) -> Mapping[str, Presence]:
    """Return the agents that publish a presence in the data directory of an embedded fabric."""

    async def read() -> Mapping[str, Presence]:
        fabric = open_fabric(FabricSettings(fabric="embedded", data_dir=data_dir))
        try:
            return {item.agent_id: item for item in await fabric.records.fleet.read_presences()}
        finally:
            await fabric.close()

    return asyncio.run(read())


class AgentProcess:
    """Process of ``python -m broadside.agent`` with test settings.

    Use ``hurry`` to shorten constants of :mod:`broadside.agent.server` that would take minutes.
    """

    def __init__(
        self,
        fabric: FabricSettings,
        log: Path,
        *,
        hurry: Mapping[str, float] = {},
        **settings: object,
    ) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("BROADSIDE_")}
        env["BROADSIDE_DATA_DIR"] = str(fabric.data_dir)
        env["BROADSIDE_STORAGE_WAIT_S"] = str(fabric.storage_wait_s)
        env |= {f"BROADSIDE_AGENT_{k.upper()}": str(v) for k, v in settings.items()}
        self.agent_id = str(settings["agent_id"])
        self.log = log
        with log.open("ab") as text:
            self.process = shell().start(
                "tests.live.hurried_agent",
                [json.dumps(hurry)],
                env=env,
                folder=Path.cwd(),
                stdout=text,
                stderr=text,
            )

    def stop(self) -> int:
        """Use SIGTERM to stop the agent, as systemd would, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def children(self) -> list[int]:
        """Return the process ids of the engines that this agent has started.

        Processes of chronyc are excluded, because the agent can use it to query the clock at any
        time.
        """
        pid = self.process.pid
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in listed.split() if command_of(int(child)) != "chronyc"]


def command_of(pid: int) -> str | None:
    """Return the name of a process's program, or None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return None


def is_alive(pid: int) -> bool:
    """Return whether a process is running. A zombie is not running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@dataclass
class Range:
    """Fabric, clock and started agents of a test."""

    folder: Path
    clock: str
    fabric_settings: FabricSettings = field(init=False)
    fabric: Fabric = field(init=False)
    agents: list[AgentProcess] = field(default_factory=list)
    _runs_count: int = 0

    def __post_init__(self) -> None:
        self.fabric_settings = FabricSettings(
            data_dir=self.folder / "fabric", queue_lock_s=5, storage_wait_s=1
        )
        self.fabric = open_fabric(self.fabric_settings)

    async def close(self) -> None:
        for agent in self.agents:
            agent.process.send_signal(signal.SIGTERM)
        for agent in self.agents:
            agent.stop()
        await self.fabric.close()

    def kill_agents(self) -> None:
        """Kill all agents, so that agents of a failed test do not take jobs of the next test."""
        for agent in self.agents:
            agent.kill()
        self.agents.clear()

    def start(
        self,
        role: str,
        engine: Iperf3Program,
        *,
        hurry: Mapping[str, float] = {},
        **settings: object,
    ) -> AgentProcess:
        """Start an agent. Use ``settings`` to override the short test defaults."""
        agent_id = str(settings.pop("agent_id", f"{role}-{len(self.agents) + 1}"))
        defaults: dict[str, object] = {
            "role": role,
            "iperf3": engine.binary[0],
            "agent_id": agent_id,
            "address": "127.0.0.1",
            "chronyc_socket": self.clock,
            "spool_dir": self.folder / f"spool-{agent_id}",
            "arm_lead_s": 3,
            "heartbeat_s": 1,
            "upload_s": 0.5,
            "control_poll_s": 0.5,
        }
        log = self.folder / f"{agent_id}.log"
        agent = AgentProcess(self.fabric_settings, log, hurry=hurry, **(defaults | settings))
        self.agents.append(agent)
        return agent

    async def start_pair(
        self, name: str, engine: Iperf3Program
    ) -> tuple[AgentProcess, AgentProcess, int]:
        """Start a client and a server, and wait for the server to listen on the port."""
        port = free_port()
        server = self.start("server", engine, agent_id=f"server-{name}", ports=port)
        client = self.start("client", engine, agent_id=f"client-{name}")
        await self.presence(f"server-{name}", lambda presence: presence.ports == (port,))
        return server, client, port

    async def presence(
        self, agent_id: str, ready: Callable[[Presence], bool], within_s: float = 60.0
    ) -> Presence:
        """Wait for a heartbeat to satisfy ``ready``."""
        deadline_s = time.monotonic() + within_s
        latest: Presence | None = None
        while time.monotonic() < deadline_s:
            for latest in await self.fabric.records.fleet.read_presences():
                if latest.agent_id == agent_id and ready(latest):
                    return latest
            await asyncio.sleep(0.1)
        raise AssertionError(
            f"{agent_id}: not so in time, last {latest}\n{self.log_text(agent_id)}"
        )

    async def launch(
        self,
        port: int,
        *,
        starts_in_s: float = START_S,
        lease_s: float = 60.0,
        send: bool = True,
        **changes: Any,
    ) -> Job:
        """Store a run with a single job and send its message to the queue."""
        self._runs_count += 1
        now = datetime.now(UTC)
        fields: dict[str, Any] = {
            "run_id": f"run-{self._runs_count}",
            "burst_index": 0,
            "pair_index": 0,
            "endpoint": {"agent_id": "server-1", "address": "127.0.0.1", "port": port},
            "traffic": {"streams_count": 2, "stream_bits_per_second": 20_000_000},
            "planned_start_at": now + timedelta(seconds=starts_in_s),
            "duration_s": 2,
            "raw": "all",
            # Allow for delays, because other tests will be using the CPU cores.
            "late_after_s": 5,
        }
        fields |= changes
        job = Job.model_validate(fields | {"traffic": filled_in(fields["traffic"])})
        header = RunHeader(run_id=job.run_id, scenario="test", created_at=now, created_by="test")
        control = Control(run_id=job.run_id, lease_until_at=now + timedelta(seconds=lease_s))
        await self.fabric.records.create_run(header, b"{}", control)
        await self.fabric.records.runs.save_jobs(job.run_id, job.burst_index, [job])
        if send:
            await self.send(job)
        return job

    async def send(
        self, job: Job, body: bytes | None = None, message_id: str | None = None
    ) -> None:
        await self.fabric.queue.send(
            [
                Outgoing(
                    body=job.body if body is None else body,
                    message_id=message_id or job.job_id,
                    # Use a longer value than a coordinator would, so that late jobs will be
                    # received here.
                    expires_at=datetime.now(UTC) + timedelta(seconds=60),
                )
            ]
        )

    async def report(self, job: Job, within_s: float = REPORT_WITHIN_S) -> JobReport:
        """Wait for the report of a job."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            reports = await self.fabric.records.bursts.read_reports(job.run_id, job.burst_index)
            if job.pair_index in reports:
                return reports[job.pair_index]
            await asyncio.sleep(0.1)
        text = "\n".join(self.log_text(agent.agent_id) for agent in self.agents)
        raise AssertionError(f"no report of {job.job_id}\n{text}")

    async def under_way(self, job: Job, intervals_count: int = 0) -> None:
        """Wait for a job to be claimed, or for its client to upload enough intervals."""
        async with asyncio.timeout(REPORT_WITHIN_S):
            while True:
                claims = await self.fabric.records.bursts.read_claims(job.run_id, job.burst_index)
                seconds = await self.seconds(job) if intervals_count else None
                seen = max((len(t.intervals) for t in seconds.tracks), default=0) if seconds else 0
                if claims and seen >= intervals_count:
                    return
                await asyncio.sleep(0.1)

    async def claim(self, job: Job, holds: Callable[[Claim], bool]) -> Claim:
        """Wait for the claim of a job to satisfy ``holds``.

        Claims change a little after the event.
        """
        async with asyncio.timeout(REPORT_WITHIN_S):
            while True:
                claims = await self.fabric.records.bursts.read_claims(job.run_id, job.burst_index)
                for claim in filter(holds, claims.values()):
                    return claim
                await asyncio.sleep(0.05)

    async def raw(self, job: Job) -> bytes:
        """Wait for the agent to upload the raw output of a job's client in the background."""
        bursts = self.fabric.records.bursts
        async with asyncio.timeout(REPORT_WITHIN_S):
            while True:
                raw = await bursts.read_raw(job.run_id, job.burst_index, job.pair_index)
                if raw is not None:
                    return raw
                await asyncio.sleep(0.1)

    async def seconds(self, job: Job) -> PairSeconds | None:
        result = await read_seconds(self.fabric.records, job.run_id, job.burst_index)
        return result[0] if result else None

    async def tests(
        self, port: int, ready: Callable[[TestSeconds], bool], within_s: float = 60.0
    ) -> TestSeconds:
        """Wait for a server's record on a port to satisfy ``ready``, and return it."""
        deadline_s = time.monotonic() + within_s
        results: list[TestSeconds] = []
        while time.monotonic() < deadline_s:
            now = datetime.now(UTC)
            tests = await self.fabric.records.bursts.read_tests(now - timedelta(minutes=5), now)
            results = [t for t in tests if t.test.endpoint.port == port and ready(t)]
            if results:
                return results[-1]
            await asyncio.sleep(0.1)
        text = "\n".join(self.log_text(agent.agent_id) for agent in self.agents)
        raise AssertionError(f"no such test on port {port}: {tests}\n{text}")

    def log_text(self, agent_id: str) -> str:
        """Return the log of the agent."""
        log = self.folder / f"{agent_id}.log"
        return log.read_text() if log.exists() else ""
