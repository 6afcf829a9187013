"""Tests for flows between the fleets, and for closed paths."""

import copy

from broadside.coordinator.azure_range.terraform_state import read_state
from broadside.coordinator.azure_range.trace import State
from broadside.coordinator.azure_range.walk import walk
from tests.unit.coordinator.azure_range.stored import (
    Store,
    document,
    drop,
    one,
    replace_given,
    rows_with,
)


def test_icmp_is_no_need_if_no_rule_names_it() -> None:
    def without(store: Store) -> None:
        for name in ("clients", "servers"):
            drop(store, f"/networksecuritygroups/broadside-{name}/securityrules/echo")
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
    assert states["server", "vxlan to client, udp 8472"] is State.OK


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
    assert set(traffic) == {State.UNKNOWN}
