"""Test a small run over HTTPS with all kinds of secrets in an insecure environment.

The environment has umask 0 and logs at DEBUG. Afterwards the test searches for the secrets in
all files, arguments, environments and logs. A file must be private if it contains a secret by
design.
"""

import base64
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broadside.exchange.messages import Role
from tests.live.free_ports import free_port
from tests.live.live_site import PACED, ROOT, Site, call, wait_for_fleet
from tests.live.process_list import ProcessList
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

BURST: Final = ("pairs_count=1", "bursts_count=1", "burst_s=3", "lead_s=12", "late_after_s=5")
# Files that contain a secret by design, relative to the site's folder.
ALLOWED: Final = {
    "token": r"given/me\.token",
    "code": r"given/\w+\.code",
    "credential": r"spool/\w+/credential\.json",
    "key": r"data/tls/\w+\.key",
}


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


class Run:
    """Site with planted secrets and the output of its commands."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.printed: dict[str, str] = {}
        self.secrets: dict[str, set[str]] = {kind: set() for kind in (*ALLOWED, "setting")}
        (site.folder / "given").mkdir(0o700)

    def plant_settings(self) -> None:
        """Plant secrets in the environment of the coordinator."""
        hook, password = base64.b64encode(os.urandom(32)).decode(), secrets.token_hex(12)
        planted = {
            "BROADSIDE_WEBHOOK_SECRET": f"whsec_{hook}",
            "BROADSIDE_PROMETHEUS_TOKEN": secrets.token_hex(24),
            "BROADSIDE_AZURE_MONITOR_TOKEN": secrets.token_hex(24),
            "HTTPS_PROXY": f"http://me:{password}@127.0.0.1:9",
        }
        self.secrets["setting"] |= {hook, password}
        self.secrets["setting"] |= {v for name, v in planted.items() if name.endswith("_TOKEN")}
        self.site.environment |= planted | {"NO_PROXY": "127.0.0.1"}

    def do(self, *arguments: str, given: str = "", code: int = 0) -> str:
        """Run a command as a user would, with its arguments in the process list."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "broadside.coordinator", *arguments],
            env=self.site.environment,
            cwd=self.site.folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == code, done.stderr
        self.printed[" ".join(arguments)] = done.stdout + done.stderr
        return done.stdout

    def give(self, kind: str, name: str, *arguments: str) -> Path:
        """Use a command that prints a secret once, and write the secret to a separate file."""
        secret = self.do(*arguments).strip()
        self.printed.pop(" ".join(arguments))
        self.secrets[kind].add(secret.rpartition(".")[2])
        path = self.site.folder / "given" / f"{name}.{kind}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(secret + "\n")
        return path

    def collect_keys(self) -> None:
        """Collect the credentials of agents and the keys of the authority, created meanwhile."""
        for path in self.site.folder.glob("spool/*/credential.json"):
            self.secrets["credential"].add(json.loads(path.read_text())["secret"])
        for path in self.site.folder.glob("data/tls/*.key"):
            # These lines belong to the private key.
            self.secrets["key"] |= set(path.read_text().splitlines()[1:3])

    def leaks(self, processes: ProcessList) -> list[str]:
        """Return the places of unexpected secrets, and files with secrets that others can read."""
        results = []
        for path in self.site.folder.rglob("*"):
            if not path.is_file():
                continue
            name, content = str(path.relative_to(self.site.folder)), path.read_bytes()
            for kind, secret in self._kinds_and_secrets():
                if secret.encode() in content:
                    if kind not in ALLOWED or not re.fullmatch(ALLOWED[kind], name):
                        results.append(f"{name} has a {kind}")
                    if path.stat().st_mode & 0o077:
                        results.append(f"{name} has a {kind} and may be read by others")
        seen = {f"printed by {parts}": text.encode() for parts, text in self.printed.items()}
        seen["process list"] = b"\n".join(processes.arguments)
        seen["engines' environment"] = b"\n".join(processes.engines_environments)
        results += [
            f"{place} has a {kind}"
            for place, text in seen.items()
            for kind, secret in self._kinds_and_secrets()
            if secret.encode() in text
        ]
        return results + [f"environment of {parts}" for parts in processes.open_environments]

    def _kinds_and_secrets(self) -> Iterator[tuple[str, str]]:
        for kind, values in self.secrets.items():
            assert values, kind
            yield from ((kind, value) for value in values)


