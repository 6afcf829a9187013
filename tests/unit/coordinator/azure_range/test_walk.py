"""Tests for following the needs of each VM over a stored range."""

# ruff: noqa: E501 - long table rows

from collections.abc import Callable
from typing import Any

import pytest

from broadside.coordinator.azure_range.trace import HopState, table
from broadside.coordinator.azure_range.walk import walk
from tests.azure_emulator.applied import resources_of
from tests.unit.coordinator.azure_range.stored import (
    Store,
    document,
    drop,
    one,
    replace_given,
    rows_with,
)

STATES = ("notebook", "private", "other-appliance")
Change = Callable[[Store], Any]


@pytest.mark.parametrize("state", STATES)
def test_every_need_of_a_stored_range_is_met(state: str) -> None:
    rows = walk(resources_of(document(state)))
    assert [str(row) for row in rows if row.state is not HopState.OK] == []
    needs = {row.need for row in rows if row.role == "client"}
    assert {"package", "table control", "queue", "clock", "icmp echo", "iperf3 tcp 5201"} <= needs


def test_engines_tunnels_and_modes_are_needs() -> None:
    rows = {(row.role, row.need) for row in walk(resources_of(document("notebook")))}
    assert {
        ("client", "http tcp 8080"), ("client", "https tcp 8443"), ("client", "ftp tcp 2121"),
        ("client", "ftp passive ports"), ("client", "probe echo udp 5200"),
        ("client", "vxlan to server, udp 4789"), ("server", "vxlan to client, udp 4789"),
        ("coordinator", "firewall metrics"), ("coordinator", "firewall modes"),
    } <= rows  # fmt: skip


def client_id(store: Store, name: str) -> str:
    return str(one(store, f"/userassignedidentities/{name}")["properties"]["clientId"])


def closed(port: str) -> Change:
    """Return a change that closes a port in the servers' security group."""

    def change(store: Store) -> None:
        one(store, "/broadside-servers/securityrules/traffictcp")["properties"][
            "destinationPortRanges"
        ].remove(port)

    return change


def firewall_without(port: str) -> Change:
    def change(store: Store) -> None:
        rules = one(store, "/rulecollectiongroups/traffic")["properties"]["ruleCollections"][0][
            "rules"
        ]
        rules[0]["destinationPorts"].remove(port)

    return change


def zone(store: Store, service: str) -> str:
    return next(
        key
        for key in store
        if key.endswith(f"/privatednszones/privatelink.{service}.core.windows.net")
    )


def rename_zone(store: Store) -> None:
    old = zone(store, "table")
    store[old]["name"] = "privatelink.tables.core.windows.net"


def without_link(store: Store) -> None:
    drop(store, "/virtualnetworklinks/table-clients")


def group_of(service: str, group: str) -> Change:
    def change(store: Store) -> None:
        endpoint = one(store, f"/privateendpoints/pep-contoso-broadside-{service}")["properties"]
        endpoint["privateLinkServiceConnections"][0]["properties"]["groupIds"] = [group]

    return change


def set_(end: str, name: str, value: Any) -> Change:
    def change(store: Store) -> None:
        one(store, end)["properties"][name] = value

    return change


def given(end: str, before: str, after: str) -> Change:
    return lambda store: replace_given(store, end, before, after)


def wake_role(store: Store) -> None:
    key = next(key for key in store if "/virtualmachines/" in key and "/roleassignments/" in key)
    fields = store[key]["properties"]
    fields["roleDefinitionId"] = (
        fields["roleDefinitionId"].rsplit("/", 1)[0] + "/acdd72a7-3385-48ef-bd42-f606fba81ae7"
    )


def coordinators_id(store: Store) -> None:
    ids = client_id(store, "broadside-clients"), client_id(store, "broadside-coordinator")
    replace_given(store, "/virtualmachinescalesets/broadside-clients", *ids)


