"""What the security groups let through, as Terraform itself works it out of ``security.tf``."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.check.tools import AZURE

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed"),
]

NETWORK = AZURE / "modules" / "network"
CLIENTS, SERVERS = "10.71.0.0/21", "10.72.0.0/21"
GIVEN = {
    "name": "broadside", "resource_group_name": "broadside", "location": "eastus", "tags": {},
    "hub_cidr": "10.70.0.0/16", "clients_cidr": "10.71.0.0/16", "servers_cidr": "10.72.0.0/16",
    "bypass": False, "firewall_tier": "Premium", "private_endpoints": False,
    "tcp_ports": ["5201"], "udp_ports": ["5201"], "icmp_enabled": True, "vxlan_port": None,
}  # fmt: skip


def passing(folder: Path, **given: Any) -> set[tuple[str, str, str, str, str]]:
    """Group, direction, protocol, from, to of every rule; locals alone need no provider."""
    text = "\n".join((NETWORK / name).read_text() for name in ("security.tf", "main.tf"))
    blocks = re.findall(r"^locals \{.*?^\}", text, re.M | re.S)
    shutil.copy(NETWORK / "variables.tf", folder)
    (folder / "main.tf").write_text("\n".join([*blocks, "output rules {\n value = local.rules\n}"]))
    (folder / "terraform.tfvars.json").write_text(json.dumps(GIVEN | given))
    quiet = os.environ | {"CHECKPOINT_DISABLE": "1", "TF_CLI_CONFIG_FILE": os.devnull}
    for command in (["init", "-input=false"], ["apply", "-auto-approve", "-input=false"]):
        subprocess.run(
            ["terraform", *command], cwd=folder, env=quiet, check=True, capture_output=True
        )
    told = subprocess.run(
        ["terraform", "output", "-json", "rules"],
        cwd=folder, env=quiet, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return {
        (rule["group"], rule["direction"], f"{rule['protocol']} {port}", rule["from"], rule["to"])
        for rule in json.loads(told.stdout).values()
        for port in rule["ports"]
    }


def test_tunnels_pass_from_either_end(tmp_path: Path) -> None:
    vxlan = {rule for rule in passing(tmp_path, vxlan_port=4789) if rule[2] == "Udp 4789"}
    assert vxlan == {
        ("clients", "Outbound", "Udp 4789", CLIENTS, SERVERS),
        ("servers", "Inbound", "Udp 4789", CLIENTS, SERVERS),
        ("servers", "Outbound", "Udp 4789", SERVERS, CLIENTS),
        ("clients", "Inbound", "Udp 4789", SERVERS, CLIENTS),
    }


def test_without_tunnels_servers_begin_nothing_towards_clients(tmp_path: Path) -> None:
    assert not {rule for rule in passing(tmp_path) if rule[4] == CLIENTS}
