"""Coordinators and agents of both versions as processes with real ports."""

import hashlib
import json
import os
import re
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from broadside.exchange.ports import Entity
from broadside.exchange.row_text import entity_fields
from tests.compat.write import ROOT
from tests.live.free_ports import free_port
from tests.live.waiting import wait_for

# The reviewed version has top-level packages.
_COMMAND: Final = """
import importlib.util
prefix = "" if importlib.util.find_spec("coordinator") else "broadside."
importlib.import_module(prefix + "coordinator.cli").main()
"""


@dataclass(frozen=True, slots=True)
class Programs:
    """Programs of one version with a data folder."""

    packages: Path
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def environment(self, **variables: str) -> dict[str, str]:
        fields = {name: value for name, value in os.environ.items() if "BROADSIDE" not in name}
        chosen = {"PYTHONPATH": str(self.packages), "BROADSIDE_DATA_DIR": str(self.data)}
        return fields | chosen | variables

    def start(self, *words: str, code: str = _COMMAND, **variables: str) -> subprocess.Popen[bytes]:
        """Start a command of ``broadside`` or other code, with the output in ``log``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", code, *words],
                env=self.environment(**variables),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ``broadside`` and wait for its end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.packages != ROOT / "src":
            # The reviewed version has no `--output json`.
            words = tuple("--json" if word == "--output=json" else word for word in words)
        return subprocess.run(
            [sys.executable, "-c", _COMMAND, *words],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@dataclass(frozen=True, slots=True)
class Served:
    """Running coordinator with an API and an HTTPS port for agents."""

    programs: Programs
    pid: int
    api: str
    agents: str

    def new_code(self, role: str, count: int = 1) -> str:
        """Create a join code and return its secret."""
        parts = ("enroll", "new", "--role", role, "--count", str(count), "--output=json")
        done = self.programs.run(*parts)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["code"]).rpartition(".")[2]

    def join(self, code: str, role: str, agent_id: str) -> tuple[int, str]:
        """Enroll an agent and return the status and the secret of the credential."""
        secret = secrets.token_urlsafe(32)
        sha256 = hashlib.sha256(secret.encode()).hexdigest()
        fields = {"code": code, "agent_id": agent_id, "role": role, "sha256": sha256}
        answer = httpx.post(f"{self.agents}/v1/exchange/join", json=fields, verify=False)  # noqa: S501
        return answer.status_code, secret

    def operate(self, secret: str, operations: Sequence[Mapping[str, Any]]) -> httpx.Response:
        """Send a list of operations as an agent."""
        return httpx.post(
            f"{self.agents}/v1/exchange/operations",
            content=json.dumps(operations),
            headers={"Authorization": f"Bearer {secret}"},
            verify=False,  # noqa: S501 - of a coordinator that this test started
            timeout=20,
        )

    def write(self, secret: str, row: Entity) -> str:
        """Write a result row as an agent and return ``ok`` or the name of the error."""
        operation = {
            "do": "upsert",
            "table": "results",
            "id": f"{secrets.token_hex(4)}.1",
            "row": entity_fields(row),
        }
        answer = self.operate(secret, [operation])
        assert answer.status_code == 200, answer.text
        [reported] = answer.json()
        return "ok" if "ok" in reported else str(reported["error"])

    def stored(self, row: Entity) -> str | None:
        """Return the JSON of a stored result row, or None if there is no such row."""
        database = sqlite3.connect(self.programs.data / "results.sqlite3", timeout=30)
        # The first row creates the table.
        with closing(database), suppress(sqlite3.OperationalError):
            for (properties,) in database.execute(
                "SELECT properties FROM entity WHERE partition_key = ? AND row_key = ?",
                (row.partition_key, row.row_key),
            ):
                return str(properties)
        return None


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def serving(*versions: Programs) -> Iterator[list[Served]]:
    """Run a coordinator of both versions."""
    with ExitStack() as stack:
        started = []
        for programs in versions:
            agents = f"127.0.0.1:{free_port()}"
            process = programs.start("serve", "--port", "0", BROADSIDE_HOSTS_LISTEN=agents)
            stack.callback(end, process)
            started.append((programs, process, agents))
        yield [_served(*item) for item in started]


def _served(programs: Programs, process: subprocess.Popen[bytes], agents: str) -> Served:
    def listening() -> str | None:
        text = (programs.folder / "log").read_text()
        assert process.poll() is None, text
        match = re.search(r"listening on (http\S+)", text)
        return match and match[1]

    api = str(wait_for("the API", listening)).rstrip("/")
    return Served(programs, process.pid, api, f"https://{agents}")
