"""Tests for effective routes, peerings and security groups."""

from ipaddress import IPv4Network

import pytest

from broadside.coordinator.azure_range.resources import Resources
from broadside.coordinator.azure_range.routing import (
    RoutedFlow,
    Tag,
    covers_place,
    covers_ports,
    effective_route,
    group_allows,
)
from broadside.coordinator.azure_range.trace import Stop, Trace
from tests.unit.coordinator.azure_range.stored import Store, one, range_with

CLIENTS, SERVERS = IPv4Network("10.71.0.0/21"), IPv4Network("10.72.0.0/21")
INSIDE = [IPv4Network("10.70.0.0/16"), IPv4Network("10.71.0.0/16"), IPv4Network("10.72.0.0/16")]


def subnet(resources: Resources, network: str) -> str:
    end = f"/virtualnetworks/broadside-{network}/subnets/agents"
    return next(str(item["id"]) for key, item in resources.by_id.items() if key.endswith(end))


def group(resources: Resources, name: str) -> str:
    end = f"/networksecuritygroups/broadside-{name}"
    return next(str(item["id"]) for key, item in resources.by_id.items() if key.endswith(end))


@pytest.mark.parametrize(
    ("texts", "ports", "partly", "expected"),
    [
        (["5201"], (5201, 5201), False, True),
        (["5200-5202"], (5201, 5201), False, True),
        (["50000-50100"], (50000, 59999), False, False),
        (["50000-50100"], (50000, 59999), True, True),
        (["*"], (0, 65535), False, True),
        ([], (1, 1), True, False),
    ],
)
def test_rule_covers_ports(
    texts: list[str], ports: tuple[int, int], partly: bool, expected: bool
) -> None:
    assert covers_ports(texts, ports, partly=partly) is expected


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("Storage.eastus", Tag("Storage", "eastus"), True),
        ("Storage", Tag("Storage", "eastus"), True),
        ("Storage.westus", Tag("Storage", "eastus"), False),
        ("Internet", Tag("Storage", "eastus"), True),
        ("VirtualNetwork", CLIENTS, True),
        ("Internet", CLIENTS, False),
        ("10.71.0.0/16", CLIENTS, True),
        ("10.71.0.0/24", CLIENTS, False),
        ("10.71.0.0/21", Tag("Storage", "eastus"), False),
    ],
)
def test_rule_covers_place(text: str, place: IPv4Network | Tag, expected: bool) -> None:
    assert covers_place(text, place, INSIDE, partly=False) is expected


def test_user_route_wins_over_peering_with_the_same_prefix_and_the_longest_over_all() -> None:
    def bypass(store: Store) -> None:
        # A direct peering of the spokes has the prefix of the user route.
        for near, far in (("clients", "servers"), ("servers", "clients")):
            peering = dict(one(store, f"/broadside-{near}/virtualnetworkpeerings/hub"))
            network = one(store, f"/virtualnetworks/broadside-{far}")["id"]
            peering["id"] = peering["id"].rsplit("/", 1)[0] + "/bypass"
            fields = {**peering["properties"], "remoteVirtualNetwork": {"id": network}}
            store[peering["id"].lower()] = {**peering, "name": "bypass", "properties": fields}

    resources = range_with("notebook", bypass)
    near = subnet(resources, "clients")
    assert effective_route(Trace(resources=resources), near, SERVERS).kind == "appliance"

    def without_route(store: Store) -> None:
        bypass(store)
        del store[one(store, "/broadside-clients/routes/through-appliance")["id"].lower()]

    resources = range_with("notebook", without_route)
    route = effective_route(Trace(resources=resources), near, SERVERS)
    assert (route.kind, route.source) == ("peering", "peering bypass")


def test_route_that_covers_a_part_of_the_fleet_is_an_error() -> None:
    def narrow(store: Store) -> None:
        route = one(store, "/broadside-clients/routes/through-appliance")
        route["properties"]["addressPrefix"] = "10.72.0.0/24"

    resources = range_with("notebook", narrow)
    trace = Trace(resources=resources)
    with pytest.raises(Stop):
        effective_route(trace, subnet(resources, "clients"), SERVERS)
    assert "covers only a part" in trace.hops[-1].text


def test_service_endpoint_wins_over_a_default_route() -> None:
    def default_route(store: Store) -> None:
        route = one(store, "/broadside-clients/routes/through-appliance")
        route["properties"]["addressPrefix"] = "0.0.0.0/0"

    resources = range_with("notebook", default_route)
    trace, near = Trace(resources=resources), subnet(resources, "clients")
    assert effective_route(trace, near, Tag("Storage", "eastus")).kind == "endpoint"
    assert effective_route(trace, near, Tag("ServiceBus", "eastus")).kind == "appliance"


def test_groups_deny_by_a_part_and_allow_by_all_parts() -> None:
    def rules(store: Store) -> None:
        traffic = one(store, "/broadside-servers/securityrules/traffictcp")["properties"]
        traffic["sourceAddressPrefix"] = "10.71.0.0/24"

    resources = range_with("notebook", rules)
    flow = RoutedFlow(protocol="tcp", source=CLIENTS, target=SERVERS, ports=(5201, 5201))
    allowed = group_allows(resources, group(resources, "servers"), "Inbound", flow, INSIDE)
    assert allowed == (False, "NothingInbound")


def test_default_rules_of_azure() -> None:
    resources = Resources(by_id={})
    inside = RoutedFlow(protocol="tcp", source=CLIENTS, target=SERVERS)
    outside = RoutedFlow(protocol="tcp", source=CLIENTS, target=Tag("Storage", "eastus"))
    foreign = RoutedFlow(protocol="tcp", source=IPv4Network("1.1.1.1/32"), target=SERVERS)
    for direction, flow, expected in (
        ("Outbound", inside, True), ("Inbound", inside, True),
        ("Outbound", outside, True), ("Inbound", foreign, False),
    ):  # fmt: skip
        assert group_allows(resources, "x", direction, flow, INSIDE)[0] is expected
