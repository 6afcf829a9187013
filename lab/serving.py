"""A coordinator of our own beside a lab: started, killed, started again, and asked over its API."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from lab.errors import LabBroken
from lab.offspring import die_with_parent

READY_S: Final = 60.0  # s within which a coordinator, clocks or agents are there


class Serving:
    """A ``broadside serve`` on a free port that may be killed and started again.

    A context manager. Of our own environment it gets what is not Broadside's, and ``environment``;
    Ctrl-C is for its starter. Raises :class:`~lab.errors.LabBroken` when it does not start.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.environment = {
            **{name: value for name, value in os.environ.items() if "BROADSIDE" not in name},
            **environment,
        }
        self.log_path = folder / "serve.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> "Serving":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def start(self) -> None:
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "coordinator", "serve", "--port", "0"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s and self._process.poll() is None:
            if found := re.search(r"listening on (\S+)", self.log_path.read_text()):
                self.url = found[1]
                return
            time.sleep(0.05)
        said = self.log_path.read_text().strip()[-500:]
        raise LabBroken(f"broadside serve did not start: {said}")

    def kill(self) -> None:
        assert self._process is not None  # noqa: S101 - started before
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def signal(self, number: int) -> None:
        """To the coordinator alone."""
        assert self._process is not None  # noqa: S101 - started before
        self._process.send_signal(number)

    def get(self, path: str) -> Any:
        """The answer; None while there is none."""
        answer = httpx.get(self.url + path, timeout=20)
        if answer.status_code in (409, 503):
            return None
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = httpx.post(self.url + path, json=body, timeout=60)
        if answer.is_error:
            raise ValueError(answer.text)
        return answer.json()

    def delete(self, path: str, body: Mapping[str, Any]) -> None:
        answer = httpx.request("DELETE", self.url + path, json=body, timeout=20)
        if answer.is_error:
            raise ValueError(answer.text)


def wait_for_agents(coordinator: Serving, count: int) -> None:
    """Until so many agents can work. Raises :class:`~lab.errors.LabBroken`."""
    end_s = time.monotonic() + READY_S
    ready: list[Any] = []
    while time.monotonic() < end_s:
        there = coordinator.get("/v1/presences") or []
        ready = [a for a in there if a["problem"] is None and (a["role"] == "client" or a["ports"])]
        if len(ready) >= count:
            return
        time.sleep(0.2)
    raise LabBroken(f"only {len(ready)} of {count} agents are ready after {READY_S:g} s")
