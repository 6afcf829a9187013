"""Runs a coordinator beside a lab, and sends requests to its API."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from broadside.coordinator.core.summary import RunSummary
from broadside.exchange.programs import module_command
from broadside.lab.child_processes import die_with_parent
from broadside.lab.errors import LabBroken
from broadside.lab.fleet import Fleet

# Time to wait until a coordinator, clocks or agents are ready.
READY_S: Final = 60.0
# Maximum agents to list in an error.
NAMED_MAX: Final = 5
# How long to wait if an agent reports a problem, for example if its port is still being used.
PATIENCE_S: Final = 5.0


class ServeProcess:
    """``broadside serve`` process that can be killed and restarted.

    Use it in a ``with`` block. Variables for Broadside are removed from the inherited environment.
    Ctrl-C is handled by the parent process.

    Attributes:
        environment: Environment of the process.
        log_path: Path to its log.
        url: Base URL, empty before the start.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        *,
        port: int = 0,
        token: str | None = None,
    ) -> None:
        """Prepare the process. It is not started yet.

        Args:
            environment: Variables to add to the environment.
            folder: Folder for the log.
            port: Port to listen on. If it is 0 or in use, a free port will be used.
            token: Bearer token for requests from this object.
        """
        self._port = port
        self._token = token
        # We use a single client, because each new one will load the CA certificates. This takes 50
        # ms of CPU time.
        self._http = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
        self.environment = {
            **{name: value for name, value in os.environ.items() if "BROADSIDE" not in name},
            **environment,
        }
        self.log_path = folder / "serve.log"
        self._peak_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> "ServeProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def start(self) -> None:
        """Start the process.

        Raises:
            LabBroken: It is running already, or did not start.
        """
        if self._process is not None and self._process.poll() is None:
            raise LabBroken("the coordinator is already running; stop it first")
        with socket.socket() as free:
            try:
                free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                free.bind(("127.0.0.1", self._port))
                port = self._port
            except OSError:
                port = 0
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                module_command("broadside.coordinator", "serve", "--port", str(port)),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s and self._process.poll() is None:
            if match := re.search(r"listening on (\S+)", self.log_path.read_text()):
                self.url = match[1]
                return
            time.sleep(0.05)
        # If it starts too late, we should stop it, because it will not be used.
        self.kill()
        text = self.log_path.read_text().strip()[-500:]
        # If the port is already used by another process, use a free one.
        if port and "already in use" in text:
            self._port = 0
            self.start()
            return
        raise LabBroken(f"broadside serve did not start: {text}")

    def revive(self) -> None:
        """Continue a stopped process, or start it again when it has ended."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        else:
            self.signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process is not None  # noqa: S101 - started before
        return self._process.pid

    @property
    def peak_bytes(self) -> int:
        """Return the peak resident memory in bytes over all processes so far."""
        if self._process is not None:
            # The process has ended.
            with contextlib.suppress(OSError, IndexError, ValueError):
                status = Path(f"/proc/{self._process.pid}/status").read_text()
                peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
                self._peak_bytes = max(self._peak_bytes, peak_bytes)
        return self._peak_bytes

    def kill(self) -> None:
        assert self._process is not None  # noqa: S101 - started before
        # We cannot get this value after the process has ended.
        self._peak_bytes = self.peak_bytes
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the coordinator only."""
        assert self._process is not None  # noqa: S101 - started before
        self._process.send_signal(number)

    def get(self, path: str) -> Any:
        """Return the JSON response, or ``None`` if it is not available yet (409, 503)."""
        answer = self._ask("GET", path)
        if answer.status_code in (409, 503):
            return None
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a POST request.

        Args:
            path: Path to request.
            body: JSON body.

        Returns:
            The response, as parsed JSON.

        Raises:
            ValueError: The request was rejected. The message has the response.
        """
        return _accepted(self._ask("POST", path, body)).json()

    def launch(self, body: Mapping[str, Any]) -> Any:
        """Launch a run as soon as the fleet is available, and return the JSON response.

        Agents and ports may still be in use by a previous run.

        Raises:
            ValueError: The request was rejected, or agents were missing for ``READY_S``.
        """
        end_s = time.monotonic() + READY_S
        while True:
            answer = self._ask("POST", "/v1/runs", body)
            if answer.status_code not in (409, 503) or time.monotonic() > end_s:
                return _accepted(answer).json()
            time.sleep(0.5)

    def summary(self, run_id: str, within_s: float) -> RunSummary:
        """Wait for the verdict of a run.

        Args:
            run_id: Id of the run.
            within_s: Time to wait in seconds.

        Returns:
            The summary with the verdict.

        Raises:
            TimeoutError: There is no verdict in time.
        """
        end_s = time.monotonic() + within_s
        while (answer := self.get(f"/v1/runs/{run_id}/summary")) is None:
            if time.monotonic() > end_s:
                raise TimeoutError(f"run {run_id}: no verdict within {within_s:.0f} s")
            time.sleep(0.3)
        return RunSummary.parse_answer(answer)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return self._http.request(method, self.url + path, json=body, headers=headers)


def _accepted(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        raise ValueError(answer.text)
    return answer


def wait_for_agents(
    coordinator: ServeProcess, agents: Fleet, agent_ids: Collection[str], since_at: datetime
) -> None:
    """Wait until all agents are ready, as long as more of them become ready.

    Args:
        coordinator: Coordinator to get the list of agents from.
        agents: Fleet that runs the agents.
        agent_ids: Agents to wait for.
        since_at: Earlier heartbeats are ignored. They are from a previous agent with the same name.

    Raises:
        LabBroken: Some agents are not ready. The message has their heartbeat, process status and
            last log line. If an agent has ended, this will be raised at once.
    """
    end_s, fewest_count = time.monotonic() + READY_S, len(agent_ids)
    broken_since_s: float | None = None
    while True:
        answer = coordinator.get("/v1/agents?limit=1000")
        # An agent that was killed might still be in the list.
        there = {
            p["agent_id"]: p
            for p in answer or ()
            if datetime.fromisoformat(p["beat_at"]) >= since_at
        }
        missing = [name for name in agent_ids if not is_ready(there.get(name))]
        if not missing:
            return
        now_s = time.monotonic()
        if len(missing) < fewest_count:
            end_s, fewest_count = now_s + READY_S, len(missing)
        problems = {there[name]["problem"] for name in missing if name in there} - {None}
        broken_since_s = (broken_since_s or now_s) if problems else None
        if broken_since_s is not None and now_s - broken_since_s > PATIENCE_S:
            raise LabBroken(f"an agent cannot work: {'; '.join(sorted(problems))}")
        states = agents.states()
        ended = [name for name in missing if name in states and states[name].exit_code is not None]
        if ended or now_s > end_s:
            first = (ended or missing)[:NAMED_MAX]
            raise LabBroken(
                f"only {len(agent_ids) - len(missing)} of {len(agent_ids)} agents are ready"
                + ("" if ended else f", no other within {READY_S:g} s")
                + ("; the coordinator does not list its agents" if answer is None else "")
                + "".join(f"; {name} {why_not(there.get(name), agents, name)}" for name in first)
            )
        time.sleep(0.2)


def why_not(presence: Mapping[str, Any] | None, agents: Fleet, agent_id: str) -> str:
    """Return why an agent is not ready (heartbeat, process and log).

    Args:
        presence: Last heartbeat, or ``None``.
        agents: Fleet that runs the agent.
        agent_id: Id of the agent.
    """
    if presence is None:
        beat = "no heartbeat"
    elif presence["problem"] is not None:
        beat = str(presence["problem"])
    else:
        ports = presence["ports"]
        beat = f"heartbeat of {presence['beat_at']}: {presence['state']}, free ports {ports}"
    return f"({beat}; {agents.explain(agent_id)})"


def is_ready(presence: Mapping[str, Any] | None) -> bool:
    """Return True if an agent can work. A server also needs a free port."""
    if presence is None or presence["problem"] is not None:
        return False
    return presence["role"] == "client" or bool(presence["ports"])
