"""docs/hosts.md word for word: two hosts and a coordinator, from the archive to a verdict; and the
same archive by Ansible.

Each host has mounts, processes, a systemd and a network of its own. Its blocks of commands are run
as they stand; a block's second word says on which host. What the reader does between them (carrying
a file from host to host, naming the coordinator, exporting the firewall's counter) is done here.
"""

import contextlib
import csv
import importlib.util
import io
import itertools
import json
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from broadside.lab.site import built
from broadside.lab.topology import Lab, LabSpec, management_name
from deploy.hosts.archive import build
from tests.live.labs import new_prefix
from tests.live.live_site import ROOT
from tests.live.machine import HOME, Machine, system_python, why_not
from tests.live.waiting import wait_for

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs_root,
    pytest.mark.timeout(900),
]

BLOCK: Final = re.compile(r"^```sh (coordinator|client|server)\n(.*?)^```", re.M | re.S)


def blocks() -> list[tuple[str, str]]:
    """Of the whole page: the host, and what is typed there."""
    text = (ROOT / "docs" / "hosts.md").read_text()
    return [(found[1], found[2]) for found in BLOCK.finditer(text)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    version = subprocess.run(
        [system_python(), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    path = tmp_path_factory.mktemp("archive") / "broadside-hosts.tar.gz"
    build(path, [version])
    return path


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=20, capture_output=True)


def part_from_each_other(lab: Lab, coordinator: str) -> None:
    """Give the coordinator the management network's end, and let hosts reach it alone there."""
    switch = management_name(lab.spec.prefix)
    _ip("netns", "add", coordinator)
    _ip("link", "set", switch, "netns", coordinator)
    _ip("-n", coordinator, "link", "set", "lo", "up")
    _ip("-n", coordinator, "link", "set", switch, "up")
    _ip("-n", coordinator, "addr", "add", f"{lab.management_address}/22", "dev", switch)
    for host in lab.hosts:
        found = ["ip", "netns", "exec", switch, "bridge", "link", "set", "dev", host.name]
        subprocess.run([*found, "isolated", "on"], check=True, timeout=20)


def told_by_the_firewall(lab: Lab, path: Path, ended: threading.Event) -> None:
    """What a site's own export of the firewall's counter writes: bytes of each second."""
    assert lab.ledger_path is not None
    while not ended.wait(1.0):
        with lab.ledger_path.open() as file:
            read = [(row["at_s"], row["up_bytes"]) for row in csv.DictReader(file)][:-1]
        at = [(round(float(at_s)), int(up)) for at_s, up in read]
        lines = ["time,bytes"]
        for (start_s, before), (_, after) in itertools.pairwise(at):
            lines.append(f"{start_s},{after - before}")
        new = path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.chmod(0o644)
        new.replace(path)


@pytest.fixture
def hosts(tmp_path: Path, archive: Path) -> Iterator[tuple[Lab, dict[str, Machine]]]:
    if reason := why_not():
        pytest.skip(reason)
    spec = LabSpec(pairs_count=1, prefix=new_prefix(), firewall_bits_per_second=200_000_000)
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(built(spec, tmp_path / "lab"))
        own = f"{spec.prefix}coord"
        gone = ["ip", "netns", "del", own]  # the lab may have taken it along
        stack.callback(subprocess.run, gone, check=False, timeout=20, capture_output=True)
        part_from_each_other(lab, own)
        networks: dict[str, str | None] = {"coordinator": own}
        networks |= {"client": lab.clients[0].namespace, "server": lab.servers[0].namespace}
        machines = {}
        for name, network in networks.items():
            folder = tmp_path / name
            folder.mkdir()
            machine = Machine(folder, None, {}, [], network=network)
            machines[name] = stack.enter_context(machine)
            wait_for(f"{name}'s systemd", machine.is_up)
            machine.put(f"{HOME}/broadside-hosts.tar.gz", archive.read_bytes())
            names = f"127.0.0.1 localhost\n{lab.management_address} coordinator\n"
            machine.put("/etc/hosts", names.encode())
            machine.put("/etc/hostname", f"{name}\n".encode())
            assert machine.shell(f"hostname {name}").returncode == 0
        yield lab, machines
    for machine in machines.values():
        assert not machine.remains()


def test_from_the_archive_to_a_verdict(hosts: tuple[Lab, dict[str, Machine]]) -> None:
    lab, machines = hosts
    client, coordinator = machines["client"], machines["coordinator"]
    other = lab.servers[0].management_address
    assert reached(client, str(lab.management_address)), "there is a way to the coordinator"
    assert not reached(client, str(other)), "and none to another agent beside the firewall's"

    said: list[str] = []
    ended = threading.Event()
    export = threading.Thread(
        target=told_by_the_firewall, args=(lab, coordinator.state / "firewall.csv", ended)
    )
    export.start()
    try:
        for host, script in blocks():
            if "broadside launch" in script:  # what the page says to look for before
                wait_for("both agents, with good clocks", lambda: ready(coordinator))
            done = machines[host].shell(script, timeout_s=400)
            said.append(f"--- {host}\n{script}{done.stdout}{done.stderr}")
            expected = (0, 1, 2) if "broadside launch" in script else (0,)  # a verdict, whichever
            assert done.returncode in expected, "\n".join([*said, machines[host].log()[-4000:]])
            for role in ("client", "server"):
                if f">{role}.code" in script:
                    code = coordinator.shell(f"cat {role}.code").stdout
                    machines[role].put(f"{HOME}/{role}.code", code.encode())
    finally:
        ended.set()
        export.join()
    told = "\n".join(said)
    shown = coordinator.shell("broadside verdict last --json --api http://127.0.0.1:8080")
    verdict = json.loads(shown.stdout)
    sys.stdout.write(told)
    assert verdict["pairs_measured"] == 1, told
    assert verdict["verdict"] in ("pass", "fail", "inconclusive"), told
    assert client.shell("stat -c %a /var/lib/broadside/credential.json").stdout == "600\n"
    assert "JOIN" not in client.shell("cat /etc/broadside/environment").stdout
    version = client.shell("/opt/broadside/iperf3/bin/iperf3 --version").stdout
    assert (found := re.match(r"iperf 3\.(\d+)", version)) and int(found[1]) >= 18


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """A coordinator and a client that have nothing but each other."""
    if reason := why_not():
        pytest.skip(reason)
    network = f"{new_prefix()}lo"
    _ip("netns", "add", network)
    try:
        _ip("-n", network, "link", "set", "lo", "up")
        with contextlib.ExitStack() as stack:
            machines = {}
            for name in ("coordinator", "client"):
                folder = tmp_path / name
                folder.mkdir()
                machines[name] = Machine(folder, None, {}, [], network=network)
                stack.enter_context(machines[name])
            for name, machine in machines.items():
                wait_for(f"{name}'s systemd", machine.is_up)
            yield machines
    finally:
        _ip("netns", "del", network)


ANSIBLE: Final = ("ansible", "resolvelib", "jinja2", "markupsafe", "yaml", "_yaml", "packaging")


def play(machine: Machine, role: str, *words: str) -> dict[str, int]:
    """The playbook on a host itself, and its own account of what it did."""
    hosts = {
        "all": {
            "vars": {
                "ansible_connection": "local",
                "ansible_python_interpreter": "/usr/bin/python3",
                "ansible_become": False,
                "broadside_coordinator": "https://127.0.0.1:8443",
                "broadside_archive": f"{HOME}/broadside-hosts.tar.gz",
                "broadside_settings": {"BROADSIDE_LOG_LEVEL": "INFO"}
                if role == "coordinator"
                else {"BROADSIDE_AGENT_AGENT_ID": "far", "BROADSIDE_AGENT_ADDRESS": "127.0.0.1"},
            },
            "children": {
                "broadside_coordinator_host": {
                    "hosts": {"coordinator": {"broadside_service": "coordinator"}}
                },
                "broadside_clients": {"hosts": {"client": {"broadside_role": "client"}}},
                "broadside_servers": {"hosts": {}},
            },
        }
    }
    machine.put(f"{HOME}/inventory.yml", json.dumps(hosts).encode())
    playbook = "python3 -c 'from ansible.cli.playbook import main; main()'"
    done = machine.shell(
        "export LC_ALL=C.UTF-8 PYTHONPATH=$HOME/site ANSIBLE_PIPELINING=1; cd ansible;"
        f" {playbook} -i ../inventory.yml --limit {role} broadside.yml {' '.join(words)}",
        timeout_s=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(rf"^{role} .*", done.stdout, re.M)
    assert told, done.stdout
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", told[0])}


def test_ansible_installs_once_and_changes_nothing_again(
    alone: dict[str, Machine], archive: Path
) -> None:
    pytest.importorskip("ansible")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as bundle:
        for name in ANSIBLE:
            found = importlib.util.find_spec(name)
            assert found is not None and found.origin is not None
            bundle.add(Path(found.origin).parent, f"site/{name}")
        bundle.add(ROOT / "deploy" / "hosts" / "ansible", "ansible")
    for machine in alone.values():
        machine.put(f"{HOME}/ansible.tar", packed.getvalue())
        machine.put(f"{HOME}/broadside-hosts.tar.gz", archive.read_bytes())
        assert machine.shell("tar -xf ansible.tar").returncode == 0
    coordinator, client = alone["coordinator"], alone["client"]

    assert play(coordinator, "coordinator", "--check")["failed"] == 0
    assert coordinator.shell("test -e /opt/broadside/venv").returncode, "a check changes nothing"
    assert play(coordinator, "coordinator")["changed"] > 0
    assert play(coordinator, "coordinator")["changed"] == 0

    code = coordinator.shell("broadside enroll new --role client").stdout.strip()
    assert play(client, "client", "-e", f"broadside_join_code={code}")["changed"] > 0
    assert play(client, "client")["changed"] == 0
    listed = coordinator.shell("broadside enroll list --json").stdout
    assert [agent["agent_id"] for agent in json.loads(listed)] == ["far"]


def reached(host: Machine, address: str) -> bool:
    """Whether somebody at an address answers, if only that nobody listens."""
    asked = f"import socket, sys; s = socket.socket(); s.settimeout(3); c = ('{address}', 9); "
    return host.shell(f'python3 -c "{asked}sys.exit(s.connect_ex(c) != 111)"').returncode == 0


def ready(coordinator: Machine) -> bool:
    asked = coordinator.shell("broadside agents --json --api http://127.0.0.1:8080")
    if asked.returncode:
        return False
    agents = json.loads(asked.stdout)
    return len(agents) == 2 and all(agent["problem"] is None for agent in agents)
