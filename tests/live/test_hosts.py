"""Test agents that can reach the coordinator only on an HTTPS port of the management address."""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from broadside.exchange.http.coordinator_client import CoordinatorClient
from broadside.exchange.http.credential import AgentCredential, load_credential
from broadside.exchange.http.http_ports import HttpTable
from broadside.exchange.http.joining import join
from broadside.exchange.ports import Entity, EntityRefused, ExchangeMisconfigured, ExchangeRefused
from broadside.lab.site import RunningLab, built, sqlite_fabric, staged
from broadside.lab.topology import LabSpec, management_name
from tests.live.labs import new_prefix
from tests.live.live_site import GENTLE, call, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.timeout(300)]

PAIRS = 2
DISK_BYTES = 64 * 2**20
SPEC = {**GENTLE, "pairs_count": PAIRS, "burst_s": 30}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    folder = tmp_path_factory.mktemp("hosts")
    spec = LabSpec(pairs_count=PAIRS, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    with (
        small_disk(folder / "data"),
        built(spec, folder / "lab") as lab,
        staged(
            lab,
            folder,
            other_hosts=True,
            agents={"BROADSIDE_AGENT_HEARTBEAT_S": "1", "BROADSIDE_AGENT_UPLOAD_S": "1"},
        ) as standing,
    ):
        yield standing


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small file system to be filled instead of the machine's disk."""
    folder.mkdir()
    disk = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    subprocess.run(disk, check=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, timeout=20)


def launched(site: RunningLab, **overrides: object) -> tuple[str, float]:
    """Launch a run and return its id and the epoch second of its burst."""
    body = {"scenario": "smoke", "overrides": SPEC | overrides, "by": "test"}
    run = site.coordinator.launch(body)
    (first,) = run["bursts"]
    return run["run_id"], _epoch_s(first["planned_start_at"])


def broadside(environment: Mapping[str, str], *arguments: str, fails: bool = False) -> str:
    """Run a command and return its standard output.

    The exit code should be 0, or 4 if ``fails`` is set.
    """
    argv, env = [".venv/bin/broadside", *arguments], {"PATH": "/usr/bin", **environment}
    done = subprocess.run(argv, env=env, check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == (4 if fails else 0), done.stdout + done.stderr
    return done.stdout


def revoke(site: RunningLab, agent_id: str) -> None:
    folder = Path(site.coordinator.environment["BROADSIDE_DATA_DIR"])
    broadside(sqlite_fabric(folder), "enroll", "revoke", agent_id)


def _epoch_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def sleep_until(epoch_s: float) -> None:
    time.sleep(max(0.0, epoch_s - time.time()))


def wait_for_complete(site: RunningLab, run_id: str) -> dict[str, Any]:
    """Wait for a run to be complete and return its summary."""
    summary = wait_for_summary(site.coordinator.url, run_id, 120)
    assert summary["pairs_measured"] == PAIRS, summary["findings"]
    assert summary["completeness_ratio"] == 1.0, summary["findings"]
    return summary


def credential(site: RunningLab, agent_id: str) -> AgentCredential:
    folder = Path(site.plans[agent_id].environment["BROADSIDE_AGENT_SPOOL_DIR"])
    path = folder / "credential.json"
    assert path.stat().st_mode & 0o777 == 0o600
    result = load_credential(path)
    assert result is not None
    return replace(result, path=None)


def test_agents_have_no_access_to_the_data_directory(site: RunningLab) -> None:
    for plan in site.plans.values():
        assert plan.environment["BROADSIDE_FABRIC"] == "http"
        assert "BROADSIDE_DATA_DIR" not in plan.environment
        folder = Path(site.coordinator.environment["BROADSIDE_DATA_DIR"])
        pid = site.agents.states()[plan.agent_id].pid
        open_files = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [path for path in open_files if path.startswith(str(folder))]


def test_agent_list_shows_time_source_of_all_hosts(site: RunningLab) -> None:
    shown = broadside({"COLUMNS": "200"}, "agents", "--api", site.coordinator.url)
    assert shown.count("chrony ") == 2 * PAIRS


def test_loses_no_data_while_the_coordinator_disk_is_full(site: RunningLab) -> None:
    """Test that agents store rejected writes and send them when space is available."""
    run_id, start_s = launched(site, burst_s=20)
    filler = Path(site.coordinator.environment["BROADSIDE_DATA_DIR"]) / "filler"
    sleep_until(start_s + 4)
    try:
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while file.write(bytes(65_536)):
                pass
        sleep_until(start_s + 16)
    finally:
        filler.unlink()
    wait_for_complete(site, run_id)


def test_loses_no_data_if_the_coordinator_is_killed(site: RunningLab) -> None:
    """Restart the killed coordinator, then start another one with a copy of its data directory."""
    run_id, start_s = launched(site)
    for offset_s, back in ((4, "the same"), (14, "a standby")):
        sleep_until(start_s + offset_s)
        site.coordinator.kill()
        if back == "a standby":
            data_dir = Path(site.coordinator.environment["BROADSIDE_DATA_DIR"])
            copy = shutil.copytree(data_dir, data_dir.with_name("standby"))
            site.coordinator.environment["BROADSIDE_DATA_DIR"] = str(copy)
            # The data directory is a mount point, so it is only possible to remove its contents.
            for path in data_dir.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        # No coordinator will answer for this time.
        time.sleep(5)
        site.coordinator.start()
    wait_for_complete(site, run_id)


def test_loses_no_data_while_an_agent_is_offline(site: RunningLab) -> None:
    run_id, start_s = launched(site)
    port = ["ip", "-n", management_name(site.lab.spec.prefix), "link", "set", "dev", "c001"]
    sleep_until(start_s + 4)
    subprocess.run([*port, "down"], check=True, timeout=10)
    try:
        sleep_until(start_s + 24)
    finally:
        subprocess.run([*port, "up"], check=True, timeout=10)
    wait_for_complete(site, run_id)


@pytest.mark.parametrize(("agent_id", "role"), [("c001", "client"), ("s001", "server")])
def test_doctor_verifies_permissions_of_agents(site: RunningLab, agent_id: str, role: str) -> None:
    environment = dict(site.plans[agent_id].environment)
    stored = Path(environment["BROADSIDE_AGENT_SPOOL_DIR"]) / "credential.json"
    environment["BROADSIDE_CREDENTIAL_FILE"] = str(stored)

    def doctor(identity: str, *, fails: bool) -> dict[str, bool]:
        text = broadside(environment, "doctor", "--as", identity, "-o", "json", fails=fails)
        return {check["name"]: check["ok"] for check in json.loads(text)}

    result = doctor(role, fails=False)
    assert set(result.values()) == {True}, result
    assert {f"{role} cannot read a token", f"{role} cannot write a plan"} < result.keys()
    result = doctor("server" if role == "client" else "client", fails=True)
    assert list(result.values()) == [False], "another agent id"


def test_rejects_and_audits_writes_to_rows_of_other_agents(site: RunningLab) -> None:
    run_id, start_s = launched(site, burst_s=8)
    sleep_until(start_s + 2)
    pairs = call(site.coordinator.url, "GET", f"/v1/runs/{run_id}/pairs?burst=1")
    theirs = next(p["pair_index"] for p in pairs if p["client_agent_id"] not in (None, "c001"))
    forged = Entity(
        partition_key=f"burst.{run_id}.00000",
        row_key=f"report.{theirs:05d}",
        properties={"json": '{"agent_id": "c001"}'},
    )

    async def forge() -> None:
        link = CoordinatorClient(credential(site, "c001"))
        try:
            with pytest.raises(EntityRefused):
                await HttpTable(link, "results").upsert(forged)
            with pytest.raises(ExchangeRefused):
                await HttpTable(link, "private").get("tokens", "admin")
        finally:
            await link.close()

    asyncio.run(forge())
    wait_for_complete(site, run_id)
    rows = wait_for(
        "the audit rows of the rejected requests",
        lambda: [
            row
            for row in call(site.coordinator.url, "GET", "/v1/audit")
            if row["by"] == "client.c001" and row["status"] == 403
        ],
    )
    assert {row["role"] for row in rows} == {"agent"}
    assert any(f"report.{theirs:05d}" in row["path"] for row in rows)


def test_join_code_is_for_one_coordinator_and_revocation_is_final(
    site: RunningLab, tmp_path: Path
) -> None:
    at = site.plans["c001"].environment["BROADSIDE_COORDINATOR"]
    code = site.plans["c001"].environment["BROADSIDE_AGENT_JOIN"]
    mark, named, secret = code.split(".")
    other = ".".join((mark, named[::-1], secret))
    with pytest.raises(ExchangeMisconfigured, match="not the one in the join code"):
        asyncio.run(join(other, (at,), "c777", "client", tmp_path / "other.json"))
    with pytest.raises(ExchangeMisconfigured, match="revoke that one first"):
        asyncio.run(join(code, (at,), "c001", "client", tmp_path / "twice.json"))
    assert list(tmp_path.glob("*.json")) == []
    host, _, port = at.removeprefix("https://").rpartition(":")
    with (
        pytest.raises(ssl.SSLError),
        socket.create_connection((host, int(port))) as plain,
        ssl.create_default_context().wrap_socket(plain, server_hostname=host),
    ):
        pass
    asyncio.run(join(code, (at,), "c777", "client", tmp_path / "c777.json"))
    joined = load_credential(tmp_path / "c777.json")
    assert joined is not None

    async def ping() -> None:
        link = CoordinatorClient(joined)
        try:
            await link.call("ping")
        finally:
            await link.close()

    asyncio.run(ping())
    revoke(site, "c777")

    def out() -> bool:
        try:
            asyncio.run(ping())
        except ExchangeRefused:
            return True
        return False

    wait_for("the revoked agent is refused", out)


def test_agent_port_serves_only_agent_routes(site: RunningLab) -> None:
    at = site.plans["c001"].environment["BROADSIDE_COORDINATOR"]
    shown = credential(site, "c001")
    assert shown.authority is not None
    context = ssl.create_default_context(cadata=shown.authority)
    context.check_hostname = False
    with httpx.Client(verify=context, base_url=at, timeout=20) as client:
        fields = {
            path: client.get(path).status_code
            for path in ("/", "/v1/runs", "/v1/exchange/stream", "/metrics", "/v1/exchange/../runs")
        }
        assert fields["/v1/exchange/stream"] == 401
        assert {status for path, status in fields.items() if "stream" not in path} <= {401, 404}
        signed = {"Authorization": f"Bearer {shown.secret}"}
        invalid = [
            client.post("/v1/exchange/operations", content=content, headers=signed)
            for content in (b"", b"{}", b"[" * 100_000, b'[1, {}, [], {"do": 1}]', b"\xff")
        ]
    assert [answer.status_code for answer in invalid] == [400, 400, 400, 200, 400]
    assert {answer["error"] for answer in json.loads(invalid[3].text)} <= {
        "ExchangeMisconfigured",
        "ExchangeRefused",
    }


def test_revoked_agent_makes_the_burst_inconclusive(site: RunningLab) -> None:
    """Test the verdict with only the server's record.

    This should be the last test, because the agent c001 will stay revoked.
    """
    run_id, start_s = launched(site, burst_s=10)
    sleep_until(start_s + 2)
    revoke(site, "c001")
    summary = wait_for_summary(site.coordinator.url, run_id, 240)
    assert summary["verdict"] == "inconclusive", summary["findings"]
    pairs = call(site.coordinator.url, "GET", f"/v1/runs/{run_id}/pairs?burst=1")
    outcomes = {pair["client_agent_id"]: pair["outcome"] for pair in pairs}
    assert outcomes == {"c001": None, "c002": "measured"}
