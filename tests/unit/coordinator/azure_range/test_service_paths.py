"""Tests for names and ways to services of Azure."""

from collections.abc import Callable

import pytest

from broadside.coordinator.azure_range.trace import HopState
from tests.unit.coordinator.azure_range.stored import Store, one, rows_with

NETWORK = "/virtualnetworks/broadside-clients"


def default_route(store: Store) -> None:
    route = one(store, "/broadside-coordinator/securityrules/toentra")
    route["properties"]["access"] = "Deny"


def own_dns(store: Store) -> None:
    one(store, NETWORK)["properties"]["dhcpOptions"] = {"dnsServers": ["10.0.0.53"]}


def no_gateway(store: Store) -> None:
    del one(store, f"{NETWORK}/subnets/agents")["properties"]["natGateway"]


def default_address(store: Store) -> None:
    no_gateway(store)
    one(store, f"{NETWORK}/subnets/agents")["properties"]["defaultOutboundAccess"] = True


def no_endpoint(store: Store) -> None:
    one(store, f"{NETWORK}/subnets/agents")["properties"]["serviceEndpoints"] = []


def through_firewall(store: Store) -> None:
    route = one(store, "/broadside-clients/routes/through-appliance")
    route["properties"]["addressPrefix"] = "0.0.0.0/0"


def dropped(store: Store) -> None:
    through_firewall(store)
    route = one(store, "/broadside-clients/routes/through-appliance")["properties"]
    route |= {"nextHopType": "None", "nextHopIpAddress": None}


def private(store: Store) -> None:
    namespace = next(
        one for one in store.values() if one["type"] == "Microsoft.ServiceBus/namespaces"
    )
    namespace["properties"]["publicNetworkAccess"] = "Disabled"


@pytest.mark.parametrize(
    ("change", "need", "hop"),
    [
        (own_dns, "queue", "name"),
        (no_gateway, "queue", "outbound"),
        (no_endpoint, "package", "listener"),
        (through_firewall, "queue", "firewall"),
        (dropped, "queue", "route"),
        (private, "queue", "listener"),
    ],
)
def test_detects_the_broken_hop(change: Callable[[Store], None], need: str, hop: str) -> None:
    rows = {(row.role, row.need): row for row in rows_with("notebook", change)}
    row = rows["client", need]
    assert row.state is HopState.BROKEN
    assert row.hops[-1].name == hop, str(row)


def test_default_address_is_a_route_out() -> None:
    rows = {(row.role, row.need): row for row in rows_with("notebook", default_address)}
    assert rows["client", "queue"].state is HopState.OK


def test_zone_of_another_owner_is_unknown() -> None:
    def foreign(store: Store) -> None:
        for key in [key for key in store if "/privatednszones/privatelink.servicebus" in key]:
            del store[key]

    rows = {(row.role, row.need): row for row in rows_with("private", foreign)}
    assert "belongs to another owner" in str(rows["client", "queue"])
