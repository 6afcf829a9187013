"""Tests for rules of Azure Firewall, and for appliances behind a load balancer."""

from ipaddress import IPv4Network
from typing import Any

import pytest

from broadside.coordinator.azure_range.appliances import forward
from broadside.coordinator.azure_range.routing import RoutedFlow
from broadside.coordinator.azure_range.trace import Stop, Trace
from tests.unit.coordinator.azure_range.stored import Store, one, range_with

CLIENTS, SERVERS = IPv4Network("10.71.0.0/21"), IPv4Network("10.72.0.0/21")
HTTPS = RoutedFlow(protocol="tcp", source=CLIENTS, target=SERVERS, ports=(443, 443))
FIREWALL, BALANCER = "10.70.0.4", "10.70.1.68"


def network_rule(action: str, priority: int, ports: str = "443") -> dict[str, Any]:
    rule = {
        "ruleType": "NetworkRule", "name": f"{action}-{priority}", "ipProtocols": ["TCP"],
        "sourceAddresses": ["10.71.0.0/16"], "destinationAddresses": ["10.72.0.0/16"],
        "destinationPorts": [ports],
    }  # fmt: skip
    return {"priority": priority, "action": {"type": action}, "rules": [rule]}


def application_rule(name: str) -> dict[str, Any]:
    rule = {
        "ruleType": "ApplicationRule", "name": "web", "sourceAddresses": ["*"],
        "targetFqdns": [name], "protocols": [{"protocolType": "Https", "port": 443}],
    }  # fmt: skip
    return {"priority": 90, "action": {"type": "Allow"}, "rules": [rule]}


def passed(
    collections: list[dict[str, Any]], flow: RoutedFlow = HTTPS
) -> tuple[RoutedFlow | None, str]:
    """Return the flow after the firewall, or None, and the text of the last hop."""

    def change(store: Store) -> None:
        group = one(store, "/rulecollectiongroups/traffic")
        group["properties"]["ruleCollections"] = collections

    trace = Trace(resources=range_with("notebook", change))
    try:
        return forward(trace, FIREWALL, flow), trace.hops[-1].text
    except Stop:
        return None, trace.hops[-1].text


def test_collections_are_read_by_priority() -> None:
    assert passed([network_rule("Allow", 200), network_rule("Deny", 100)])[0] is None
    out, text = passed([network_rule("Deny", 200), network_rule("Allow", 100)])
    assert out == HTTPS
    assert "Allow-100" in text


def test_without_a_rule_traffic_is_denied() -> None:
    out, text = passed([network_rule("Allow", 100, "80")])
    assert out is None
    assert "no rule allows tcp 10.71.0.0/21 to 10.72.0.0/21:443" in text


def test_network_rules_come_before_application_rules_and_those_translate_sources() -> None:
    out, text = passed([application_rule("*"), network_rule("Allow", 100)])
    assert out == HTTPS, text
    out, text = passed([application_rule("*")])
    assert out is not None
    assert out.source == IPv4Network("10.70.0.0/26")
    assert passed([application_rule("*.example.com")])[0] is None


def test_dnat_changes_target_and_port() -> None:
    rule = {
        "ruleType": "NatRule", "name": "in", "ipProtocols": ["TCP"], "sourceAddresses": ["*"],
        "destinationAddresses": ["10.72.0.0/21"], "destinationPorts": ["443"],
        "translatedAddress": "10.72.0.5", "translatedPort": "8443",
    }  # fmt: skip
    nat = {"priority": 100, "action": {"type": "DNAT"}, "rules": [rule]}
    out, text = passed([nat, network_rule("Allow", 200, "8443")])
    assert out is not None, text
    assert (out.target, out.ports) == (IPv4Network("10.72.0.5/32"), (8443, 8443))


def test_ip_groups_are_resolved() -> None:
    def change(store: Store) -> None:
        group_id = one(store, "/firewallpolicies/broadside-firewall")["id"] + "-group"
        store[group_id.lower()] = {
            "id": group_id, "name": "group", "type": "Microsoft.Network/ipGroups",
            "properties": {"ipAddresses": ["10.71.0.0/16"]},
        }  # fmt: skip
        collection = network_rule("Allow", 100)
        collection["rules"][0] |= {"sourceAddresses": [], "sourceIpGroups": [group_id]}
        one(store, "/rulecollectiongroups/traffic")["properties"]["ruleCollections"] = [collection]

    assert forward(Trace(resources=range_with("notebook", change)), FIREWALL, HTTPS) == HTTPS


@pytest.mark.parametrize(
    ("part", "field", "value", "expected"),
    [
        ("loadbalancers/broadside-appliance", "loadBalancingRules", [], "no rule for all ports"),
        ("loadbalancers/broadside-appliance", "probes", [], "no health probe"),
        ("networkinterfaces/broadside-appliance-2", "enableIPForwarding", False, "IP forwarding"),
        (
            "networkinterfaces/broadside-appliance-2",
            "ipConfigurations",
            [{"properties": {}}],
            "not in the backend pool",
        ),
    ],
)
def test_load_balancer(part: str, field: str, value: object, expected: str) -> None:
    def change(store: Store) -> None:
        one(store, f"/{part}")["properties"][field] = value

    trace = Trace(resources=range_with("other-appliance", change))
    with pytest.raises(Stop):
        forward(trace, BALANCER, HTTPS)
    assert expected in trace.hops[-1].text
