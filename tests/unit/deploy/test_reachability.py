"""Tests for finding network traffic which would be blocked in the range."""

# ruff: noqa: E501 - long table rows

import base64
import copy
from collections.abc import Callable
from typing import Any, Final

import pytest
import yaml

from tests.azure_emulator.reach import faults

Store = dict[str, Any]
NETWORK: Final = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network"
SPACES: Final = {"hub": "10.1", "clients": "10.2", "servers": "10.3"}
HOP: Final = "10.1.0.4"
ENVIRONMENT: Final = {
    "client": {"BROADSIDE_AGENT_ROLE": "client", "BROADSIDE_AGENT_ALLOWED_NETWORKS": "10.3.0.0/21"},
    "server": {"BROADSIDE_AGENT_ROLE": "server", "BROADSIDE_AGENT_ALLOWED_NETWORKS": "10.2.0.0/21",
               "BROADSIDE_AGENT_PORTS": "5201,5202", "BROADSIDE_AGENT_ECHO_PORT": "5200"},
}  # fmt: skip


def key(network: str, subnet: str = "agents") -> str:
    return f"{NETWORK}/virtualNetworks/{network}/subnets/{subnet}"


def rule(
    direction: str, priority: int, source: str, target: str, ports: list[str], access: str = "Allow"
) -> dict[str, Any]:
    return {"direction": direction, "priority": priority, "access": access, "protocol": "*", "sourceAddressPrefix": source,
            "destinationAddressPrefix": target, "destinationPortRanges": ports}  # fmt: skip


def a_range() -> Store:
    """Return a hub with a firewall and Bastion, and two spokes with VMs."""
    resources: Store = {}

    def put(path: str, **properties: Any) -> None:
        path = path if path.startswith("/") else f"{NETWORK}/{path}"
        _, kind, name = path.rsplit("/", 2)
        type_ = f"Microsoft.X/{kind}"
        resources[path.lower()] = {
            "id": path,
            "name": name,
            "type": type_,
            "properties": properties,
        }

    exchange = [
        rule("Outbound", 200, "VirtualNetwork", "ServiceBus.eastus", ["5671"]),
        rule("Outbound", 210, "VirtualNetwork", "Storage.eastus", ["443"]),
    ]
    deny = [rule(method, 4096, "*", "*", ["*"], "Deny") for method in ("Inbound", "Outbound")]
    groups = {
        "clients": [rule("Outbound", 100, "10.2.0.0/21", "10.3.0.0/21", ["5200-5202"]), *exchange],
        "servers": [rule("Inbound", 100, "10.2.0.0/21", "10.3.0.0/21", ["5200-5202"]), exchange[1]],
        "coordinator": [
            rule("Inbound", 100, "10.1.2.0/26", "VirtualNetwork", ["22"]), *exchange,
            rule("Outbound", 220, "VirtualNetwork", "AzureResourceManager", ["443"]),
            rule("Outbound", 230, "VirtualNetwork", "AzureActiveDirectory", ["443"]),
        ],
    }  # fmt: skip
    for group, rules in groups.items():
        for index, item in enumerate([*rules, *deny]):
            put(f"networkSecurityGroups/{group}/securityRules/{index}", **item)
    for spoke, remote in (("clients", "servers"), ("servers", "clients")):
        put(f"natGateways/{spoke}", publicIpAddresses=[{"id": "x"}])
        put(
            f"routeTables/{spoke}/routes/r",
            addressPrefix=f"{SPACES[remote]}.0.0/16",
            nextHopIpAddress=HOP,
        )
        put(
            key(spoke), addressPrefix=f"{SPACES[spoke]}.0.0/21",
            natGateway={"id": f"{NETWORK}/natGateways/{spoke}"}, routeTable={"id": f"{NETWORK}/routeTables/{spoke}"},
            networkSecurityGroup={"id": f"{NETWORK}/networkSecurityGroups/{spoke}"},
        )  # fmt: skip
        put(
            f"virtualNetworks/{spoke}/virtualNetworkPeerings/hub", allowForwardedTraffic=True,
            allowVirtualNetworkAccess=True, remoteVirtualNetwork={"id": f"{NETWORK}/virtualNetworks/hub"},
        )  # fmt: skip
        role = spoke.removesuffix("s")
        files = [
            {
                "path": "/etc/broadside/environment",
                "content": "\n".join(
                    f"{name}={value}" for name, value in ENVIRONMENT[role].items()
                ),
            }
        ]
        nic = {"properties": {"ipConfigurations": [{"properties": {"subnet": {"id": key(spoke)}}}]}}
        put(f"virtualMachineScaleSets/{spoke}", virtualMachineProfile={
            "osProfile": {"customData": base64.b64encode(yaml.safe_dump({"write_files": files}).encode()).decode()},
            "networkProfile": {"networkInterfaceConfigurations": [nic]},
        })  # fmt: skip
    put("natGateways/hub", publicIpAddresses=[{"id": "x"}])
    put(key("hub", "AzureFirewallSubnet"), addressPrefix="10.1.0.0/26")
    put(key("hub", "AzureBastionSubnet"), addressPrefix="10.1.2.0/26")
    put(
        key("hub", "coordinator"), addressPrefix="10.1.3.0/26", natGateway={"id": f"{NETWORK}/natGateways/hub"},
        networkSecurityGroup={"id": f"{NETWORK}/networkSecurityGroups/coordinator"},
    )  # fmt: skip
    put(
        "networkInterfaces/coordinator",
        ipConfigurations=[{"properties": {"subnet": {"id": key("hub", "coordinator")}}}],
    )
    put(
        "bastionHosts/b",
        enableTunneling=True,
        ipConfigurations=[{"properties": {"subnet": {"id": key("hub", "AzureBastionSubnet")}}}],
    )
    put(
        "azureFirewalls/f",
        ipConfigurations=[{"properties": {"privateIPAddress": HOP}}],
        firewallPolicy={"id": f"{NETWORK}/firewallPolicies/p"},
    )
    passes = {
        "ruleType": "NetworkRule",
        "ipProtocols": ["TCP", "UDP"],
        "sourceAddresses": ["10.2.0.0/21"],
        "destinationAddresses": ["10.3.0.0/21"],
        "destinationPorts": ["5200-5202"],
    }
    put(
        "firewallPolicies/p/ruleCollectionGroups/t",
        ruleCollections=[{"action": {"type": "Allow"}, "rules": [passes]}],
    )
    allowed = [{"id": key("clients")}, {"id": key("servers")}, {"id": key("hub", "coordinator")}]
    put(
        "storageAccounts/a",
        allowSharedKeyAccess=False,
        networkAcls={"defaultAction": "Deny", "virtualNetworkRules": allowed},
    )
    return resources


