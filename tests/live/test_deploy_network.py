"""Test security rules and agent settings, using Terraform to compute them from the locals."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from broadside.agent.agent_settings import AgentSettings
from broadside.exchange.engines.ftp import PASSIVE_PORTS
from tests.deploy_check import hcl
from tests.deploy_check.tools import AZURE
from tests.live.terraform_outputs import outputs

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed"),
]

NETWORK = AZURE / "modules" / "network"
CLIENTS, SERVERS = "10.71.0.0/21", "10.72.0.0/21"
OF_THE_NETWORK = {
    "context": {"names": {}, "group_name": "broadside", "location": "eastus", "tags": {}},
    "cidrs": {"hub": "10.70.0.0/16", "clients": "10.71.0.0/16", "servers": "10.72.0.0/16"},
    "bypass": False, "firewall_tier": "Premium", "private_endpoints": False,
    "existing_subnet_ids": {}, "translated_enabled": False, "flow_logs": False,
}  # fmt: skip
OF_AN_OPERATOR = {
    "subscription_id": "00000000-0000-0000-0000-000000000000",
    "operator_addresses": ["203.0.113.7"],
    "budget_emails": ["operator@example.com"],
    "ssh_public_key": "ssh-ed25519 x",
    "bundle_path": str(AZURE / "tests" / "bundle.txt"),
}
EXAMPLES = sorted(path.name for path in (AZURE / "examples").glob("*.tfvars"))


def evaluate(folder: Path, locals_: str, wanted: str, given: Mapping[str, Any]) -> Any:
    """Return the value of an expression of locals and variables that need no provider."""
    (folder / "main.tf").write_text(f"{locals_}\noutput result {{\n value = {wanted}\n}}")
    (folder / "terraform.tfvars.json").write_text(json.dumps(given))
    return outputs(folder)["result"]


def allowed_rules(
    folder: Path, vxlan_port: int | None = None
) -> set[tuple[str, str, str, str, str]]:
    """Return group, direction, protocol, source and destination of all security rules."""
    text = "\n".join((NETWORK / name).read_text() for name in ("security.tf", "main.tf"))
    blocks = re.findall(r"^locals \{.*?^\}", text, re.M | re.S)
    shutil.copy(NETWORK / "variables.tf", folder)
    # There are no existing subnets.
    blocks.append("locals {\n existing = {}\n}")
    ports: dict[str, Any] = {"tcp_ports": ["5201"], "udp_ports": ["5201"], "icmp_enabled": True}
    ports |= {"forbidden_ports": ["5199"]}
    given = OF_THE_NETWORK | {"traffic": ports | {"vxlan_port": vxlan_port}}
    rules = evaluate(folder, "\n".join(blocks), "local.rules", given)
    return {
        (rule["group"], rule["direction"], f"{rule['protocol']} {port}", rule["from"], rule["to"])
        for rule in rules.values()
        for port in rule["ports"]
    }


def traffic(folder: Path, **given: Any) -> Any:
    """Return the locals of ``traffic.tf``. The validations of the root module will apply."""
    for path in (*AZURE.glob("variables*.tf"), AZURE / "clouds.tf"):
        shutil.copy(path, folder)
    names = ("tcp_ports", "udp_ports", "services", "capabilities")
    wanted = "{" + ", ".join(f"{name} = local.{name}" for name in names) + "}"
    return evaluate(folder, (AZURE / "traffic.tf").read_text(), wanted, OF_AN_OPERATOR | given)


def test_tunnels_are_allowed_in_both_directions(tmp_path: Path) -> None:
    vxlan = {rule for rule in allowed_rules(tmp_path, vxlan_port=4789) if rule[2] == "Udp 4789"}
    assert vxlan == {
        ("clients", "Outbound", "Udp 4789", CLIENTS, SERVERS),
        ("servers", "Inbound", "Udp 4789", CLIENTS, SERVERS),
        ("servers", "Outbound", "Udp 4789", SERVERS, CLIENTS),
        ("clients", "Inbound", "Udp 4789", SERVERS, CLIENTS),
    }


def test_without_tunnels_servers_cannot_connect_to_clients(tmp_path: Path) -> None:
    assert not {rule for rule in allowed_rules(tmp_path) if rule[4] == CLIENTS}


def test_default_rules_allow_iperf3_and_probes(tmp_path: Path) -> None:
    echo_port = AgentSettings.model_fields["echo_port"].default
    assert traffic(tmp_path) == {
        "tcp_ports": ["5201"],
        "udp_ports": ["5201", str(echo_port)],
        "services": "",
        "capabilities": [],
    }


def test_only_security_groups_allow_the_forbidden_port_of_canaries(tmp_path: Path) -> None:
    assert "5198" in traffic(tmp_path, canary_ports=[5198, 5199])["tcp_ports"]
    assert "5199" not in traffic(tmp_path, canary_ports=[5198, 5199])["tcp_ports"]
    assert "5198" in traffic(tmp_path, canary_ports=[5198, 5199])["udp_ports"]
    assert "5199" not in traffic(tmp_path, canary_ports=[5198, 5199])["udp_ports"]
    (tmp_path / "rules").mkdir()
    forbidden = {rule for rule in allowed_rules(tmp_path / "rules") if rule[2] == "Tcp 5199"}
    assert forbidden == {
        ("clients", "Outbound", "Tcp 5199", CLIENTS, SERVERS),
        ("servers", "Inbound", "Tcp 5199", CLIENTS, SERVERS),
    }


def test_notebook_services_have_ports_and_capabilities(tmp_path: Path) -> None:
    path = AZURE / "examples" / "notebook.tfvars"
    reported = traffic(tmp_path, **hcl.read_values(path.read_text(), path.name))
    first, last = PASSIVE_PORTS
    assert set(reported["tcp_ports"]) == {"5201", "8080", "8443", "2121", f"{first}-{last}"}
    settings = AgentSettings.model_validate({"role": "server", "services": reported["services"]})
    assert settings.services == {"http": (8080,), "https": (8443,), "ftp": (2121,)}
    assert reported["capabilities"] == ["CAP_NET_ADMIN"]


HALF_OF_THE_SUBNETS = {
    "clients": "/subscriptions/0/resourceGroups/x/providers/Microsoft.Network"
    "/virtualNetworks/x/subnets/x"
}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"service_ports": {"http": [5201]}}, "a port is used twice"),
    ({"service_ports": {"smtp": [2525]}}, "engines are http, https, ftp"),
    ({"agent_settings": {"BROADSIDE_AGENT_SERVICES": "http=8080"}}, "set endpoint_ports, serv"),
    ({"agent_settings": {"BROADSIDE_AGENT_NIC": 'eth0"; rm'}}, "agent_settings: names begin"),
    ({"canary_ports": [5198]}, "canary_ports: must be two"),
    ({"vxlan_port": 99999}, "vxlan_port: must be"),
    ({"extra_tcp_ports": ["*"]}, "extra_tcp_ports: must be"),
    ({"firewall_tier": "Gold"}, "firewall_tier: must be Basic"),
    ({"firewall_tier": "Standard", "idps_mode": "Deny"}, "idps_mode: only a Premium"),
    (
        {"firewall_tier": "Standard", "firewall_switch_enabled": True},
        "switch_enabled: only for a Pre",
    ),
    ({"vm_size": "Standard_X1"}, "vm_size: not in vm_bits_per_second"),
    ({"admin_user_name": "operator"}, "admin_user_name: must be"),
    ({"fleet_zones": ["1", "2"], "proximity_placement": True}, "proximity_placement: a placement"),
    ({"budget_emails": []}, "budget_emails: at least one"),
    ({"appliance": "nva"}, "nva: set it when"),
    ({"appliance": "existing-firewall"}, "existing_firewall_id: set it when"),
    ({"may_change": ["rules"]}, "may_change: only with"),
    ({"existing_subnet_ids": HALF_OF_THE_SUBNETS}, "existing_subnet_ids: give both"),
    ({"hub_cidr": "10.64.0.0/12"}, "servers_cidr: hub_cidr, clients_cidr"),
    ({"location": "West Europe"}, "location: must be the region's short"),
    ({"cloud": "usgovernment"}, "location: not a region of this cloud"),
    ({"operator_addresses": []}, "operator_addresses: must hold"),
]


@pytest.mark.parametrize(("given", "expected"), MISTAKES)
def test_rejects_invalid_variables(tmp_path: Path, given: Mapping[str, Any], expected: str) -> None:
    with pytest.raises(AssertionError, match=expected):
        traffic(tmp_path, **given)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_valid(tmp_path: Path, name: str) -> None:
    traffic(tmp_path, **hcl.read_values((AZURE / "examples" / name).read_text(), name))