def resource_id(store: Store) -> None:
    identity = one(store, "/userassignedidentities/broadside-clients")
    before = identity["properties"]["clientId"]
    replace_given(store, "/virtualmachinescalesets/broadside-clients", before, identity["id"])


def swapped_tables(store: Store) -> None:
    for end in (
        "sets/broadside-clients",
        "sets/broadside-servers",
        "virtualmachines/broadside-coordinator",
    ):
        replace_given(store, end, "TABLES_CONTROL=control", "TABLES_CONTROL=x")
        replace_given(store, end, "TABLES_RESULTS=results", "TABLES_RESULTS=control")
        replace_given(store, end, "TABLES_CONTROL=x", "TABLES_CONTROL=results")


def no_nat_address(store: Store) -> None:
    one(store, "/natgateways/broadside-clients")["properties"]["publicIpAddresses"] = []


def no_network_rule(store: Store) -> None:
    account = next(
        item for item in store.values() if item["type"] == "Microsoft.Storage/storageAccounts"
    )
    rules = account["properties"]["networkAcls"]["virtualNetworkRules"]
    rules[:] = [item for item in rules if "broadside-servers" not in item["id"].lower()]


def translate_all(store: Store) -> None:
    for item in store.values():
        if item["type"].lower().endswith("/firewallpolicies"):
            item["properties"]["snat"] = {"privateRanges": ["255.255.255.255/32"]}


