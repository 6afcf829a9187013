"""Client and server processes for engine tests and benchmarks on this machine."""

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from broadside.agent.engine_process import (
    EngineError,
    EngineProcess,
    Iperf3Program,
    ProcessExit,
    ProcessSetup,
    StopRules,
    find_iperf3,
)
from broadside.agent.gate import Release, find_gate, gate_env, read_release, serving_env
from broadside.exchange.engines.iperf3 import ServerLimits, client_argv, server_argv
from broadside.exchange.engines.iperf3_text import StreamReader
from broadside.exchange.engines.port import EngineResult
from broadside.exchange.messages import Endpoint, Job, Traffic
from tests.live.waiting import until

BROUGHT = Path(__file__).parents[2] / ".tools" / "iperf3" / "bin" / "iperf3"
# A process is considered stuck if it needs longer than this.
PATIENCE_S = 20.0


@cache
def engines() -> Mapping[str, Iperf3Program]:
    """Return the available iperf3 releases by version, from the system and from the checkout."""
    by_name = {}
    for setting in ("iperf3", str(BROUGHT)):
        with suppress(EngineError):
            engine = find_iperf3(setting)
            by_name[str(engine.version)] = engine
    return by_name


def carried_bytes(port: int) -> int:
    """Return the bytes that TCP connections of a server on this host have received so far."""
    argv = ["ss", "--tcp", "--info", "--no-header", f"sport = :{port}"]
    stdout = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"bytes_received:(\d+)", stdout)))


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Exit status and parsed output of one end."""

    exit: ProcessExit
    reading: EngineResult
    release: Release | None


class Running:
    """Running engine process with the reader of its output."""

    def __init__(self) -> None:
        self.reader = StreamReader()
        self.process: EngineProcess

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        stop_in_s: float = PATIENCE_S,
        env: Mapping[str, str] | None = None,
    ) -> "Running":
        self = cls()
        self.process = await EngineProcess.spawn(
            argv,
            on_line=self._take,
            stop=StopRules(deadline_at_s=time.time() + stop_in_s),
            setup=ProcessSetup(env=env),
        )
        return self

    def _take(self, line: bytes, at_s: float) -> None:
        self.reader.feed(line, at_s)

    async def end(self) -> End:
        exit_ = await self.process.wait()
        release = read_release(exit_.stderr)
        reading = self.reader.finish(
            exit_.exit_code,
            stderr=exit_.stderr,
            released_at_s=release.released_at_s if release else None,
            server_ahead_s=release.server_ahead_s if release else 0.0,
        )
        return End(exit=exit_, reading=reading, release=release)

    def listens(self, port: int) -> bool:
        """Return whether the port is open in the engine's network namespace.

        It is not possible to test this with a connection, because that would end a one-off server.
        """
        tables = (Path(f"/proc/{self.process.pid}/net/{name}") for name in ("tcp", "tcp6"))
        sockets = (line.split() for table in tables for line in table.read_text().splitlines())
        return any(socket[1].endswith(f":{port:04X}") and socket[3] == "0A" for socket in sockets)


async def start_server(
    engine: Iperf3Program,
    port: int,
    *,
    address: str = "127.0.0.1",
    prefix: Sequence[str] = (),
    silence_s: float = 15.0,
) -> Running:
    """Start a server and wait for it to listen."""
    argv = server_argv(
        port,
        engine.version,
        binary=(*prefix, *engine.binary),
        bind=address,
        limits=ServerLimits(silence_s=silence_s),
    )
    gate = find_gate()
    assert gate is not None
    server = await Running.start(argv, stop_in_s=2 * PATIENCE_S, env=serving_env(gate))
    await until(f"a server on port {port}", lambda: server.listens(port), PATIENCE_S)
    return server


async def start_client(
    engine: Iperf3Program,
    port: int,
    traffic: Traffic,
    *,
    duration_s: int = 1,
    address: str = "127.0.0.1",
    prefix: Sequence[str] = (),
    release_at_s: float | None = None,
    sends_ahead: bool = True,
    stop_in_s: float = PATIENCE_S,
) -> Running:
    """Start a client, with a start gate if ``release_at_s`` is given.

    Without ``sends_ahead`` the server's clock starts immediately, and the gate delays all
    data.
    """
    job = Job(
        run_id="live",
        burst_index=0,
        pair_index=0,
        endpoint=Endpoint(agent_id="server", address=address, port=port),
        traffic=traffic,
        planned_start_at=datetime.now(UTC),
        duration_s=duration_s,
    )
    argv = client_argv(job, engine.version, binary=(*prefix, *engine.binary))
    env = None
    if release_at_s is not None:
        gate = find_gate()
        assert gate is not None
        env = gate_env(gate, release_at_s, traffic)
        if not sends_ahead:
            del env["BROADSIDE_GATE_CONNECTS"]
    return await Running.start(argv, stop_in_s=stop_in_s, env=env)
