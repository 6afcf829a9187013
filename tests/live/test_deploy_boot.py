"""Test the first boot of a VM with real units, package, download and clock."""

import hashlib
import io
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from broadside.coordinator.cli.range_checks import last_status
from broadside.exchange.messages import Presence
from tests.deploy_check import boot, tools
from tests.deploy_check.__main__ import COORDINATOR, EXPOSURE_MAX
from tests.live.free_ports import free_port
from tests.live.http_service import Answer, Asked, serving
from tests.live.live_agents import presences_in
from tests.live.live_site import BROADSIDE, ROOT, call
from tests.live.machine import Machine, system_python, why_not
from tests.live.terraform_outputs import outputs
from tests.live.waiting import wait_for
from tests.unit.deploy.written import files_of

pytestmark = pytest.mark.live

FOLDER = tools.AZURE / "modules" / "boot"
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
UNIT = "broadside-agent.service"
SERVER_UNIT = "broadside-agent-server.service"
COORDINATOR_UNIT = "broadside-coordinator.service"
API_PORT = free_port()
SERVICES = {"http", "https", "ftp"}

FABRIC = {"BROADSIDE_FABRIC": "embedded", "BROADSIDE_DATA_DIR": "/var/lib/broadside/fabric"}


def agent(role: str, capabilities: Sequence[str] = (), **settings: str) -> boot.Boot:
    """Return an agent as Terraform would describe it, with the embedded fabric on a local disk."""
    return boot.Boot(
        service="agent",
        capabilities=capabilities,
        environment=FABRIC
        | {
            "BROADSIDE_AGENT_ROLE": role,
            "BROADSIDE_AGENT_AGENT_ID": role,
            "BROADSIDE_AGENT_ADDRESS": "127.0.0.1",
            "BROADSIDE_AGENT_NIC": "lo",
            "BROADSIDE_AGENT_HEARTBEAT_S": "1",
            "BROADSIDE_AGENT_LOG_JSON": "true",
        }
        | settings,
    )


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create /opt/broadside/venv as install.sh does, from `make wheelhouse` and locked wheels."""
    work = tmp_path_factory.mktemp("package")
    home = work / "venv"
    runpy.run_path(str(tools.AZURE / "wheelhouse.py"))["build_wheel"](work / "wheels", work)
    (wheel,) = (work / "wheels").glob("*.whl")
    # The lock file is for the Python of the image. This host may use another one.
    wanted = work / "agent.in"
    lines = (tools.AZURE / "bundle" / "agent.in").read_text().splitlines()
    wanted.write_text("\n".join(line for line in lines if line != "pip"))
    lock = str(ROOT / "requirements.lock")
    for argv in (
        # It needs to be relocatable, because a machine uses it at /opt/broadside/venv, without
        # the /tmp of this host.
        [UV, "venv", "-q", "--relocatable", "--python", system_python(), home],
        [UV, "pip", "install", "-q", "--python", home / "bin/python", "-r", wanted, "-c", lock],
        [UV, "pip", "install", "-q", "--python", home / "bin/python", "-c", lock, wheel],
    ):
        subprocess.run([str(part) for part in argv], check=True, timeout=120)
    for path in (
        work.parent,
        work,
        # The folders of pytest are private, but a service runs as another user.
    ):
        path.chmod(0o755)
    return home


def machine_files(client: boot.Boot, server: boot.Boot, **coordinator: str) -> dict[str, str]:
    """Return the files of the three kinds of VM, combined as three units of one machine."""
    files = files_of(boot.render(FOLDER, client))
    reported = boot.Boot(service="coordinator", environment=FABRIC | coordinator)
    for config, unit, named in (
        (server, SERVER_UNIT, "server"),
        (reported, COORDINATOR_UNIT, "coordinator"),
    ):
        other = files_of(boot.render(FOLDER, config))
        text = other[f"/etc/systemd/system/broadside-{config.service}.service"]
        environment = "/etc/broadside/environment"
        files[f"/etc/systemd/system/{unit}"] = text.replace(environment, f"/etc/broadside/{named}")
        files[f"/etc/broadside/{named}"] = other[environment]
    return files


@pytest.fixture(scope="module")
def machine(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if reason := why_not():
        pytest.skip(reason)
    server = agent("server", BROADSIDE_AGENT_PORTS=str(free_port()))
    files = machine_files(agent("client"), server, BROADSIDE_PORT=str(API_PORT))
    units = [UNIT, SERVER_UNIT, COORDINATOR_UNIT]
    with Machine(tmp_path_factory.mktemp("machine"), venv, files, units) as standing:
        yield standing
    assert not standing.remains()


CLOCK_UNIT = "clock.service"
# This clock reports itself as synchronised and sets nothing.
CLOCK = {
    f"/etc/systemd/system/{CLOCK_UNIT}": "[Service]\nExecStart=/usr/sbin/chronyd -d -x -u root"
    " -f /etc/broadside/clock.conf\n",
    "/etc/broadside/clock.conf": "local stratum 3\nport 0\nbindcmdaddress 127.0.0.1\n",
}


@pytest.fixture(scope="module")
def notebook(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Yield a machine with a separate network and the services of examples/notebook.tfvars."""
    if reason := why_not():
        pytest.skip(reason)
    local = next((venv / "lib").glob("python3*")) / "site-packages" / "broadside" / ".tools"
    # Use this folder for the tools that a VM has in /usr/local/bin.
    if not local.exists():
        shutil.copytree(ROOT / ".tools" / "vegeta", local / "vegeta")
    fields = {
        "BROADSIDE_AGENT_ALLOW_TUNNELS": "true",
        "BROADSIDE_AGENT_CHRONYC_SOCKET": "127.0.0.1",
    }
    served = fields | {"BROADSIDE_AGENT_SERVICES": "http=8080 https=8443 ftp=2121"}
    rights = ("CAP_NET_ADMIN",)
    files = machine_files(
        agent("client", rights, **fields), agent("server", rights, **served), BROADSIDE_PORT="8090"
    )
    units = [CLOCK_UNIT, UNIT, SERVER_UNIT, COORDINATOR_UNIT]
    folder = tmp_path_factory.mktemp("notebook")
    with Machine(folder, venv, files | CLOCK, units, own_network=True) as standing:
        yield standing
    assert not standing.remains()


