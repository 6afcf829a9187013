"""Test that deploy/hosts/ansible installs the hosts archive, and a second run changes nothing."""

import importlib.util
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.shipped.conftest import AddRow
from tests.shipped.debian_roots import BOOKWORM, ROOT, debian_root
from tests.shipped.systemd_hosts import Host, HostNetwork

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

# The compiled parts are for Python 3.11 of this checkout, so the hosts run Debian 12.
ANSIBLE: Final = ("ansible", "resolvelib", "jinja2", "markupsafe", "yaml", "_yaml", "packaging")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, Host]]:
    """Run a coordinator and a client."""
    names = ("coordinator", "client")
    with HostNetwork(tmp_path / "network", names) as network:
        yield {name: network.boot(name, debian_root(BOOKWORM)) for name in names}


def play(host: Host, *words: str) -> dict[str, int]:
    """Run the playbook on the host itself, and return Ansible's statistics."""
    settings = (
        {"BROADSIDE_LOG_LEVEL": "INFO"}
        if host.name == "coordinator"
        else {"BROADSIDE_AGENT_AGENT_ID": "far"}
    )
    inventory = {
        "all": {
            "vars": {
                "ansible_connection": "local",
                "ansible_python_interpreter": "/usr/bin/python3",
                "ansible_become": False,
                "broadside_coordinator": "https://coordinator:8443",
                "broadside_archive": "/root/broadside-hosts.tar.gz",
                "broadside_settings": settings,
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
    host.put("/root/inventory.yml", json.dumps(inventory).encode())
    playbook = "python3 -c 'from ansible.cli.playbook import main; main()'"
    done = host.run(
        "export LC_ALL=C.UTF-8 PYTHONPATH=$HOME/site ANSIBLE_PIPELINING=1; cd ansible;"
        f" {playbook} -i ../inventory.yml --limit {host.name} broadside.yml {' '.join(words)}",
        timeout_s=400,
    )
    match = re.search(rf"^{host.name} .*", done.stdout, re.M)
    assert match, done.stdout
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", match[0])}


def test_second_ansible_run_changes_nothing(
    hosts: dict[str, Host], hosts_archive: Path, shipped_row: AddRow
) -> None:
    pytest.importorskip("ansible")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as bundle:
        for name in ANSIBLE:
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None
            package = Path(spec.origin).parent
            bundle.add(package, f"site/{name}")
        # Ansible reads the versions of these packages.
        for known in package.parent.glob("*.dist-info"):
            bundle.add(known, f"site/{known.name}")
        bundle.add(ROOT / "deploy" / "hosts" / "ansible", "ansible")
    for host in hosts.values():
        host.put("/root/ansible.tar", packed.getvalue())
        host.put("/root/broadside-hosts.tar.gz", hosts_archive.read_bytes())
        host.run("tar -xf ansible.tar")
    coordinator, client = hosts["coordinator"], hosts["client"]

    assert play(coordinator, "--check")["failed"] == 0
    assert not coordinator.path("/opt/broadside/venv").exists(), "a check changes nothing"
    assert play(coordinator)["changed"] > 0
    assert play(coordinator)["changed"] == 0

    code = coordinator.run("broadside enroll new --role client").stdout.strip()
    assert play(client, "-e", f"broadside_join_code={code}")["changed"] > 0
    assert play(client)["changed"] == 0
    listed = coordinator.run("broadside enroll list -o json").stdout
    assert [agent["agent_id"] for agent in json.loads(listed)] == ["far"]
    shipped_row("Ansible role", "Debian 12, Python 3.11.2", "check, install and again, twice")
