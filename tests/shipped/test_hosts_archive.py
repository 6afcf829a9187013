"""Test that the commands of docs/hosts.md work on Debian 12 and 13 without changes.

The hosts boot a Debian root with systemd and the Python of that release. The words after ``sh`` in
a command block are the hosts to use. If the reader has to do something between the blocks (copy a
file to a host, export the firewall's counter), the test will do it.
"""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from tests.live.waiting import wait_for
from tests.shipped.conftest import AddRow
from tests.shipped.debian_roots import BOOKWORM, ROOT, TRIXIE, debian_root
from tests.shipped.systemd_hosts import Host, HostNetwork

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

ARTEFACT: Final = "hosts archive"
API: Final = "--api http://127.0.0.1:8080"
NAMES: Final = ("coordinator", "client", "server", "standby")
SYSTEMS: Final = {BOOKWORM: ("Debian 12", "Python 3.11.2"), TRIXIE: ("Debian 13", "Python 3.13.")}
# The last commit with an archive that users can have. It should be replaced by the tag of a
# release.
PREVIOUS: Final = "6cca7b45"
LOWER_VERSION: Final = "0.0.1"
BLOCK: Final = re.compile(r"^```sh ([a-z ]+)\n(.*?)^```", re.M | re.S)
Built = Callable[[str, Callable[[Path], object]], Path]


def blocks(heading: str) -> list[tuple[tuple[str, ...], str]]:
    """Return the blocks of one section as words after ``sh`` and commands."""
    page = (ROOT / "docs" / "hosts.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    results = [(tuple(match[1].split()), match[2]) for match in BLOCK.finditer(section)]
    assert results, f"docs/hosts.md has no commands under {heading!r}"
    return results


@pytest.fixture
def previous_archive(
    suite: str, build_once: Built, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the archive of the release that users upgrade from.

    The archive of ``PREVIOUS`` never worked on Debian 13, because Python 3.13 rejects the
    certificates of its coordinator. In that case, and without git history, this tree with a lower
    version is used.
    """

    def build_previous(path: Path) -> None:
        tree = tmp_path_factory.mktemp("previous")
        if suite != BOOKWORM or not _unpack_commit(tree):
            _copy_with_lower_version(tree)
        for tools in (".venv", ".tools"):
            (tree / tools).symlink_to(ROOT / tools)
        python = "3.11" if suite == BOOKWORM else "3.13"
        subprocess.run(
            [
                *(sys.executable, "-m", "deploy.hosts.archive"),
                *("--output", str(path), "--python", python),
            ],
            cwd=tree,
            check=True,
        )

    return build_once(f"broadside-hosts-before-{suite}.tar.gz", build_previous)


def _unpack_commit(tree: Path) -> bool:
    """Unpack ``PREVIOUS``, and return whether this checkout contains it."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", PREVIOUS], capture_output=True, check=False
    )
    if packed.returncode == 0:
        subprocess.run(["tar", "-x", "-C", str(tree)], input=packed.stdout, check=True)
    return packed.returncode == 0


def _copy_with_lower_version(tree: Path) -> None:
    left_out = (".git", ".venv", ".tools", "dist", "build", "__pycache__", "node_modules")
    ignored = shutil.ignore_patterns(*left_out)
    shutil.copytree(ROOT, tree, symlinks=True, ignore=ignored, dirs_exist_ok=True)
    project = tree / "pyproject.toml"
    text, count = re.subn(
        r'^version = ".*"$', f'version = "{LOWER_VERSION}"', project.read_text(), flags=re.M
    )
    assert count == 1
    project.write_text(text)


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Hosts of one release on which the commands of the page run."""

    network: HostNetwork
    suite: str
    hosts: dict[str, Host] = field(default_factory=dict)

    def boot(self, name: str, archive: Path) -> Host:
        """Boot a host with the archive and with the last-resort clock of the page."""
        host = self.hosts[name] = self.network.boot(name, debian_root(self.suite))
        assert host.run("python3 -V").stdout.startswith(SYSTEMS[self.suite][1])
        self.carry(archive, name)
        page = (ROOT / "docs" / "hosts.md").read_text().partition("source of last resort")[2]
        if name in ("coordinator", "standby"):
            host.put("/etc/chrony/conf.d/broadside.conf", page.split("```")[1].encode())
        else:
            line = page.partition("`server coordinator ")[2].partition("`")[0]
            host.run(f"echo 'server coordinator {line}' >>/etc/chrony/chrony.conf")
        host.run("systemctl restart chrony")
        return host

    @property
    def system(self) -> str:
        return ", ".join(SYSTEMS[self.suite]).rstrip(".")

    def carry(self, archive: Path, name: str) -> None:
        self.hosts[name].put("/root/broadside-hosts.tar.gz", archive.read_bytes())

    def agents(self, at: str = "coordinator") -> dict[str, dict[str, Any]]:
        """Return the heartbeats of a coordinator by role.

        The result is empty if the coordinator does not answer.
        """
        # The previous release has no `-o json`.
        command = f"broadside agents -o json {API} || broadside agents --json {API}"
        requested = self.hosts[at].run(command, check=False)
        if requested.returncode:
            return {}
        return {agent["role"]: agent for agent in json.loads(requested.stdout)}

    def wait_for_agents(self, roles: set[str], at: str = "coordinator") -> dict[str, Any]:
        """Wait until agents of these roles are ready, with a clock that passes the gate."""
        since = time.time()

        def ready() -> dict[str, dict[str, Any]] | None:
            result = self.agents(at)
            fit = {
                role
                for role, agent in result.items()
                if agent["problem"] is None
                and (agent["clock"] or {}).get("bound_s") is not None
                and agent["clock"]["bound_s"] < 0.05
                and _epoch_s(agent["beat_at"]) > since
            }
            return result if fit >= roles else None

        try:
            result: dict[str, Any] = wait_for(f"agents {sorted(roles)}", ready, 120, pause_s=1)
        except AssertionError as error:
            lines = [f"{self.agents(at)}"]
            lines += [host.journal()[-3000:] for host in self.hosts.values()]
            raise AssertionError("\n".join([str(error), *lines])) from error
        return result


def _epoch_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.fixture(scope="module", params=SYSTEMS)
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Yield the hosts of one release, not booted."""
    folder = tmp_path_factory.mktemp(f"hosts-{request.param}")
    with HostNetwork(folder / "network", NAMES) as network:
        yield Fleet(network=network, suite=request.param)