def presences(machine: Machine) -> Mapping[str, Presence]:
    """Return the published presences."""
    folder = machine.state / "fabric"
    # The first process to open the file will own it, so this process must not create it.
    there = (folder / "results.sqlite3").exists()
    return presences_in(folder) if there else {}


def ready_presence(machine: Machine, agent_id: str) -> Presence | None:
    response = presences(machine).get(agent_id)
    ready = (
        response
        and response.engine_version
        and (response.role == "client" or response.ports)
        # The first heartbeat may be older than the chronyd of the machine.
        and response.clock
        and (response.clock.boot_id or response.clock.bound_s is not None)
    )
    return response if ready else None


def agent_pid(machine: Machine) -> int | None:
    """Return the process id of the client agent.

    Commands that systemd will run after it are excluded.
    """
    pid = machine.main_pid(UNIT)
    try:
        parts = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    is_agent = b"broadside.agent" in parts and b"--remove-tunnels" not in parts
    return pid if is_agent else None


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_agent_units_start_and_publish_presence(machine: Machine) -> None:
    """Test both roles with systemd and the sandbox, within 30 s of the boot."""
    try:
        client = wait_for("the client's presence", lambda: ready_presence(machine, "client"))
        server = wait_for("the server's presence", lambda: ready_presence(machine, "server"))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{machine.log()}") from error
    assert client.problem is None
    assert client.gate, "the packaged start gate works under seccomp and NoNewPrivileges"
    assert server.problem is None
    assert server.ports, "iperf3 listens under the same sandbox"


