"""Runs ``broadside`` commands as processes forked from one that has imported everything.

Each command is a real process with its own environment, folder, output and exit code; only the
second and a half that its imports take is paid once.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class WarmShell:
    """One warmed process and the commands it forked."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.live.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent.parent,
        )

    def run(
        self, arguments: list[str], env: Mapping[str, str], folder: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises ``subprocess.TimeoutExpired`` after killing it."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as kept:
            request = {
                "arguments": arguments,
                "env": dict(env),
                "folder": str(folder),
                "timeout_s": timeout_s,
                "stdout": f"{kept}/stdout",
                "stderr": f"{kept}/stderr",
            }
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            code = json.loads(self._server.stdout.readline())
            said = [Path(kept, name).read_text() for name in ("stdout", "stderr")]
        if code is None:
            raise subprocess.TimeoutExpired(["broadside", *arguments], timeout_s, *said)
        return subprocess.CompletedProcess(["broadside", *arguments], code, *said)


@cache
def shell() -> WarmShell:
    """The session's one; it ends when this process closes its input by ending."""
    return WarmShell()


def _serve() -> None:
    """Read a request a line, fork, answer with the exit code; None when it took too long."""
    import coordinator.api
    import coordinator.cli
    import coordinator.runs.coordinator  # noqa: F401 - all that a command may import, before the first fork

    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(request)
        sys.stdout.write(json.dumps(_wait(pid, request["timeout_s"])) + "\n")
        sys.stdout.flush()


def _wait(pid: int, timeout_s: float) -> int | None:
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _become(request: Mapping[str, Any]) -> None:
    """Be the command; never returns."""
    os.setpgid(0, 0)
    places = ((os.devnull, os.O_RDONLY), *((request[n], _WRITE) for n in ("stdout", "stderr")))
    for number, (path, flags) in enumerate(places):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, m) for n, m in ((0, "r"), (1, "w"), (2, "w")))
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    sys.argv = ["broadside", *request["arguments"]]
    from coordinator.cli import main

    code = 1
    try:
        main()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