def export_counter(fleet: Fleet, ended: threading.Event) -> None:
    """Write the firewall's export of a site, which is one row of bytes per second."""
    rows = ["time,bytes"]
    path = fleet.hosts["coordinator"].path("/var/lib/broadside/firewall.csv")
    at_s, before = int(time.time()), fleet.network.counted_bytes("server", "tx")
    while not ended.is_set():
        time.sleep(max(0.0, at_s + 1 - time.time()))
        now = fleet.network.counted_bytes("server", "tx")
        rows.append(f"{at_s},{now - before}")
        at_s, before = at_s + 1, now
        new = path.with_suffix(".new")
        new.write_text("\n".join(rows) + "\n")
        new.chmod(0o644)
        new.replace(path)


def test_installs_archive_and_runs_to_verdict(
    fleet: Fleet, hosts_archive: Path, shipped_row: AddRow
) -> None:
    for name in ("coordinator", "client", "server"):
        fleet.boot(name, hosts_archive)
    coordinator, client = fleet.hosts["coordinator"], fleet.hosts["client"]
    for (name, *more), script in blocks("Install and launch a run"):
        # The commands doctor and upgrade have separate tests.
        if more:
            continue
        if "broadside launch" in script:
            break
        fleet.hosts[name].run(script, timeout_s=400)
        for role in ("client", "server"):
            if f">{role}.code" in script:
                code = coordinator.path(f"/root/{role}.code").read_bytes()
                fleet.hosts[role].put(f"/root/{role}.code", code, 0o600)
    agents = fleet.wait_for_agents({"client", "server"})
    for agent in agents.values():
        assert (agent["nic"], agent["nic_mtu_bytes"]) == ("eth0", 1500), agent
        assert agent["passport"]["nic_driver"] == "veth", agent
        assert agent["passport"]["sysctls"]["net.ipv4.tcp_rmem"], agent
        assert agent["engine_version"] and agent["kernel"] and agent["cpu_count"], agent
        assert agent["gate"] is (agent["role"] == "client"), agent
        assert not agent.get("warnings"), agent
    assert client.run("stat -c %a /var/lib/broadside/credential.json").stdout == "600\n"
    assert "JOIN" not in client.run("cat /etc/broadside/environment").stdout
    shipped_row(ARTEFACT, fleet.system, "install coordinator and two agents, heartbeats")

    ended = threading.Event()
    export = threading.Thread(target=export_counter, args=(fleet, ended))
    export.start()
    try:
        done = coordinator.run(script, timeout_s=300, check=False)
    finally:
        ended.set()
        export.join()
    assert done.returncode in (0, 1, 2), done.stdout + done.stderr
    shown = coordinator.run(f"broadside verdict last -o json {API}", check=False)
    summary = json.loads(shown.stdout)
    assert summary["pairs_measured"] == 1, done.stdout
    assert summary["verdict"] in ("pass", "fail", "inconclusive"), done.stdout
    assert summary["client_cpu_mean_ratio"] is not None, "the agent counts its host"
    # The rate is known only if the lag is known, and a busy exporter may hide the lag.
    assert summary["reconciliation"], "the exported counter was read"
    shipped_row(ARTEFACT, fleet.system, f"one burst of 30 s: {summary['verdict']}")