def test_agent_runs_in_the_systemd_sandbox(machine: Machine) -> None:
    pid = wait_for("the agent's process", lambda: machine.main_pid(UNIT))
    wait_for("the presence", lambda: ready_presence(machine, "client"))
    reported = status(pid)
    assert reported["Uid"].split()[0] == "64987"
    assert reported["NoNewPrivs"] == "1"
    assert reported["Seccomp"] == "2"
    assert {int(reported[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {0}
    mounts = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    options = {line.split()[4]: line.split()[5].split(",")[0] for line in mounts}
    assert options["/"] == "ro"
    assert options["/var/lib/broadside"] == "rw"


def test_coordinator_unit_starts_and_lists_the_fleet(machine: Machine) -> None:
    url = f"http://127.0.0.1:{API_PORT}"

    def fleet() -> set[str]:
        try:
            return {item["agent_id"] for item in call(url, "GET", "/v1/agents")}
        except httpx.TransportError:
            return set()

    wait_for("both agents in the coordinator's list", lambda: fleet() >= {"client", "server"})
    pid = machine.main_pid(COORDINATOR_UNIT)
    assert pid is not None
    reported = status(pid)
    assert (reported["Uid"].split()[0], reported["NoNewPrivs"], reported["Seccomp"]) == (
        "64987",
        "1",
        "2",
    )


def test_systemd_restarts_killed_agent(machine: Machine) -> None:
    wait_for("the presence", lambda: ready_presence(machine, "client"))
    before = agent_pid(machine)
    assert before is not None
    os.kill(before, signal.SIGKILL)

    def another() -> int | None:
        pid = agent_pid(machine)
        return pid if pid not in (None, before) else None

    after = wait_for("another process", another)
    wait_for("the sandbox", lambda: status(after)["NoNewPrivs"] == "1")


def test_stopped_agent_removes_its_presence(machine: Machine) -> None:
    wait_for("the presence", lambda: ready_presence(machine, "server"))
    pid = machine.main_pid(SERVER_UNIT)
    assert pid is not None
    # This is the same as `systemctl stop`, except that the unit is restarted immediately.
    os.kill(pid, signal.SIGTERM)
    wait_for("the removal of the presence", lambda: "server" not in presences(machine), 15)


# The notebook's engines and tunnels ---------------------------------------------------------------


# A busy core should be able to sustain this rate.
SLOW = ("traffic.options.requests_per_second=5",)


@pytest.mark.parametrize(
    ("name", "slow"), [("http-1mb", SLOW), ("https-1mb", SLOW), ("ftp-1-flow", ())]
)
def test_services_carry_traffic_in_the_sandbox(
    notebook: Machine, name: str, slow: tuple[str, ...]
) -> None:
    def served() -> bool:
        response = presences(notebook).get("server")
        return response is not None and {e.name for e in response.engines if e.ports} >= SERVICES

    wait_for("the client's presence", lambda: ready_presence(notebook, "client"))
    wait_for("the services", served)
    requested = (UNIT, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8090")
    wait_for("the coordinator's API", lambda: notebook.run(*requested).returncode == 0)
    # Allow for delays, because other tests will be using the CPU cores.
    settings = ["pairs_count=1", "burst_s=6", "period_s=20", "lead_s=12", "late_after_s=5", *slow]
    done = notebook.run(
        UNIT, *BROADSIDE, "launch", name, "--api", "http://127.0.0.1:8090", "-o", "json",
        *(part for setting in settings for part in ("--set", setting)),
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{notebook.log()}"


def test_agents_can_create_tunnels_in_the_sandbox(notebook: Machine) -> None:
    wait_for(
        "both agents",
        lambda: ready_presence(notebook, "client") and ready_presence(notebook, "server"),
    )
    assert all(presence.tunnels for presence in presences(notebook).values())
    reported = status(notebook.main_pid(UNIT) or 0)
    # The value is CAP_NET_ADMIN.
    assert int(reported["CapEff"], 16) == int(reported["CapBnd"], 16) == 1 << 12


def test_removes_tunnels_of_killed_agent_before_restart(notebook: Machine) -> None:
    wait_for("the client's presence", lambda: ready_presence(notebook, "client"))
    before = agent_pid(notebook)
    assert before is not None
    commands = (
        "ip link add bsx77 type vxlan id 77 local 127.0.0.1 dstport 4789 dev lo",
        "ip link set bsx77 alias broadside:client/client",
    )
    assert notebook.run(SERVER_UNIT, "sh", "-c", " && ".join(commands)).returncode == 0
    os.kill(before, signal.SIGKILL)

    def back() -> bool:
        return agent_pid(notebook) not in (None, before)

    def gone() -> bool:
        late = back()
        there = notebook.run(SERVER_UNIT, "ip", "link", "show", "bsx77").returncode == 0
        assert not (late and there), "the agent restarted before the tunnel was removed"
        return not there

    wait_for("the removal of the tunnel device", gone)
    wait_for("another process", back)


# The package --------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Azure:
    """Metadata service, Blob storage and results table, as far as fetch.py uses them.

    Attributes:
        bundle: Content of the bundle, or None if it is not uploaded.
        refusals: Remaining rejected requests, while the role is not yet active for storage.
        rows: Boot statuses in the order of arrival.
    """

    url: str = ""
    bundle: bytes | None = b""
    refusals: int = 0
    rows: list[dict[str, str]] = field(default_factory=list)

    def answer(self, request: Asked) -> Answer:
        if request.path == "/metadata/identity/oauth2/token":
            known = request.query["resource"] == ["https://storage.azure.com/"]
            right = request.headers["Metadata"] == "true" and known and request.query["client_id"]
            return Answer(status=200 if right else 400, body={"access_token": "secret"})
        signed = request.headers["Authorization"] == "Bearer secret"
        if not signed or not request.headers["x-ms-version"]:
            return Answer(status=401)
        if request.method == "PUT":
            row = json.loads(request.body)
            key = f"(PartitionKey='{row['PartitionKey']}',RowKey='{row['RowKey']}')"
            assert request.path == f"/results{key}"
            self.rows.append(json.loads(row["json"]))
            return Answer(status=204)
        if self.refusals:
            self.refusals -= 1
            return Answer(status=403, body=b"AuthorizationPermissionMismatch")
        if self.bundle is None:
            return Answer(status=404, body=b"BlobNotFound")
        return Answer(body=self.bundle)

    def stages(self) -> list[tuple[str, bool]]:
        """Return the published stages in order, together with whether they have an error."""
        return [(row["stage"], bool(row["error"])) for row in self.rows]


def packed(**files: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name.replace("_", "."))
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


@pytest.fixture
def azure() -> Iterator[Azure]:
    azure = Azure()
    with serving(azure.answer) as azure.url:
        yield azure


def fetch(
    tmp_path: Path, azure: Azure, sha256: str, healthy: str = "exit 0"
) -> "subprocess.CompletedProcess[str]":
    """Run the rendered fetch.py for this bundle."""
    config = boot.Boot(
        service="agent",
        environment={},
        bundle_url=f"{azure.url}/agent/bundle.tar.gz",
        bundle_sha256=sha256,
    )
    files = files_of(boot.render(FOLDER, config))
    for name in ("/usr/local/lib/broadside/fetch.py", "/etc/broadside/bundle.json"):
        (tmp_path / Path(name).name).write_text(files[name])
    command = tmp_path / "broadside"
    command.write_text(f"#!/bin/sh\n{healthy}\n")
    command.chmod(0o755)
    return subprocess.run(
        [sys.executable, str(tmp_path / "fetch.py"), str(tmp_path / "bundle.json")],
        env=os.environ
        | {
            "BROADSIDE_IMDS": azure.url,
            "BROADSIDE_BUNDLE_FOLDER": str(tmp_path / "cache"),
            "BROADSIDE_COMMAND": str(command),
            "BROADSIDE_HEALTHY_S": "0",
            "BROADSIDE_TABLES_ENDPOINT": azure.url,
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_fetches_verifies_and_installs_package_once(tmp_path: Path, azure: Azure) -> None:
    azure.bundle = packed(install_sh=f"echo $1 >> {tmp_path}/installed")
    sha256 = hashlib.sha256(azure.bundle).hexdigest()
    azure.refusals = 1
    assert fetch(tmp_path, azure, sha256).returncode == 1
    assert "Storage Blob Data Reader" in azure.rows[-1]["error"]
    done = fetch(tmp_path, azure, sha256)
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stderr
    assert fetch(tmp_path, azure, sha256).returncode == 0
    assert (tmp_path / "installed").read_text() == "agent\n"
    began = [("fetch", False), ("fetch", True)]
    installed = [("fetch", False), ("install", False), ("start", False), ("ready", False)]
    assert azure.stages() == [*began, *installed, ("start", False), ("ready", False)]


def test_installs_newer_package(tmp_path: Path, azure: Azure) -> None:
    for version in ("1", "2"):
        azure.bundle = packed(install_sh=f"echo {version} >> {tmp_path}/installed")
        done = fetch(tmp_path, azure, hashlib.sha256(azure.bundle).hexdigest())
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "installed").read_text() == "1\n2\n"


def test_runs_failed_installer_again(tmp_path: Path, azure: Azure) -> None:
    """Test that the installer runs again from a newly unpacked package."""
    script = f"test ! -e {tmp_path}/cache/bundle/left && touch {tmp_path}/cache/bundle/left"
    azure.bundle = packed(install_sh=f"{script}; echo no space left; exit 100")
    sha256 = hashlib.sha256(azure.bundle).hexdigest()
    for _ in range(2):
        done = fetch(tmp_path, azure, sha256)
        assert done.returncode == 1
        status = last_status(done.stderr)
        assert status is not None
        assert status["stage"] == "install"
        assert status["error"] == "install.sh ended with 100: no space left"
        assert azure.rows[-1]["error"] == status["error"]
    assert azure.stages().count(("install", True)) == 2


def test_vm_is_not_ready_if_service_is_unhealthy(tmp_path: Path, azure: Azure) -> None:
    azure.bundle = packed(install_sh="true")
    sha256 = hashlib.sha256(azure.bundle).hexdigest()
    done = fetch(tmp_path, azure, sha256, healthy="echo agent: no heartbeat >&2; exit 1")
    assert done.returncode == 1
    assert azure.stages()[-1] == ("start", True)
    assert azure.rows[-1]["error"] == "agent: no heartbeat"
    assert fetch(tmp_path, azure, sha256).returncode == 0
    assert azure.stages().count(("install", False)) == 1


def test_rejects_package_with_wrong_hash(tmp_path: Path, azure: Azure) -> None:
    azure.bundle = packed(install_sh=f"touch {tmp_path}/installed")
    done = fetch(tmp_path, azure, "0" * 64)
    assert done.returncode == 1
    assert "not 000" in azure.rows[-1]["error"]
    assert not (tmp_path / "installed").exists()


def test_missing_package_error_names_the_command(tmp_path: Path, azure: Azure) -> None:
    azure.bundle = None
    assert fetch(tmp_path, azure, "0" * 64).returncode == 1
    assert "404" in azure.rows[-1]["error"]
    assert "broadside up" in azure.rows[-1]["error"]


def test_prints_boot_status_if_table_rejects_it(tmp_path: Path, azure: Azure) -> None:
    azure.bundle = packed(install_sh="true")
    sha256 = hashlib.sha256(azure.bundle).hexdigest()
    with serving(lambda _: Answer(status=403)) as refusing:
        there, azure.url = azure.url, refusing
        failed = fetch(tmp_path, azure, sha256)
        azure.url = there
    assert failed.returncode == 1
    status = last_status(failed.stderr)
    assert status is not None
    assert (status["stage"], "403" in status["error"]) == ("fetch", True)
    assert azure.rows == []


# Terraform's own rendering ------------------------------------------------------------------------


def terraform_rendering(tmp_path: Path, config: boot.Boot) -> str:
    """Use Terraform to render the boot module, which does not need a provider."""
    folder = tmp_path / "boot"
    shutil.copytree(FOLDER, folder)
    variables: dict[str, Any] = {
        "service": config.service,
        "environment": config.environment,
        "capabilities": list(config.capabilities),
        "switches": config.switches,
        "bundle_url": config.bundle_url,
        "bundle_sha256": config.bundle_sha256,
        "identity_client_id": config.identity_client_id,
    }
    (folder / "terraform.tfvars.json").write_text(json.dumps(variables))
    return str(outputs(folder)["cloud_init"])


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
@pytest.mark.parametrize(
    "config",
    [
        agent("client"),
        agent("client", ("CAP_NET_ADMIN", "CAP_NET_RAW")),
        boot.Boot(service="coordinator", environment=FABRIC, switches='[x]\nrest = "a"\n'),
    ],
)
def test_terraform_rendering_equals_tested_rendering(tmp_path: Path, config: boot.Boot) -> None:
    assert terraform_rendering(tmp_path, config) == boot.render(FOLDER, config)


# The tools ----------------------------------------------------------------------------------------


def test_chronyd_accepts_the_clock_configuration() -> None:
    conf = (FOLDER / "files" / "chrony.conf").read_text()
    assert tools.chrony_parses(conf) == tools.Ran()
    assert tools.chrony_parses(conf.replace("makestep", "makestop")).faults


def test_systemd_detects_invalid_unit() -> None:
    unit = boot.render_unit(FOLDER, agent("client"))
    assert tools.systemd_verify(UNIT, unit) == tools.Ran()
    assert tools.systemd_verify(UNIT, unit.replace("ProtectSystem=", "ProtectSystems=")).faults
    for item in (agent("client"), agent("server"), COORDINATOR):
        text = tools.systemd_exposure(UNIT, boot.render_unit(FOLDER, item), EXPOSURE_MAX)
        assert text == tools.Ran(), item
    open_unit = unit.replace("ProtectSystem=strict", "").replace("User=broadside", "User=root")
    assert tools.systemd_exposure(UNIT, open_unit, EXPOSURE_MAX).faults


def test_cloud_init_detects_invalid_config() -> None:
    rendered = boot.render(FOLDER, agent("client"))
    assert tools.cloud_init_schema(rendered) == tools.Ran()
    assert tools.cloud_init_schema(rendered.replace("runcmd:", "runcmd: 3 #")).faults