def enrol_fleet(run: Run, port: int) -> None:
    """Enrol a client by file and a server by environment, with join codes printed once."""
    site = run.site
    codes = {
        role: run.give("code", role.value, "enroll", "new", "--role", role.value) for role in Role
    }
    over_https: dict[str, Any] = {"echo_port": 0, "log_level": "DEBUG"}
    fabric = {
        "BROADSIDE_FABRIC": "http",
        "BROADSIDE_COORDINATOR": f"https://127.0.0.1:{port}",
    }
    before, site.environment = site.environment, site.environment | fabric
    site.start_agent(Role.SERVER, "s1", join=codes[Role.SERVER].read_text().strip(), **over_https)
    # The command reads the join code from the file and then becomes the agent.
    site.environment |= {
        f"BROADSIDE_AGENT_{name.upper()}": str(value)
        for name, value in {
            "agent_id": "c1",
            "address": "127.0.0.1",
            "nic": "lo",
            "chronyc_socket": site._chronyc_socket,
            "spool_dir": site.folder / "spool" / "c1",
            "heartbeat_s": 1,
            **over_https,
        }.items()
    }
    site.start("c1", "agent", "--role", "client", "--join-file", str(codes[Role.CLIENT]))
    site.environment = before


@pytest.mark.usefixtures("open_umask")
def test_other_users_cannot_read_secrets_of_a_run(tmp_path: Path) -> None:
    (folder := tmp_path / "site").mkdir()
    with Site(folder, as_users_do=True) as site:
        run, port = Run(site), free_port()
        site.environment |= {
            "BROADSIDE_SIGN_IN": "on",
            "BROADSIDE_LOG_LEVEL": "DEBUG",
            "BROADSIDE_HOSTS_LISTEN": f"127.0.0.1:{port}",
            "BROADSIDE_WEBHOOK_URL": f"http://127.0.0.1:{free_port()}/hook",
            "BROADSIDE_BACKUP_DIR": str(folder / "backups"),
            "PYTHONPATH": str(ROOT / "src") + os.pathsep + str(ROOT),
        }
        run.plant_settings()
        processes = ProcessList()
        with processes.recording():
            token_file = run.give("token", "me", "token", "add", "me", "--role", "operator")
            headers = {"Authorization": f"Bearer {token_file.read_text().strip()}"}
            _, url = site.start_coordinator()
            enrol_fleet(run, port)
            wait_for_fleet(url, 2, headers=headers)
            reach = ("--api", url, "--token-file", str(token_file))
            sets = [f"--set={item}" for item in BURST]
            run.do("launch", "smoke", *sets, PACED, "--detach", *reach)
            (header,) = call(url, "GET", "/v1/runs", headers=headers)
            path = f"/v1/runs/{header['run_id']}"
            wait_for(
                "the verdict",
                lambda: call(url, "GET", "/v1/runs", headers=headers)[0]["outcome"],
                120,
            )
            summary = call(url, "GET", f"{path}/summary", headers=headers)
            assert summary["pairs_measured"] == 1, summary["findings"]
            run.do("export", header["run_id"], "-o", "csv", "--file", "export", *reach)
            run.do("report", header["run_id"], "--file", "report.html", *reach)
            for parts in (["agents"], ["audit"], ["runs"]):
                run.do(*parts, *reach)
            run.do("agents", "--api", url, code=4)
            run.do("backup")
            run.do("restore", "--drill")
            run.do("enroll", "list")
        run.collect_keys()
        assert any(b"--join-file" in parts for parts in processes.arguments)
        assert processes.engines_environments, "no engine process was recorded"
        made = [*(folder / "backups").iterdir(), *(folder / "data").rglob("*")]
        assert [str(item) for item in made if item.stat().st_mode & 0o077] == []
    assert "\n".join(run.leaks(processes)) == ""