def properties_of(store: Store, path: str) -> dict[str, Any]:
    result: dict[str, Any] = store[f"{NETWORK}/{path}".lower()]["properties"]
    return result


def firewall_rule(store: Store) -> dict[str, Any]:
    result: dict[str, Any] = properties_of(store, "firewallPolicies/p/ruleCollectionGroups/t")[
        "ruleCollections"
    ][0]["rules"][0]
    return result


def test_reachable_range_has_no_faults() -> None:
    store = a_range()
    assert list(faults(store, store)) == []


MISTAKES: list[tuple[Callable[[Store], Any], str]] = [
    (lambda store: properties_of(store, "virtualNetworks/servers/virtualNetworkPeerings/hub").update(allowForwardedTraffic=False), "no forwarded traffic"),
    (lambda store: properties_of(store, "virtualNetworks/clients/virtualNetworkPeerings/hub").update(allowVirtualNetworkAccess=False), "lets nothing in"),
    (lambda store: store.pop(f"{NETWORK}/virtualNetworks/clients/virtualNetworkPeerings/hub".lower()), "no peering"),
    (lambda store: store.pop(f"{NETWORK}/routeTables/servers/routes/r".lower()), "clients by None"),
    (lambda store: properties_of(store, "routeTables/clients/routes/r").update(addressPrefix="0.0.0.0/0"), "routed to the appliance"),
    (lambda store: properties_of(store, "natGateways/hub").update(publicIpAddresses=[]), "no way to ServiceBus"),
    (lambda store: properties_of(store, "networkSecurityGroups/clients/securityRules/0").update(destinationPortRanges=["5201"]), "clients: Outbound: refuses Udp 10.2.0.4 to 10.3.0.4:5200"),
    (lambda store: properties_of(store, "networkSecurityGroups/servers/securityRules/0").update(priority=4097), "servers: Inbound: refuses Tcp"),
    (lambda store: properties_of(store, "networkSecurityGroups/clients/securityRules/1").update(destinationPortRanges=["5672"]), "refuses Tcp 10.2.0.4 to ServiceBus:5671"),
    (lambda store: properties_of(store, "networkSecurityGroups/coordinator/securityRules/0").update(sourceAddressPrefix="10.1.4.0/26"), "refuses Tcp 10.1.2.4 to 10.1.3.4:22"),
    (lambda store: firewall_rule(store).update(sourceAddresses=["10.3.0.0/21"]), "no rule for Tcp"),
    (lambda store: firewall_rule(store).update(ipProtocols=["TCP"]), "no rule for Udp"),
    (lambda store: properties_of(store, "bastionHosts/b").update(enableTunneling=False), "no tunnel"),
    (lambda store: properties_of(store, "storageAccounts/a")["networkAcls"].update(defaultAction="Allow"), "open: Allow"),
    (lambda store: properties_of(store, "storageAccounts/a")["networkAcls"]["virtualNetworkRules"].pop(1), "lets servers not in"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_reports_unreachable_traffic(change: Callable[[Store], Any], message: str) -> None:
    store = a_range()
    change(store)
    assert any(message in fault for fault in faults(store, store)), list(faults(store, store))


def test_ignores_missing_settings_of_an_existing_hub() -> None:
    """If the hub already exists, the firewall and the peering are set by the owner."""
    store = a_range()
    mine = {
        path: copy.deepcopy(item)
        for path, item in store.items()
        if "/virtualnetworks/hub/" not in path and "firewall" not in path
    }
    firewall_rule(store).update(sourceAddresses=[])
    assert list(faults(store, mine)) == []