def test_doctor_gives_no_advice_that_needs_a_checkout(fleet: Fleet, shipped_row: AddRow) -> None:
    """Test that doctor reports no error on a healthy host.

    It should not give advice that needs a checkout.
    """
    (names, script) = next(
        block for block in blocks("Install and launch a run") if "doctor" in block[1]
    )
    for name in names:
        done = fleet.hosts[name].run(script, check=False)
        text = f"{name}: {done.stdout}{done.stderr}"
        assert done.returncode == 0, text
        assert "FAIL" not in done.stdout, text
        assert not re.search(r"make (setup|tools)|\.venv|\.tools", done.stdout), text
    shipped_row(ARTEFACT, fleet.system, "doctor on each host")


def test_backup_is_restored_on_empty_host(
    fleet: Fleet, hosts_archive: Path, shipped_row: AddRow
) -> None:
    coordinator = fleet.hosts["coordinator"]
    (_, backup), (_, restore) = blocks("Back up and restore")
    burst = f"broadside launch smoke {API} --plain --set pairs_count=1 >launched 2>&1 &"
    taken = coordinator.run(f"{burst} sleep 5\n{backup}")
    assert "results.sqlite3" in taken.stderr
    assert coordinator.run("stat -c %a /root/fleet.backup; ls -A /root").stdout.startswith("600\n")
    runs = coordinator.run(f"broadside runs -o json {API}").stdout
    packed = coordinator.path("/root/fleet.backup").read_bytes()
    shipped_row(ARTEFACT, fleet.system, "backup beside a running burst")

    coordinator.stop()
    standby = fleet.boot("standby", hosts_archive)
    standby.put("/root/fleet.backup", packed, 0o600)
    standby.run(restore, timeout_s=400)
    standby.wait_for_unit("broadside-coordinator.service")
    # This is used instead of a changed DNS record, because chrony will resolve a name only once.
    moved = f"sed -i 's/.* coordinator$/{standby.address} coordinator/' /etc/hosts"
    for role in ("client", "server"):
        fleet.hosts[role].run(f"{moved}; systemctl restart chrony")
    fleet.wait_for_agents({"client", "server"}, at="standby")
    again = standby.run(f"broadside runs -o json {API}").stdout
    known = {run["run_id"] for run in json.loads(again)}
    assert known and known <= {run["run_id"] for run in json.loads(runs)}
    shipped_row(ARTEFACT, fleet.system, "restore on an empty host, agents find it")


@pytest.mark.parametrize("suite", SYSTEMS)
def test_upgrades_from_previous_archive(
    suite: str,
    hosts_archive: Path,
    previous_archive: Path,
    tmp_path: Path,
    shipped_row: AddRow,
) -> None:
    """Test that the new version can use the old settings and the old credential."""
    names = ("coordinator", "client")
    with HostNetwork(tmp_path / "network", names) as network:
        old = Fleet(network=network, suite=suite)
        for name in names:
            old.boot(name, previous_archive)
        coordinator, client = old.hosts["coordinator"], old.hosts["client"]
        for parts, script in blocks("Install and launch a run"):
            if parts in (("coordinator",), ("client",)) and "TELEMETRY" not in script:
                if "broadside launch" in script:
                    break
                old.hosts[parts[0]].run(script, timeout_s=400)
                if ">client.code" in script:
                    code = coordinator.path("/root/client.code").read_bytes()
                    client.put("/root/client.code", code, 0o600)
        before = old.wait_for_agents({"client"})["client"]
        stored = "cat /etc/broadside/environment; sha256sum /var/lib/broadside/credential.json"
        settings = client.run(stored).stdout
        shipped_row(ARTEFACT, old.system, f"install the previous archive, {version_of(old)}")

        for name in names:
            old.carry(hosts_archive, name)
        for parts, script in blocks("Install and launch a run"):
            if parts[-1] == "upgraded":
                old.hosts[parts[0]].run(script, timeout_s=400)
        after = old.wait_for_agents({"client"})["client"]
        assert after["agent_id"] == before["agent_id"]
        assert after["started_at"] > before["started_at"]
        assert after["nic"] == "eth0"
        assert str(after["broadside_version"]).partition(" ")[0] == version_of(old)
        assert client.run(stored).stdout == settings
        shipped_row(ARTEFACT, old.system, f"upgrade it to {version_of(old)}")


def version_of(fleet: Fleet) -> str:
    """Return the version of the archive that was unpacked on the client."""
    lock = fleet.hosts["client"].run("cat broadside-hosts/hosts.lock").stdout
    match = re.search(r"^broadside==(\S+)", lock, re.M)
    assert match
    return match[1]