NSG = "/networksecuritygroups/broadside-"
# State, change, and the role, need and hop that break.
MISTAKES: dict[str, tuple[str, Change, str, str, str]] = {
    "private DNS link missing": ("private", without_link, "client", "table control", "name"),
    "zone with the wrong name": ("private", rename_zone, "client", "table control", "name"),
    "table endpoint made as a blob endpoint": ("private", group_of("table", "blob"), "client", "table control", "listener"),
    "no DNS group": ("private", lambda store: drop(store, "/privatednszonegroups/servicebus"), "client", "queue", "name"),
    "agents with the coordinator's client id": ("notebook", coordinators_id, "client", "package", "identity"),
    "resource id in place of the client id": ("notebook", resource_id, "client", "package", "identity"),
    "tables swapped": ("notebook", swapped_tables, "client", "table results", "role"),
    "HTTP closed": ("notebook", closed("8080"), "client", "http tcp 8080", "group in"),
    "HTTPS closed": ("notebook", firewall_without("8443"), "client", "https tcp 8443", "firewall"),
    "FTP's passive ports closed": ("notebook", firewall_without("50000-59999"), "client", "ftp passive ports", "firewall"),
    "wrong role for the morning's start": ("notebook", wake_role, "workflow", "morning start", "role"),
    "a NAT gateway without an address": ("notebook", no_nat_address, "client", "queue", "outbound"),
    "storage that rejects the servers": ("notebook", no_network_rule, "server", "table results", "listener"),
    "no forwarded traffic": ("notebook", set_("/broadside-servers/virtualnetworkpeerings/hub", "allowForwardedTraffic", False), "client", "iperf3 tcp 5201", "peering"),
    "peering in one direction": ("notebook", lambda store: drop(store, "/broadside-hub/virtualnetworkpeerings/servers"), "client", "iperf3 udp 5201", "route"),
    "next hop without a device": ("notebook", set_("/broadside-clients/routes/through-appliance", "nextHopIpAddress", "10.70.0.9"), "client", "icmp echo", "appliance"),
    "route missing on the way back": ("notebook", lambda store: drop(store, "/broadside-servers/routes/through-appliance"), "client", "iperf3 tcp 5201", "return"),
    "service tag of another region": ("notebook", set_(f"{NSG}clients/securityrules/tostorage", "destinationAddressPrefix", "Storage.westeurope"), "client", "package", "group out"),
    "echo port of the probe differs": ("notebook", given("sets/broadside-servers", "ECHO_PORT=5200", "ECHO_PORT=5299"), "client", "probe echo udp 5299", "group out"),
    "firewall translates sources": ("private", translate_all, "client", "iperf3 tcp 5201", "group in"),
    "NTP in place of the host's clock": ("notebook", given("sets/broadside-clients", "refclock PHC", "server pool.ntp.org #"), "client", "clock", "given"),
    "interface outside of the pool": ("other-appliance", lambda store: [one(store, f"/networkinterfaces/broadside-appliance-{i}")["properties"]["ipConfigurations"][0]["properties"].pop("loadBalancerBackendAddressPools") for i in (1, 2)], "client", "iperf3 tcp 5201", "appliance"),
    "queue of another name": ("notebook", given("virtualmachines/broadside-coordinator", "QUEUE=jobs", "QUEUE=job"), "coordinator", "queue", "listener"),
    "a role that is too large": ("notebook", lambda store: [item["properties"].update(roleDefinitionId=item["properties"]["roleDefinitionId"].replace("2a2b9908-6ea1-4ae2-8e65-a410df84e7d1", "ba92f5b4-2d11-453d-a403-e96b0029c9fe")) for item in store.values() if item["type"].lower().endswith("/roleassignments")], "server", "rights", "role"),
    "denial of all other traffic missing": ("notebook", lambda store: drop(store, f"{NSG}servers/securityrules/nothinginbound"), "server", "nothing else", "closed"),
    "a Bastion that cannot tunnel": ("notebook", set_("/bastionhosts/broadside-bastion", "enableTunneling", False), "operator", "ssh by bastion", "listener"),
    "SSH from the wrong subnet": ("notebook", set_(f"{NSG}coordinator/securityrules/sshfrombastion", "sourceAddressPrefix", "10.70.1.0/26"), "operator", "ssh by bastion", "group in"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_breaks_at_its_hop(name: str) -> None:
    state, change, role, need, hop = MISTAKES[name]
    rows = {(row.role, row.need): row for row in rows_with(state, change)}
    row = rows[role, need]
    assert row.state is HopState.BROKEN
    assert row.hops[-1].name == hop, str(row)


def test_a_role_after_the_vm_is_named_with_its_delay() -> None:
    def late(store: Store) -> None:
        for key, item in store.items():
            if "/queues/jobs/" in key and "/roleassignments/" in key:
                item["_at"] = one(store, "sets/broadside-clients")["_at"] + 60

    rows = {(row.role, row.need): row for row in rows_with("notebook", late)}
    assert "60 s after the VM starts" in str(rows["client", "queue"])


def test_a_missing_value_is_broken_and_not_an_error() -> None:
    def cut(store: Store) -> None:
        replace_given(
            store, "sets/broadside-servers", "BROADSIDE_TABLES_CONTROL", "BROADSIDE_TABLES"
        )

    rows = {(row.role, row.need): row for row in rows_with("notebook", cut)}
    assert rows["server", "table control"].state is HopState.BROKEN


def test_the_part_of_another_owner_is_named_as_such() -> None:
    stored = document("notebook")
    store = {
        key: item for key, item in stored["store"].items() if "/rulecollectiongroups/" not in key
    }
    foreign = [key for key in store if "/firewallpolicies/" in key or "/azurefirewalls/" in key]
    rows = walk(resources_of({**stored, "store": store, "before": foreign}))
    states = {(row.role, row.need): row.state for row in rows}
    assert states["client", "iperf3 tcp 5201"] is HopState.OWNER


def test_table_has_a_line_per_need_and_the_counts() -> None:
    rows = rows_with("notebook", closed("8080"))
    lines = list(table(rows))
    assert len(lines) == len(rows) + 2
    (broken,) = (line for line in lines if "BROKEN" in line and "8080" in line)
    assert "group out > route > peering > firewall > peering > group in: " in broken
    assert lines[-1].endswith("1 BROKEN")
