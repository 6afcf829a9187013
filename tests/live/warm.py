"""Processes forked from a process with all imports, for ``broadside`` commands and agents.

These are real processes with separate environments, folders, outputs and exit codes. Only the
imports, which would take up to 1.5 s, are shared.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, NoReturn, Protocol

from broadside.coordinator.cli.command_list import COMMANDS

_ROOT: Final = Path(__file__).parent.parent.parent
# Modules that agents and coordinators import at run time.
_LATE: Final = (
    "broadside.agent.server",
    "broadside.agent.run",
    "broadside.coordinator.api.app",
    "broadside.coordinator.runs.coordinator",
    "broadside.exchange.embedded.embedded_queue",
    "broadside.exchange.embedded.embedded_table",
)
_REQUEST_MAX_BYTES: Final = 1 << 20


class Process(Protocol):
    """The methods of ``subprocess.Popen`` that tests use."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class WarmProcess:
    """:class:`Process` with a warm parent, which reaps it and reports its exit code."""

    def __init__(self, args: list[str], exit_socket: socket.socket) -> None:
        self.args = args
        self.returncode: int | None = None
        self._exit_socket = exit_socket
        # A finalizer is needed instead of `__del__`. In a reference cycle, for example in the
        # traceback of a failed test, the socket may be finalized first and would be reported as
        # never closed.
        weakref.finalize(self, exit_socket.close)
        parts, (self._pidfd,), _, _ = socket.recv_fds(exit_socket, 20, 1)
        weakref.finalize(self, os.close, self._pidfd)
        self.pid = int(parts)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._exit_socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            # Peek the message and leave it for other threads that may be waiting.
            self.returncode = int(self._exit_socket.recv(20, socket.MSG_PEEK))
        return self.returncode

    def send_signal(self, sig: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmShell:
    """Warm process and the processes forked from it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.live.warm", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=_ROOT,
                # To be able to fork, a process should not have other threads.
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )

    def start(
        self,
        module: str,
        arguments: list[str],
        *,
        env: Mapping[str, str],
        folder: Path,
        stdout: IO[Any],
        stderr: IO[Any],
        leads_group: bool = False,
    ) -> WarmProcess:
        """Start ``python -m module arguments`` in this process group or a new one."""
        request = {
            "module": module,
            "arguments": arguments,
            "env": dict(env),
            "folder": str(folder),
            "leads_group": leads_group,
        }
        reported, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            files = [theirs.fileno(), stdout.fileno(), stderr.fileno()]
            socket.send_fds(self._requests, [json.dumps(request).encode()], files)
        return WarmProcess([module, *arguments], reported)

    def run(
        self, arguments: list[str], env: Mapping[str, str], folder: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a ``broadside`` command to its end.

        Raises:
            subprocess.TimeoutExpired: The time is over. The process has been killed.
        """
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            process = self.start(
                "coordinator",
                arguments,
                env=env,
                folder=folder,
                stdout=stdout,
                stderr=stderr,
                leads_group=True,
            )
            code: int | None = None
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for file in (stdout, stderr):
                file.seek(0)
            command, text = ["broadside", *arguments], (stdout.read(), stderr.read())
        if code is None:
            raise subprocess.TimeoutExpired(command, timeout_s, *text)
        return subprocess.CompletedProcess(command, code, *text)


@cache
def shell() -> WarmShell:
    """Return the warm shell of the session. It ends when this process ends."""
    return WarmShell()


def _serve(requests: socket.socket) -> Mapping[str, Any]:
    """Fork a process for every request and report its exit code.

    Return only in the child, with its request.
    """
    # The keys are pidfds.
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([requests.fileno(), *running], [], [])[0]:
            if ready in running:
                pid, reported = running.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                # The client may have stopped waiting for it.
                with reported, contextlib.suppress(OSError):
                    reported.send(str(code).encode())
                os.close(ready)
                continue
            parts, files, _, _ = socket.recv_fds(requests, _REQUEST_MAX_BYTES, 3)
            if not parts:
                sys.exit()
            request = json.loads(parts)
            if request["env"].get("BROADSIDE_FABRIC") == "azure":
                import_module("broadside.exchange.azure.azure_fabric")
            reported = socket.socket(fileno=files[0])
            pid = os.fork()
            if pid == 0:
                for pidfd, (_, another) in running.items():
                    os.close(pidfd)
                    another.close()
                reported.close()
                requests.close()
                for number, file in enumerate(files[1:], start=1):
                    os.dup2(file, number)
                    os.close(file)
                return dict(request)
            for file in files[1:]:
                os.close(file)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, reported
            socket.send_fds(reported, [str(pid).encode()], [pidfd])


def _become(request: Mapping[str, Any]) -> NoReturn:
    """Execute the requested module to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["leads_group"]:
        os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    sys.argv = [request["module"], *request["arguments"]]
    code = 1
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    # The code is always a number in Broadside.
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    # Use the normal end of Python, but do not free memory, because that would write to all shared
    # pages.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _main() -> None:
    for module in {command.function.split(".")[0] for command in COMMANDS.values()}:
        import_module(f"broadside.coordinator.cli.{module}")
    for module in _LATE:
        import_module(module)
    # Ctrl-C should be used for the tested processes only.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    # Imported objects stay shared, because no collection uses these pages.
    gc.freeze()
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    _main()
