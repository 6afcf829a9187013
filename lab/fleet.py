"""Runs many agents as forks of a single process.

``start`` runs ``python -m broadside.lab.fleet``. This process imports the agent package once and
forks a process for each agent. Sixty agents will start as fast as one and use the same memory. Each
agent enters its network namespace and gets its own environment, log file and session. It then calls
the *entry*, a function without arguments that returns an exit code
(``broadside.agent.run:run_from_environment``).

Both sides use the standard input and output of the fork server to exchange lines of JSON, one
request and one response at a time. The fork server is the subreaper for all processes below it. So
you can use it to stop an agent and its engine. It will stop all of them when its input is closed,
which happens when the process that started it ends. If the fork server is killed, the kernel will
send SIGTERM to its agents.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Final, Self

from broadside.lab.child_processes import die_with_parent
from broadside.lab.errors import FleetError, LabError
from broadside.lab.namespaces import PROC, enter, module_argv
from broadside.lab.topology import Lab, LabHost

AGENT_ENTRY: Final = "broadside.agent.run:run_from_environment"
# The agent would only import these modules if they are needed. We should import them before the
# fork.
AGENT_IMPORTS: Final = (
    "broadside.exchange.embedded.embedded_queue",
    "broadside.exchange.embedded.embedded_table",
)
START_TIMEOUT_S: Final = 60.0
ANSWER_TIMEOUT_S: Final = 10.0
KILL_TIMEOUT_S: Final = 5.0
# Maximum characters of a log line in an error message.
LOG_LINE_MAX: Final = 300
# linux/prctl.h
PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """Settings to start an agent.

    Attributes:
        agent_id: Id of the agent.
        namespace: Network namespace to enter, or ``None`` to use the host's network.
        environment: Variables to add to the environment.
    """

    agent_id: str
    namespace: str | None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedAgent:
    """State of an agent in the fork server.

    Attributes:
        agent_id: Id of the agent.
        pid: Process id.
        exit_code: ``None`` while it is running, negative when a signal killed it.
    """

    agent_id: str
    pid: int
    exit_code: int | None


def plan_agents(lab: Lab, environment: Mapping[str, str]) -> tuple[AgentPlan, ...]:
    """Return a plan for every host in the lab, servers first.

    Logs and unsent results are written below the lab's folder and are removed with it.

    Args:
        lab: The lab.
        environment: Variables to pass to each agent.

    Returns:
        Plans with all variables of the agent.
    """
    return tuple(
        AgentPlan(
            agent_id=host.name,
            namespace=host.namespace,
            environment={**environment, **_host_environment(lab, host)},
        )
        for host in lab.servers + lab.clients
    )


def _host_environment(lab: Lab, host: LabHost) -> dict[str, str]:
    known = {
        "ROLE": host.role.value,
        "AGENT_ID": host.name,
        "ADDRESS": host.address,
        "NIC": host.nic,
        "PORTS": "5201",
        "CANARY_PORTS": "5198,5199",
        "SPOOL_DIR": str(lab.path / "agents" / host.name),
    }
    if host.chrony is not None:
        known["CHRONYC_SOCKET"] = host.chrony
    if host.namespace is not None and lab.spec.nic_bits_per_second is not None:
        known["NIC_BITS_PER_SECOND"] = str(lab.spec.nic_bits_per_second)
    return {f"BROADSIDE_AGENT_{name}": value for name, value in known.items()}


# Client side ------------------------------------------------------------------------------------


class Fleet:
    """Agents that were started with :func:`start`.

    Use :meth:`stop` or a ``with`` block to end them. You can call the methods from any thread. Each
    call will wait for the response from the fork server.
    """

    def __init__(self, server: subprocess.Popen[bytes], log_path: Path) -> None:
        self._server = server
        self._log_path = log_path
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the process id of the fork server."""
        return self._server.pid

    def agent_log_path(self, agent_id: str) -> Path:
        """Return the path to the log with an agent's standard output and error."""
        return _agent_log_path(self._log_path, agent_id)

    def explain(self, agent_id: str) -> str:
        """Return the status of an agent and the last line of its log.

        Raises:
            FleetError: The fork server does not respond.
        """
        state = self.states().get(agent_id)
        if state is None:
            return "was never started"
        status = "runs" if state.exit_code is None else f"ended with exit code {state.exit_code}"
        try:
            lines = self.agent_log_path(agent_id).read_text(errors="replace").split("\n")
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{status}, {f'its log ends: {last[:LOG_LINE_MAX]}' if last else 'its log is empty'}"

    def states(self) -> Mapping[str, ForkedAgent]:
        """Return the state of every agent ever started, by id. Raises :class:`FleetError`."""
        answer = self._ask({"do": "states"}, ANSWER_TIMEOUT_S)
        return {state["agent_id"]: ForkedAgent(**state) for state in answer["states"]}

    def kill(self, agent_id: str, signal_number: int = signal.SIGKILL) -> bool:
        """Send a signal to an agent and all its child processes, to simulate a failed host.

        Args:
            agent_id: Id of the agent.
            signal_number: Signal to send.

        Returns:
            False if the agent has already ended.

        Raises:
            FleetError: The agent is not in this fleet.
        """
        request = {"do": "kill", "agent_id": agent_id, "signal": int(signal_number)}
        return bool(self._ask(request, ANSWER_TIMEOUT_S)["was_running"])

    def add(self, plans: Sequence[AgentPlan]) -> None:
        """Start more agents, or restart those that have ended. Raises :class:`FleetError`."""
        self._ask({"do": "start", "agents": [asdict(plan) for plan in plans]}, START_TIMEOUT_S)

    def stop(self, timeout_s: float = 10.0) -> tuple[str, ...]:
        """Stop every agent with SIGTERM, then use SIGKILL for those still running.

        The call will return at most twenty seconds after ``timeout_s``. It is safe to call it
        again.

        Args:
            timeout_s: Time to wait before SIGKILL, in seconds.

        Returns:
            The ids of the agents that had to be killed.
        """
        killed: tuple[str, ...] = ()
        with contextlib.suppress(FleetError):
            answer = self._ask({"do": "stop", "timeout_s": timeout_s}, timeout_s + ANSWER_TIMEOUT_S)
            killed = tuple(answer["killed"])
        self._close()
        return killed

    def _close(self) -> None:
        """Close the pipes, so that the fork server ends, and wait for it."""
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._server.wait(ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def _ask(self, request: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        """Send a request and return the response. Raises :class:`FleetError`."""
        into, out = self._server.stdin, self._server.stdout
        assert into is not None and out is not None  # noqa: S101  # Popen was called with PIPE for both
        with self._turn:
            try:
                into.write(json.dumps(request).encode() + b"\n")
                into.flush()
                ready, _, _ = select.select([out], [], [], timeout_s)
                line = out.readline() if ready else b""
            # ``stop()`` has closed the pipe if this is a ValueError.
            except (OSError, ValueError) as error:
                raise FleetError(
                    f"the fork server has ended ({error}); start the fleet again"
                ) from error
        if not line:
            why = "ended" if ready else f"gave no answer within {timeout_s:.0f} s"
            raise FleetError(f"the fork server {why}; see {self._log_path / 'fleet.log'}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FleetError(str(answer["error"]))
        return answer


def start(
    plans: Sequence[AgentPlan],
    *,
    prefix: str,
    log_path: Path,
    entry: str = AGENT_ENTRY,
    imports: Sequence[str] = AGENT_IMPORTS,
) -> Fleet:
    """Start a fork server and its agents, without waiting until they are ready.

    If this fails, no process will be left running.

    Args:
        plans: Agents to start.
        prefix: Prefix of the lab, so that ``lab down`` can find the processes.
        log_path: Folder for the logs, with a file for each agent and ``fleet.log``.
        entry: Function to run, as ``module:function``.
        imports: Modules to import before the fork.

    Returns:
        The fleet. Its agents may still fail.

    Raises:
        FleetError: The entry cannot be imported, or a namespace is missing.
    """
    log_path.mkdir(parents=True, exist_ok=True)
    argv = [*module_argv("broadside.lab.fleet", prefix), "--entry", entry]
    argv += ["--logs", str(log_path), *(f"--import={name}" for name in imports)]
    with (log_path / "fleet.log").open("ab") as log:
        server = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Only the parent should get Ctrl-C. It will then stop the fleet.
            start_new_session=True,
        )
    fleet = Fleet(server, log_path)
    try:
        fleet.add(plans)
    except BaseException:
        fleet.stop(0)
        raise
    return fleet


def _agent_log_path(log_path: Path, agent_id: str) -> Path:
    return log_path / f"{agent_id}.log"


# Fork server side -------------------------------------------------------------------------------


class ForkServer:
    """Handles requests and reaps processes in a single thread, so that it is safe to fork."""

    def __init__(self, entry: Callable[[], int], log_path: Path) -> None:
        self._entry = entry
        self._log_path = log_path
        # Process id by agent id.
        self._pids: dict[str, int] = {}
        # Exit code by process id.
        self._exit_codes: dict[int, int] = {}
        self._wakeup, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self, requests: BufferedReader, answers: FileIO) -> None:
        """Handle requests until the input is closed or a stop request arrives.

        All processes have ended when this returns.

        Args:
            requests: Stream to read requests from.
            answers: Stream to write responses to.
        """
        try:
            while True:
                ready, _, _ = select.select([requests.fileno(), self._wakeup], [], [])
                self._reap()
                if self._wakeup in ready:
                    os.read(self._wakeup, 4096)
                if requests.fileno() in ready:
                    line = requests.readline()
                    if not line:
                        return
                    request = json.loads(line)
                    answers.write(json.dumps(self._answer(request)).encode() + b"\n")
                    if request["do"] == "stop":
                        return
        finally:
            self._stop(2.0)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "start":
                return self._start(request["agents"])
            case "states":
                return {"states": [self._state(agent_id) for agent_id in self._pids]}
            case "kill":
                return self._kill(request["agent_id"], request["signal"])
            case "stop":
                return {"killed": self._stop(request["timeout_s"])}
            case unknown:
                return {"error": f"do {unknown!r}: not a request of this fork server"}

    def _start(self, agents: Sequence[dict[str, Any]]) -> dict[str, Any]:
        gc.collect()
        # We exclude imported objects from garbage collection, so that their memory pages will be
        # shared.
        gc.freeze()
        for agent in agents:
            read, write = os.pipe2(os.O_CLOEXEC)
            pid = os.fork()
            if pid == 0:
                os.close(read)
                self._be_agent(agent, write)
            os.close(write)
            self._pids[agent["agent_id"]] = pid
            # The child will close this pipe when it has entered its namespace.
            with os.fdopen(read, "rb") as pipe:
                problem = pipe.read().decode()
            if problem:
                return {"error": f"agent {agent['agent_id']}: {problem}"}
        return {}

    def _be_agent(self, agent: dict[str, Any], write: int) -> None:
        """Reset the child process, enter the namespace and run the agent. Never returns."""
        # We use EX_SOFTWARE if the entry raises an exception.
        exit_code = 70
        try:
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            os.setsid()
            die_with_parent()
            _redirect(_agent_log_path(self._log_path, agent["agent_id"]))
            _close_all_but(0, 1, 2, write)
            os.environ.update(agent["environment"])
            try:
                if agent["namespace"] is not None:
                    enter(agent["namespace"])
            except LabError as error:
                os.write(write, str(error).encode())
                # EX_OSERR
                os._exit(71)
            os.close(write)
            exit_code = self._entry()
        except SystemExit as end:
            exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)

    def _state(self, agent_id: str) -> dict[str, Any]:
        pid = self._pids[agent_id]
        return {"agent_id": agent_id, "pid": pid, "exit_code": self._exit_codes.get(pid)}

    def _kill(self, agent_id: str, signal_number: int) -> dict[str, Any]:
        pid = self._pids.get(agent_id)
        if pid is None:
            return {"error": f"agent {agent_id!r}: not of this fleet"}
        if pid in self._exit_codes:
            return {"was_running": False}
        for one in (pid, *_descendants(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal_number)
        return {"was_running": True}

    def _stop(self, timeout_s: float) -> list[str]:
        """Send SIGTERM to the agents, wait, then send SIGKILL to all remaining processes."""
        for pid in self._running().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                # A stopped process will not get SIGTERM until we send SIGCONT.
                os.kill(pid, signal.SIGCONT)
        end_s = time.monotonic() + timeout_s
        while self._running() and time.monotonic() < end_s:
            time.sleep(0.02)
            self._reap()
        killed = list(self._running())
        end_s = time.monotonic() + KILL_TIMEOUT_S
        while (left := _descendants(os.getpid())) and time.monotonic() < end_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
            self._reap()
        return killed

    def _running(self) -> dict[str, int]:
        return {name: pid for name, pid in self._pids.items() if pid not in self._exit_codes}

    def _reap(self) -> None:
        """Collect every child that has ended, including orphans adopted as the subreaper."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = ended
                if pid in self._pids.values():
                    self._exit_codes.setdefault(pid, os.waitstatus_to_exitcode(status))


def _descendants(pid: int) -> list[int]:
    """Return all processes below a process, without zombies."""
    children: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                # The format is "pid (name) state ppid ...". The name can contain spaces and
                # brackets.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z":
                    children.setdefault(int(fields[1]), []).append(int(folder.name))
    results = []
    queue = [pid]
    while queue:
        queue = [child for parent in queue for child in children.get(parent, [])]
        results += queue
    return results


def _redirect(log: Path) -> None:
    """Redirect standard input to /dev/null, and standard output and error to a log."""
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (file, 1), (file, 2)):
        os.dup2(source, target)


def _close_all_but(*kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - descriptors, not files
        if int(name) not in kept:
            # The descriptor of the listing itself is already closed.
            with contextlib.suppress(OSError):
                os.close(int(name))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main() -> None:
    """Import the entry, then handle requests from standard input."""
    parser = argparse.ArgumentParser(prog="python -m broadside.lab.fleet")
    parser.add_argument("--broadside-lab", required=True, help="prefix of the lab")
    parser.add_argument("--entry", required=True, help="module:function that is an agent")
    parser.add_argument("--logs", type=Path, required=True, help="folder of the logs")
    parser.add_argument("--import", action="append", default=[], dest="imports")
    arguments = parser.parse_args()
    # We should not send output from an import as a response.
    answers = FileIO(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, function = arguments.entry.partition(":")
    try:
        for name in arguments.imports:
            importlib.import_module(name)
        entry = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        sys.stdin.readline()
        problem = f"cannot import {arguments.entry}: {error}"
        answers.write(json.dumps({"error": problem}).encode() + b"\n")
        sys.exit(1)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    # We can use a buffered reader with select, because the next request will only be sent after a
    # response.
    with os.fdopen(os.dup(0), "rb") as requests:
        ForkServer(entry, arguments.logs).serve(requests, answers)


if __name__ == "__main__":
    main()
