"""Complete Broadside on loopback for live tests. Agents and coordinators are real processes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import httpx

from broadside.exchange.messages import Role
from broadside.lab.loopback import steady_clock
from tests.live.free_ports import free_port
from tests.live.waiting import wait_for
from tests.live.warm import Process, shell

# A verdict takes as long as a burst. Use longer pauses to leave the cores to the coordinator.
VERDICT_PAUSE_S: Final = 0.5
ROOT = Path(__file__).parent.parent.parent
BROADSIDE = [sys.executable, "-m", "broadside.coordinator"]
# Use the same client for all calls. The module functions of httpx would need 50 ms of a core for
# every call, to load the system's certificate authorities.
HTTP: Final = httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=0))

# Without pacing a burst would use all cores.
PACED: Final = "--set=traffic.stream_bits_per_second=20000000"
# Settings for a burst that a busy machine with any clock can carry.
GENTLE: Final = {
    "bursts_count": 1,
    "lead_s": 12,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "traffic.streams_count": 2,
    "traffic.stream_bits_per_second": 4_000_000,
    "objective.target_bits_per_second": None,
    "clock_bound_max_s": 0.5,
}


class Site:
    """Start processes on the same embedded fabric, and kill the remaining ones on exit.

    Processes are forks of a warm process. Use ``as_users_do`` to start new Python interpreters.
    """

    def __init__(self, folder: Path, *, as_users_do: bool = False) -> None:
        self.folder = folder
        self.as_users_do = as_users_do
        # The source tree of the programs. Use None for this checkout and other trees for other
        # versions.
        self.tree: Path | None = None
        self.environment = {
            **{name: value for name, value in os.environ.items() if "BROADSIDE" not in name},
            "BROADSIDE_DATA_DIR": str(folder / "data"),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        self._clock = contextlib.ExitStack()
        self._chronyc_socket: str | None = None
        self.agents: dict[str, Process] = {}
        self.processes: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._clock.close()

    def start_agent(self, role: Role, name: str, **settings: object) -> Process:
        """Start an agent on loopback with a correct clock. A server gets a free port."""
        if self._chronyc_socket is None:
            self._chronyc_socket = self._clock.enter_context(steady_clock())
        chosen: dict[str, object] = {
            "role": role.value,
            "agent_id": name,
            "address": "127.0.0.1",
            "nic": "lo",
            "chronyc_socket": self._chronyc_socket,
            "spool_dir": self.folder / "spool" / name,
            "heartbeat_s": 1,
        } | settings
        if role is Role.SERVER:
            chosen.setdefault("ports", free_port())
        variables = {f"BROADSIDE_AGENT_{key.upper()}": str(value) for key, value in chosen.items()}
        process = self._start("agent", [], name, variables)
        self.agents[name] = process
        return process

    def start_fleet(self, pairs_count: int, **settings: object) -> None:
        """Start ``pairs_count`` clients and the same number of servers."""
        for index in range(1, pairs_count + 1):
            self.start_agent(Role.SERVER, f"s{index}", **settings)
            self.start_agent(Role.CLIENT, f"c{index}", **settings)

    def start_coordinator(self, **variables: str) -> tuple[Process, str]:
        """Start ``broadside serve`` and return the process and its address."""
        name = f"serve{len(self.processes)}"
        process = self._start("coordinator", ["serve", "--port", "0"], name, variables)
        log = self.folder / f"{name}.log"

        def address() -> str | None:
            assert process.poll() is None, log.read_text()
            match = re.search(r"listening on (\S+)", log.read_text())
            return match and match[1]

        return process, wait_for("the coordinator's address", address)

    def run(self, *arguments: str, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
        """Run a ``broadside`` command and wait for it to end."""
        return shell().run(list(arguments), self.environment, self.folder, timeout_s)

    def start(self, name: str, *arguments: str) -> Process:
        """Start a ``broadside`` command in the background, and write its output to ``name.log``."""
        return self._start("coordinator", list(arguments), name, {})

    def _start(
        self, module: str, arguments: list[str], name: str, variables: Mapping[str, str]
    ) -> Process:
        env = self.environment | dict(variables)
        process: Process
        with (self.folder / f"{name}.log").open("wb") as log:
            if self.tree is not None:
                package = "broadside." if (self.tree / "broadside").is_dir() else ""
                env["PYTHONPATH"] = str(self.tree)
                argv = [sys.executable, "-m", package + module, *arguments]
                process = subprocess.Popen(
                    argv, env=env, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
                )
            elif self.as_users_do:
                argv = [sys.executable, "-m", module, *arguments]
                process = subprocess.Popen(
                    argv, env=env, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
                )
            else:
                process = shell().start(
                    module, arguments, env=env, folder=self.folder, stdout=log, stderr=log
                )
        self.processes.append(process)
        return process


def call(url: str, method: str, path: str, **arguments: Any) -> Any:
    """Make an API call that must succeed.

    A launch is repeated until the fleet is free.
    """
    end_s = time.monotonic() + 60
    response = HTTP.request(method, url + path, **arguments)
    while (method, path, response.status_code) == ("POST", "/v1/runs", 409):
        assert time.monotonic() < end_s, response.text
        time.sleep(0.5)
        response = HTTP.request(method, url + path, **arguments)
    assert response.is_success, response.text
    return response.json()


def wait_for_fleet(
    url: str, agents_count: int, *, path: str = "/v1/agents", **arguments: Any
) -> None:
    """Wait for all agents to publish a presence without problem.

    Versions before 1.0 have another ``path``. Use ``arguments`` to pass options to the API calls.
    """

    def all_well() -> bool:
        presences = call(url, "GET", path, **arguments)
        well = [p for p in presences if p["problem"] is None]
        ports = [p for p in well if p["role"] == "client" or p["ports"]]
        return len(ports) == agents_count

    wait_for(f"{agents_count} agents", all_well, 120)


def wait_for_summary(url: str, run_id: str, timeout_s: float = 90) -> dict[str, Any]:
    """Wait for the summary of a run."""

    def summary() -> dict[str, Any] | None:
        response = HTTP.get(f"{url}/v1/runs/{run_id}/summary")
        # The run may not be complete yet, or the table may not be available.
        if response.status_code in (409, 503):
            return None
        assert response.is_success, response.text
        return dict(json.loads(response.text))

    result: dict[str, Any] = wait_for(
        f"a verdict on {run_id}", summary, timeout_s, pause_s=VERDICT_PAUSE_S
    )
    return result


def end(process: Process) -> None:
    """Send SIGTERM, as systemd would, and wait for the process to end."""
    process.terminate()
    process.wait(20)


def kill(process: Process) -> None:
    """Send SIGKILL and wait for the process to end."""
    process.send_signal(signal.SIGKILL)
    process.wait()
