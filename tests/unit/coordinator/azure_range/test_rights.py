"""Tests for roles, their scopes, and roles that are larger than needed."""

from typing import Any

import pytest

from broadside.coordinator.azure_range import rights
from broadside.coordinator.azure_range.rights import BUILT_IN, permits
from broadside.coordinator.azure_range.trace import HopState
from tests.azure_emulator.azure_catalogue import ROLES
from tests.unit.coordinator.azure_range.stored import Store, one, rows_with

BY_NAME = {role[0]: role for role in BUILT_IN.values()}


@pytest.mark.parametrize(
    ("role", "action", "expected"),
    [
        ("Storage Table Data Reader", rights.READ_ROWS, True),
        ("Storage Table Data Reader", rights.WRITE_ROWS[1], False),
        ("Storage Table Data Contributor", rights.DELETE_ROWS, True),
        ("Azure Service Bus Data Receiver", rights.SEND, False),
        # An owner of the subscription may not read data.
        ("Owner", rights.READ_BLOB, False),
        ("Owner", rights.READ_METRICS, True),
        ("Monitoring Reader", rights.READ_METRICS, True),
        ("Monitoring Reader", rights.START_VM, False),
        ("Network Contributor", rights.SWITCH_POLICY[1], True),
    ],
)
def test_role_permits_only_its_actions(role: str, action: str, expected: bool) -> None:
    assert permits(BY_NAME[role], action) is expected


def test_ids_are_those_of_the_emulator() -> None:
    names = {role[0]: role_id for role_id, role in BUILT_IN.items()}
    assert {name: names[name] for name in ROLES} == dict(ROLES)


def receivers(store: Store) -> list[dict[str, Any]]:
    principal = one(store, "/userassignedidentities/broadside-clients")["properties"]["principalId"]
    return [
        item
        for key, item in store.items()
        if "/queues/jobs/" in key and item["properties"].get("principalId") == principal
    ]


def test_scope_of_another_resource_is_named() -> None:
    def moved(store: Store) -> None:
        (item,) = receivers(store)
        item["properties"]["scope"] = item["properties"]["scope"].replace("/jobs", "/other")

    rows = {(row.role, row.need): row for row in rows_with("notebook", moved)}
    assert "lacks namespaces/messages/receive/action on jobs" in str(rows["client", "queue"])
    assert "is not needed" in str(rows["client", "rights"])


def test_scope_of_the_parent_works_and_is_too_large() -> None:
    def wide(store: Store) -> None:
        (item,) = receivers(store)
        item["properties"]["scope"] = item["properties"]["scope"].split("/queues/")[0]

    rows = {(row.role, row.need): row for row in rows_with("notebook", wide)}
    assert rows["client", "queue"].state is HopState.OK
    assert "larger than the resource" in str(rows["client", "rights"])


def test_an_identity_without_a_role_is_named() -> None:
    def none(store: Store) -> None:
        for item in receivers(store):
            del store[item["id"].lower()]

    rows = {(row.role, row.need): row for row in rows_with("notebook", none)}
    assert "broadside-clients lacks" in str(rows["client", "queue"])
