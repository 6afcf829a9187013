"""Tests for flows between the fleets, and for closed paths."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from broadside.coordinator.azure_range.routing import Tag, effective_route
from broadside.coordinator.azure_range.terraform_state import read_state
from broadside.coordinator.azure_range.trace import HopState, Trace, TraceRow
from broadside.coordinator.azure_range.walk import walk
from tests.unit.coordinator.azure_range.stored import (
    Store,
    document,
    drop,
    one,
    range_with,
    replace_given,
    rows_with,
)


def test_icmp_is_no_need_if_no_rule_names_it() -> None:
    def without(store: Store) -> None:
        for name in ("clients", "servers"):
            drop(store, f"/networksecuritygroups/broadside-{name}/securityrules/echo")
        drop(store, "/networksecuritygroups/broadside-servers/securityrules/echotranslated")
        rules = one(store, "/rulecollectiongroups/traffic")["properties"]["ruleCollections"][0][
            "rules"
        ]
        rules[:] = [rule for rule in rules if rule["ipProtocols"] != ["ICMP"]]

    rows = {(row.role, row.need): row for row in rows_with("notebook", without)}
    assert rows["client", "icmp echo"].hops[0].text.startswith("not enabled")


def test_tunnels_need_the_capability() -> None:
    def without(store: Store) -> None:
        replace_given(store, "sets/broadside-servers", "CAP_NET_ADMIN", "")

    rows = {(row.role, row.need): row for row in rows_with("notebook", without)}
    assert "CAP_NET_ADMIN" in str(rows["server", "vxlan to client, udp 4789"])


def test_a_tunnel_has_a_separate_port() -> None:
    def moved(store: Store) -> None:
        for item in store.values():
            if item["name"].startswith("Vxlan"):
                item["properties"]["destinationPortRange"] = "8472"
        for rule in one(store, "/rulecollectiongroups/traffic")["properties"]["ruleCollections"][0][
            "rules"
        ]:
            if rule["name"].startswith("vxlan"):
                rule["destinationPorts"] = ["8472"]

    states = {(row.role, row.need): row.state for row in rows_with("notebook", moved)}
    assert states["server", "vxlan to client, udp 8472"] is HopState.OK


def test_a_firewall_that_allows_more_is_named() -> None:
    def open_(store: Store) -> None:
        rules = one(store, "/rulecollectiongroups/traffic")["properties"]["ruleCollections"][0][
            "rules"
        ]
        rules[0]["destinationPorts"] = ["*"]

    rows = {(row.role, row.need): row for row in rows_with("notebook", open_)}
    assert "allows tcp 10.71.0.0/21 to 10.72.0.0/21:3389" in str(rows["client", "nothing else"])


def test_subnets_of_another_owner_are_unknown_in_a_terraform_state() -> None:
    state = copy.deepcopy(document("notebook")["state"])
    modules = state["values"]["root_module"]["child_modules"]
    for module in modules:
        module["resources"] = [
            item for item in module["resources"] if item["type"] != "azurerm_subnet"
        ]
    rows = walk(read_state(state))
    traffic = [row.state for row in rows if row.need.startswith(("iperf3", "http", "ftp"))]
    assert set(traffic) == {HopState.UNKNOWN}


def test_sources_that_the_firewall_translates_have_separate_need() -> None:
    def closed(store: Store) -> None:
        drop(store, "/networksecuritygroups/broadside-servers/securityrules/traffictcptranslated")

    rows = {(row.role, row.need): row for row in rows_with("notebook", closed)}
    assert "denies tcp" in str(rows["server", "sources that the firewall translates"])
    assert rows["client", "iperf3 tcp 5201"].state is HopState.OK


# A secured virtual WAN hub ------------------------------------------------------------------------


def in_virtual_hub(store: Store) -> None:
    """Move the firewall of a stored range into a virtual hub with routing intent."""
    firewall = one(store, FIREWALL)
    network = firewall["id"].rsplit("/", 2)[0]
    hub = f"{network}/virtualHubs/vhub"
    address = firewall["properties"].pop("ipConfigurations")[0]["properties"]["privateIPAddress"]
    firewall["properties"]["hubIPAddresses"] = {"privateIPAddress": address}
    route = {"name": "_policy_PrivateTraffic", "destinations": ["10.0.0.0/8"],
             "nextHop": firewall["id"]}  # fmt: skip
    add(store, hub, "virtualHubs", {})
    add(store, f"{hub}/hubRouteTables/defaultRouteTable", "virtualHubs/hubRouteTables",
        {"routes": [route]})  # fmt: skip
    for spoke in ("clients", "servers"):
        vnet = one(store, f"/virtualnetworks/vnet-contoso-broadside-{spoke}")["id"]
        fields = {"remoteVirtualNetwork": {"id": vnet}, "enableInternetSecurity": False}
        add(store, f"{hub}/hubVirtualNetworkConnections/{spoke}",
            "virtualHubs/hubVirtualNetworkConnections", fields)  # fmt: skip
        table = one(store, f"/routetables/rt-contoso-broadside-{spoke}")
        table["properties"]["disableBgpRoutePropagation"] = False
        drop(store, f"/routetables/rt-contoso-broadside-{spoke}/routes/through-appliance")


FIREWALL = "/azurefirewalls/afw-contoso-broadside-firewall"
HUB = "/virtualhubs/vhub"


def add(store: Store, resource_id: str, kind: str, fields: dict[str, Any]) -> None:
    store[resource_id.lower()] = {
        "id": resource_id, "name": resource_id.rsplit("/", 1)[1],
        "type": f"Microsoft.Network/{kind}", "properties": fields,
    }  # fmt: skip


def traffic_row(change: Callable[[Store], None]) -> TraceRow:
    def both(store: Store) -> None:
        in_virtual_hub(store)
        change(store)

    rows = {(row.role, row.need): row for row in rows_with("private", both)}
    return rows["client", "iperf3 tcp 5201"]


def test_routing_intent_leads_through_the_firewall_of_the_hub() -> None:
    row = traffic_row(lambda _: None)
    assert row.state is HopState.OK, str(row)
    text = " ".join(hop.text for hop in row.hops)
    assert "_policy_PrivateTraffic of virtual hub vhub" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda store: drop(store, f"{HUB}/hubvirtualnetworkconnections/servers"),
         "vnet-contoso-broadside-servers"),
        (lambda store: drop(store, f"{HUB}/hubvirtualnetworkconnections/clients"),
         "no connection with the virtual hub"),
        (lambda store: one(store, f"{HUB}/hubroutetables/defaultroutetable")["properties"].update(
            routes=[]), "no connection with the virtual hub"),
        (lambda store: one(store, "/routetables/rt-contoso-broadside-clients")["properties"].update(
            disableBgpRoutePropagation=True), "no route"),
        (lambda store: one(store, "/rulecollectiongroups/traffic")["properties"].update(
            ruleCollections=[]), "no rule allows"),
    ],
)  # fmt: skip
def test_a_hub_that_does_not_carry_the_traffic(
    change: Callable[[Store], None], expected: str
) -> None:
    row = traffic_row(change)
    assert row.state is HopState.BROKEN
    assert expected in str(row)


def test_a_connection_must_not_send_internet_traffic_to_its_hub() -> None:
    def secured(store: Store) -> None:
        in_virtual_hub(store)
        connection = one(store, f"{HUB}/hubvirtualnetworkconnections/clients")
        connection["properties"]["enableInternetSecurity"] = True

    resources = range_with("private", secured)
    subnet = "/virtualnetworks/vnet-contoso-broadside-clients/subnets/agents"
    (subnet_id,) = (key for key in resources.by_id if key.endswith(subnet))
    route = effective_route(Trace(resources=resources), subnet_id, Tag("ServiceBus", "eastus"))
    assert (route.kind, route.source) == ("none", "clients sends internet traffic to its hub")
