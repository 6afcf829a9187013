"""Test that client engines end at the hard stop if the agent is stopped using SIGSTOP."""

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadside.agent.workspace import sweep
from broadside.exchange.engines import engines
from tests.live.engines import PATIENCE_S
from tests.live.live_agents import is_alive
from tests.live.waiting import until

pytestmark = pytest.mark.live

NAME = "hard-stop"

# Use a minimal agent to run the client of a job, with a hard stop a second after the deadline.
PROGRAM = """
import asyncio, sys, time
from datetime import UTC, datetime
from broadside.agent import engine_process as process
from broadside.agent.attempt import Attempt, AttemptLimits
from broadside.agent.installed_engines import find_installed_engine
from broadside.agent.engine_process import find_iperf3
from broadside.agent.workspace import Workspace
from broadside.exchange.engines import find
from broadside.exchange.engines.port import ClientRequest, Tool
from broadside.exchange.messages import Endpoint, Job, Role, Traffic

process.HARD_STOP_AFTER_S = 1.0

async def main(name, port):
    engine = find(name)
    if name == "iperf3":
        found = find_iperf3()
        tools = {"iperf3": Tool(argv=found.binary, version=str(found.version))}
    else:
        tools = find_installed_engine(engine, Role.CLIENT).tools
    job = Job(
        run_id="live", burst_index=0, pair_index=0, duration_s=60,
        endpoint=Endpoint(agent_id="server", address="127.0.0.1", port=int(port)),
        traffic=Traffic(engine=name, **engine.defaults), planned_start_at=datetime.now(UTC))
    workspace = Workspace(sys.argv[4])
    try:
        launch = engine.client(
            ClientRequest(job=job, tools=tools, folder=str(workspace.path), bind=None))
        workspace.fill(launch.files)
        attempt = await Attempt.spawn(
            launch.processes[0], engine.client_reader(job),
            AttemptLimits(
                raw_max_bytes=2**20, deadline_at_s=time.time() + float(sys.argv[3])))
        print(attempt.process.pid, flush=True)
        print((await attempt.exit).stopped, flush=True)
    finally:
        workspace.close()

asyncio.run(main(*sys.argv[1:3]))
"""


@pytest.fixture
def port() -> Iterator[int]:
    """Yield the port of a server that accepts connections and sends no data."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
    sweep(NAME)


async def start(name: str, port: int, deadline_s: float) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", PROGRAM, name, str(port), str(deadline_s), NAME),
        stdout=asyncio.subprocess.PIPE,
    )


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.mark.parametrize("name", sorted(engines()))
async def test_engine_of_a_stopped_agent_ends_at_hard_stop(name: str, port: int) -> None:
    agent = await start(name, port, deadline_s=2)
    try:
        assert agent.stdout is not None
        pid = int(await agent.stdout.readline())
        agent.send_signal(signal.SIGSTOP)
        started = children(agent.pid)
        assert pid in started and is_alive(pid)
        await until(
            "the hard stop to end the engine", lambda: not any(map(is_alive, started)), PATIENCE_S
        )
    finally:
        agent.kill()
        await agent.wait()


@pytest.mark.parametrize("name", sorted(engines()))
async def test_no_engine_process_survives_its_agent(name: str, port: int) -> None:
    agent = await start(name, port, deadline_s=0.3)
    assert agent.stdout is not None
    await agent.stdout.readline()
    started = children(agent.pid)
    assert (await agent.stdout.readline()).strip() == b"deadline"
    assert not any(map(is_alive, started))
    await agent.wait()
    agent = await start(name, port, deadline_s=20)
    assert agent.stdout is not None
    await agent.stdout.readline()
    started = children(agent.pid)
    agent.kill()
    await agent.wait()
    await until("all of a killed agent to end", lambda: not any(map(is_alive, started)), PATIENCE_S)
