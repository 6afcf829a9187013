"""Test the Azure bundle on minimal VMs with real cloud-init, systemd, apt and pip of Debian 13.

Each VM boots from a Debian 13 root without internet and receives the custom data that Terraform
would render. Everything after that is automatic. cloud-init writes the files and enables the units,
``fetch.py`` downloads the package with a managed identity, ``install.sh`` installs it, and the
services start.

Differences to Azure: the kernel and its clock are those of this machine. cloud-init reads the
custom data from its seed folder instead of a virtual disc and does not configure the network.
Storage and Service Bus are stand-ins.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from broadside.coordinator.cli.range_checks import last_status
from tests.deploy_check import boot, tools
from tests.live.waiting import wait_for
from tests.shipped.conftest import AddRow
from tests.shipped.debian_roots import HOST_PACKAGES, TRIXIE, debian_root
from tests.shipped.systemd_hosts import MORTAL, Host, HostNetwork, check_machine

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

FOLDER: Final = tools.AZURE / "modules" / "boot"
# The additional packages are in Azure's Debian image.
IMAGE: Final = (*HOST_PACKAGES, "cloud-init", "openssh-server")
NAMES: Final = ("coordinator", "client", "server")
# All VMs reach the services at this address.
GATEWAY: Final = "10.77.1.1"
CLOCK: Final = "refclock PHC /dev/ptp_hyperv poll 3 dpoll -2 offset 0 stratum 2"
CLIENT_ID: Final = "22222222-2222-2222-2222-222222222222"
SEED: Final = "/var/lib/cloud/seed/nocloud"
SYSTEM: Final = "Debian 13, Python 3.13"
INSTALLER: Final = "broadside-install.service"
BROADSIDE: Final = "/opt/broadside/venv/bin/broadside"
INSTALL_S: Final = 300.0
# It replaces fq, which not every kernel of a test machine supports.
DISCIPLINE: Final = "pfifo"
RESERVED: Final = "/proc/sys/net/ipv4/ip_local_reserved_ports"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Process of ``azure_stand_ins``."""

    process: "subprocess.Popen[str]"
    addresses: Mapping[str, str]

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the services ended"
        return answer

    def rows(self, partition: str) -> dict[str, Any]:
        """Return the rows of the results table by row key."""
        return {
            key: json.loads(text) for key, text in json.loads(self.ask(f"rows {partition}")).items()
        }

    def environment(self) -> dict[str, str]:
        """Return the settings of `exchange_environment` with the addresses of the stand-ins."""
        authority = "/etc/broadside/authority.pem"
        return {
            "BROADSIDE_FABRIC": "azure",
            "BROADSIDE_SERVICEBUS_NAMESPACE": self.addresses["servicebus_namespace"],
            "BROADSIDE_SERVICEBUS_QUEUE": "jobs",
            "BROADSIDE_TABLES_ENDPOINT": self.addresses["tables"],
            "BROADSIDE_TABLES_CONTROL": "control",
            "BROADSIDE_TABLES_RESULTS": "results",
            "BROADSIDE_MANAGED_IDENTITY_CLIENT_ID": CLIENT_ID,
            "BROADSIDE_SERVICEBUS_ENDPOINT": self.addresses["servicebus_endpoint"],
            "BROADSIDE_SERVICEBUS_CA_FILE": authority,
            "BROADSIDE_TABLES_CA_FILE": authority,
            "SSL_CERT_FILE": authority,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Three VMs, the services that they use, and the package that they wait for."""

    network: HostNetwork
    services: Services
    hosts: Mapping[str, Host]
    package: Path

    def status(self, name: str) -> dict[str, str]:
        """Return the boot status of a VM, or an empty dict if there is none."""
        answer: dict[str, str] = self.services.rows("boot").get(name, {})
        return answer

    def wait_for_stage(self, name: str, stage: str, error: str = "") -> dict[str, str]:
        """Wait for a boot status with a matching error, or fail with the VM's journal."""

        def reached() -> dict[str, str] | None:
            result = self.status(name)
            is_it = result.get("stage") == stage and re.search(error, result["error"])
            return result if is_it else None

        try:
            result: dict[str, str] = wait_for(f"{name} {stage}", reached, INSTALL_S, pause_s=1)
        except AssertionError as late:
            journal = self.hosts[name].journal()[-6000:]
            raise AssertionError(f"{late}; now {self.status(name)}\n{journal}") from late
        return result


@pytest.fixture(scope="module")
def package(build_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Build the bundle like `make wheelhouse`."""

    def build(path: Path) -> None:
        argv = [sys.executable, "-m", "deploy.azure.wheelhouse", "--output", str(path)]
        subprocess.run(argv, check=True, timeout=600, cwd=tools.ROOT)

    return build_once("broadside-bundle.tar.gz", build)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[HostNetwork]:
    check_machine()
    with HostNetwork(tmp_path / "network", NAMES) as standing:
        yield standing


@pytest.fixture
def services(network: HostNetwork, tmp_path: Path) -> Iterator[Services]:
    module = (sys.executable, "-m", "tests.shipped.azure_stand_ins")
    argv = network.in_router(*MORTAL, *module, str(tmp_path / "services"), GATEWAY)
    with subprocess.Popen(
        argv, cwd=tools.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, "the services did not start"
        yield Services(process=process, addresses=json.loads(first))
        process.communicate(timeout=30)


@pytest.fixture
def range_(network: HostNetwork, services: Services, package: Path) -> Range:
    """Boot three VMs for the first time, before their package is uploaded."""
    sha256 = hashlib.sha256(package.read_bytes()).hexdigest()
    agent = {
        "BROADSIDE_AGENT_ALLOWED_NETWORKS": "10.77.0.0/16",
        "BROADSIDE_AGENT_HOST_ALONE": "true",
        "BROADSIDE_AGENT_LOG_JSON": "true",
    }
    settings = {
        "coordinator": ("coordinator", {}),
        "client": ("agent", {**agent, "BROADSIDE_AGENT_ROLE": "client"}),
        "server": (
            "agent",
            {
                **agent,
                "BROADSIDE_AGENT_ROLE": "server",
                "BROADSIDE_AGENT_PORTS": "5201",
                "BROADSIDE_AGENT_SERVICES": "http=8080 https=8443",
            },
        ),
    }
    hosts = {}
    for name, (service, local) in settings.items():
        rendered = boot.render(
            FOLDER,
            boot.Boot(
                service=service,
                environment=services.environment() | local,
                bundle_url=f"{services.addresses['container']}/{package.name}",
                bundle_sha256=sha256,
                identity_client_id=CLIENT_ID,
            ),
        )
        hosts[name] = first_boot(network, name, rendered, services.addresses["authority"])
    return Range(network=network, services=services, hosts=hosts, package=package)


def first_boot(network: HostNetwork, name: str, cloud_config: str, authority: str) -> Host:
    """Boot a VM that has its custom data and has never run cloud-init."""
    assert CLOCK in cloud_config
    cloud_config = cloud_config.replace(CLOCK, f"server {GATEWAY} iburst minpoll 0 maxpoll 1")
    assert "net.core.default_qdisc = fq\n" in cloud_config
    cloud_config = cloud_config.replace("_qdisc = fq\n", f"_qdisc = {DISCIPLINE}\n")
    # Without a seed cloud-init is not active.
    host = network.boot(name, debian_root(TRIXIE, IMAGE))
    host.put(f"{SEED}/user-data", cloud_config.encode())
    host.put(f"{SEED}/meta-data", f"instance-id: {name}\nlocal-hostname: {name}\n".encode())
    host.put(
        "/etc/cloud/cloud.cfg.d/90-test.cfg",
        b"datasource_list: [NoCloud]\nnetwork: {config: disabled}\n",
    )
    host.put("/etc/broadside/authority.pem", authority.encode())
    # A veth has no hardware device, and /sys is read-only here.
    host.put("/etc/net-class/eth0/device/vendor", b"")
    host.put(
        "/etc/systemd/system/broadside-host.service.d/test.conf",
        b"[Service]\nEnvironment=BROADSIDE_NET_CLASS=/etc/net-class\n",
    )
    host.stop()
    host.boot()
    return host


def test_vms_install_themselves_and_run_a_burst(range_: Range, shipped_row: AddRow) -> None:
    client, server = range_.hosts["client"], range_.hosts["server"]
    cloud_init_ran(range_)
    shipped_row("Azure bundle", SYSTEM, "cloud-init with the rendered custom data, three VMs")

    # The package is late. One VM is restarted when it has no agent, like an operator would do.
    for name in NAMES:
        range_.wait_for_stage(name, "fetch", "404.*not uploaded yet")
    before = range_.status("client")
    client.stop()
    client.boot()
    wait_for("another attempt", lambda: range_.status("client").get("at") != before["at"], 60)
    again = range_.wait_for_stage("client", "fetch", "404")
    console = client.journal(INSTALLER)
    assert last_status(console) is not None
    assert last_status(console)["stage"] == "fetch"  # type: ignore[index]
    assert again["error"].startswith(f"{range_.services.addresses['container']}/")
    shipped_row("Azure bundle", SYSTEM, "package late, VM restarted before it came")

    # The package is available. Two installers are killed when they run dpkg and pip.
    range_.services.ask(f"upload {range_.package}")
    kill_installer(client, "pgrep -x dpkg && test -e /usr/bin/iperf3")
    kill_installer(server, "test -e /opt/broadside/venv/bin/python")
    for name in NAMES:
        ready = range_.wait_for_stage(name, "ready")
        assert ready["error"] == ""
    shipped_row("Azure bundle", SYSTEM, "install.sh for 3 VMs, killed in dpkg and in pip, ready")

    check_heartbeats(range_)
    check_host_settings(range_)
    fire_a_burst(range_)
    shipped_row("Azure bundle", SYSTEM, "heartbeats with NIC, MTU, host; host settings; one burst")

    # Installed parts should not be installed again. If a VM is restarted, it should become ready.
    before = range_.status("server")
    made = server.run("stat -c %Y /opt/broadside/venv/pyvenv.cfg").stdout
    server.stop()
    server.boot()
    wait_for("its next status", lambda: range_.status("server")["at"] != before["at"], 60)
    range_.wait_for_stage("server", "ready")
    assert server.run("stat -c %Y /opt/broadside/venv/pyvenv.cfg").stdout == made
    assert server.run(f"cat {RESERVED}").stdout == "65330\n"
    shipped_row("Azure bundle", SYSTEM, "restart of an installed VM")


def cloud_init_ran(range_: Range) -> None:
    """Verify that cloud-init accepted the custom data without errors and wrote all files."""
    for host in range_.hosts.values():
        document = json.loads(host.run("cloud-init status --wait --format json || true").stdout)
        assert document["errors"] == [], document
        assert document["status"] == "done", document
        assert not document["recoverable_errors"], document
        units = "broadside-host.service broadside-install.service"
        assert host.run(f"systemctl is-enabled {units}").stdout == "enabled\nenabled\n"
        assert host.run("stat -c '%a %U' /usr/local/lib/broadside/fetch.py").stdout == "755 root\n"
        written = host.run("ls /etc/systemd/system/broadside-*.service").stdout.split()
        assert len(written) == 3
        # The check uses the systemd of Debian 13. The program of the service is not installed yet.
        stdout = host.run(f"systemd-analyze verify {' '.join(written)} 2>&1 || true").stdout
        assert not [line for line in stdout.splitlines() if "is not executable" not in line], stdout


def kill_installer(host: Host, moment: str) -> None:
    """Kill the installer and its child processes when the shell command ``moment`` succeeds."""

    def is_now() -> bool:
        return host.run(moment, check=False).returncode == 0

    try:
        wait_for(f"{host.name}: {moment}", is_now, INSTALL_S)
    except AssertionError as late:
        raise AssertionError(f"{late}\n{host.journal(INSTALLER)[-4000:]}") from late
    starts_count = installer_starts(host)
    host.run(f"systemctl kill --kill-whom=all --signal=KILL {INSTALLER}")
    wait_for(f"{host.name}: the next attempt", lambda: installer_starts(host) > starts_count)
    assert '"ready"' not in host.journal(INSTALLER)


def installer_starts(host: Host) -> int:
    """Return how often systemd has restarted the installer since the boot."""
    return int(host.run(f"systemctl show -P NRestarts {INSTALLER}").stdout)


def check_heartbeats(range_: Range) -> None:
    """Verify that both agents read their interface, its MTU and the host data in their sandbox."""
    text = range_.hosts["coordinator"].run(
        f"{BROADSIDE} agents -o json --api http://127.0.0.1:8080"
    )
    agents = {load["agent_id"]: load for load in json.loads(text.stdout)}
    assert agents.keys() == {"client", "server"}
    for name, reported in agents.items():
        journal = range_.hosts[name].journal("broadside-agent.service")[-3000:]
        assert reported["problem"] is None, reported
        assert (reported["nic"], reported["nic_mtu_bytes"]) == ("eth0", 1500), journal
        assert reported["address"] == range_.network.address(name)
        assert reported["passport"]["nic_driver"] == "veth"
        sysctls = reported["passport"]["sysctls"]
        assert sysctls["net.ipv4.ip_local_port_range"].split() == ["10000", "65535"], sysctls
        assert reported["clock"]["source"] == "chrony" and reported["clock"]["synchronised"], (
            reported
        )
    assert agents["client"]["gate"]
    assert agents["server"]["ports"] == [5201]


def check_host_settings(range_: Range) -> None:
    """Verify the reserved port of Azure and the pacing of each interface queue."""
    for host in range_.hosts.values():
        host.wait_for_unit("broadside-host.service")
        assert host.run(f"cat {RESERVED}").stdout == "65330\n"
        root, *queues = host.run("tc qdisc show dev eth0").stdout.splitlines()
        assert root.startswith("qdisc mq 1: root")
        assert len(queues) == int(host.run("ls -d /sys/class/net/eth0/queues/tx-* | wc -l").stdout)
        assert all(queue.startswith(f"qdisc {DISCIPLINE} ") for queue in queues), queues


def fire_a_burst(range_: Range) -> None:
    """Launch one pair of iperf3 for three seconds over the API of the coordinator's VM."""
    coordinator = range_.hosts["coordinator"]
    settings = ("pairs_count=1", "burst_s=3", "lead_s=12", "late_after_s=5")
    text = " ".join(f"--set {setting}" for setting in settings)
    done = coordinator.run(
        f"{BROADSIDE} launch smoke {text} --api http://127.0.0.1:8080 -o json", check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{coordinator.journal()[-3000:]}"
    assert range_.network.counted_bytes("client", "rx") > 1_000_000
