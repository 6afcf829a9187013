"""Measure the memory and CPU of one pair of real agents in one burst.

To run it, use ``python -m tests.bench.bench_agent [--seconds 1740] [--streams 64] [--fabric azure]
[--bits-per-second 50000]``.

Both agents and a coordinator are processes of this machine and use loopback. Memory is the resident
set size that the kernel reports. A part of it is shared with other processes.

The CPU of the agent is compared with the CPU of its iperf3. If the stream is paced, iperf3 has
little to do. To get the ratio, run it without ``--bits-per-second``, so that iperf3 will use a full
core.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from broadside.lab.serving import READY_S, ServeProcess
from tests.bench.limit_rows import Row, show
from tests.bench.swarm import fabric_of
from tests.live.free_ports import free_port

MEMORY_MAX_MB: Final = {"embedded": 70, "azure": 110}
# Memory must not grow by more than this after the first minute.
GROWN_MAX_MB: Final = 3
# Limit on the CPU of agent and engine together, divided by the CPU of the engine.
CPU_MAX_RATIO: Final = 1.03
LEAD_S: Final = 10
SAMPLE_S: Final = 5.0
# Memory should not grow after this time in the burst.
SETTLED_S: Final = 60.0


class Watched:
    """Process of one agent, with samples of its memory and CPU."""

    def __init__(self, role: str, port: int, environment: Mapping[str, str], folder: Path) -> None:
        self.role = role
        # Pairs of seconds since the burst began and resident memory in MB.
        self.held_mb: list[tuple[float, float]] = []
        with (folder / f"{role}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "broadside.agent"],
                env={
                    **{
                        name: value for name, value in os.environ.items() if "BROADSIDE" not in name
                    },
                    **environment,
                    "BROADSIDE_AGENT_ROLE": role,
                    "BROADSIDE_AGENT_AGENT_ID": f"bench-{role}",
                    "BROADSIDE_AGENT_ADDRESS": "127.0.0.1",
                    "BROADSIDE_AGENT_PORTS": str(port),
                    "BROADSIDE_AGENT_ECHO_PORT": "0",
                    "BROADSIDE_AGENT_SPOOL_DIR": str(folder / f"spool-{role}"),
                },
                stdout=log,
                stderr=log,
            )

    def sample(self, at_s: float) -> None:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        self.held_mb.append((at_s, int(status.split("VmRSS:")[1].split()[0]) / 1024))

    @property
    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU seconds of the agent and of its engines that have ended."""
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        user, system, ended_user, ended_system = (int(item) for item in parts[11:15])
        tick_s = os.sysconf("SC_CLK_TCK")
        return (user + system) / tick_s, (ended_user + ended_system) / tick_s

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextmanager
def started(
    role: str, port: int, environment: Mapping[str, str], folder: Path
) -> Iterator[Watched]:
    """Start an agent and stop it at the end of the context."""
    agent = Watched(role, port, environment, folder)
    try:
        yield agent
    finally:
        agent.stop()


def rows(
    seconds: int = 120,
    streams: int = 64,
    kind: str = "embedded",
    bits_per_second: int | None = None,
) -> Iterator[Row]:
    """Yield the highest memory, its growth and the CPU of each agent."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broadside-agent-")))
        environment, _ = stack.enter_context(fabric_of(kind, folder))
        serving = stack.enter_context(ServeProcess(environment, folder))
        port = free_port()
        ends = [
            stack.enter_context(started(role, port, environment, folder))
            for role in ("server", "client")
        ]
        before, summary = _fire(serving, ends, seconds, streams, bits_per_second)
        spent = [end.cpu_s for end in ends]
    name = f"{streams} streams x {seconds} s, {kind}"
    missed = 1 - summary["bursts"][0]["pairs_measured"]
    yield Row(name=f"{name}: pairs not measured", value=missed, unit="pairs", limit=0)
    for end, (local_0_s, engine_0_s), (local_s, engine_s) in zip(ends, before, spent, strict=True):
        text = f"{name}: {end.role}"
        most_mb = max(stored for _, stored in end.held_mb)
        settled_mb = [stored for at_s, stored in end.held_mb if at_s >= min(SETTLED_S, seconds / 2)]
        grown_mb = max(settled_mb) - settled_mb[0]
        yield Row(name=f"{text}, memory", value=most_mb, unit="MB", limit=MEMORY_MAX_MB[kind])
        yield Row(
            name=f"{text}, grown since minute 1", value=grown_mb, unit="MB", limit=GROWN_MAX_MB
        )
        yield Row(
            name=f"{text}, CPU with its engine",
            value=local_s - local_0_s + engine_s - engine_0_s,
            unit="CPU-s",
            limit=None if bits_per_second else CPU_MAX_RATIO * (engine_s - engine_0_s),
            peer="the engine's own",
            peer_value=engine_s - engine_0_s,
        )


def _fire(
    serving: ServeProcess,
    ends: list[Watched],
    seconds: int,
    streams: int,
    bits_per_second: int | None,
) -> tuple[list[tuple[float, float]], Any]:
    """Run one burst and sample the agents during it.

    Return the CPU seconds of each agent before the burst, and the summary of the run.
    """
    traffic: dict[str, Any] = {"streams_count": streams}
    traffic["stream_bits_per_second"] = bits_per_second
    if bits_per_second is not None:
        # At least one block is sent per second.
        traffic["block_bytes"] = min(bits_per_second // 8, 131_072)
    fields = {"bursts_count": 1, "burst_s": seconds, "period_s": seconds + 60, "lead_s": LEAD_S}
    body = {"scenario": "loopback", "overrides": {**fields, "traffic": traffic, "objective": {}}}
    with httpx.Client(base_url=serving.url, timeout=60) as client:
        until_s = time.monotonic() + READY_S
        while (answer := client.post("/v1/runs", json=body)).status_code >= 300:
            if time.monotonic() > until_s:
                raise RuntimeError(answer.text)
            # The launch is refused until both agents have registered.
            time.sleep(1)
        run = answer.json()["run_id"]
        begin_s = time.monotonic() + LEAD_S
        before = [end.cpu_s for end in ends]
        while (answer := client.get(f"/v1/runs/{run}/summary")).status_code != 200:
            for end in ends:
                end.sample(time.monotonic() - begin_s)
            time.sleep(SAMPLE_S)
    return before, answer.json()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_agent")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--fabric", choices=("embedded", "azure"), default="embedded")
    parser.add_argument("--bits-per-second", type=int, help="of each stream; none: all there is")
    arguments = parser.parse_args()
    return int(
        show(
            rows(arguments.seconds, arguments.streams, arguments.fabric, arguments.bits_per_second)
        )
    )


if __name__ == "__main__":
    sys.exit(main())
