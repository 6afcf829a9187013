"""Tests for the parts of a range that no VM uses."""

from collections.abc import Callable
from typing import Any

import pytest

from broadside.coordinator.azure_range.trace import HopState
from tests.unit.coordinator.azure_range.stored import Store, drop, one, rows_with


def set_(end: str, name: str, value: Any) -> Callable[[Store], None]:
    return lambda store: one(store, end)["properties"].update({name: value})


def untagged(store: Store) -> None:
    one(store, "/natgateways/broadside-hub")["tags"] = {}


def other_count(store: Store) -> None:
    one(store, "sets/broadside-clients")["sku"]["capacity"] += 1


def diagnostics(store: Store) -> None:
    drop(
        store,
        "/azurefirewalls/broadside-firewall/providers/microsoft.insights/diagnosticsettings/broadside",
    )


CASES: list[tuple[Callable[[Store], None], str]] = [
    (untagged, "tags for down"),
    (other_count, "one of each VM"),
    (diagnostics, "charts"),
    (set_("-clients/subnets/agents", "networkSecurityGroup", None), "every part is in use"),
    (set_("/budgets/broadside-monthly", "notifications", {}), "budget"),
    (set_("-clients-shutdown", "enabled", False), "nightly stop"),
    (set_("/workflows/broadside-wake", "state", "Disabled"), "morning start"),
    (lambda store: drop(store, "/workflows/broadside-wake"), "morning start"),
    (set_("/containers/agent", "publicAccess", "Blob"), "storage is closed"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "need"), CASES)
def test_detects_a_changed_resource(change: Callable[[Store], None], need: str) -> None:
    rows = {row.need: row for row in rows_with("notebook", change)}
    assert rows[need].state is HopState.BROKEN, str(rows[need])


def test_options_may_be_absent() -> None:
    def without(store: Store) -> None:
        kinds = ("/budgets/", "/diagnosticsettings/", "/workflows/", "/schedules/", "-wake",
                 "/autoscalesettings/", "/workspaces/", "/components/")  # fmt: skip
        for key in [key for key in store if any(kind in key for kind in kinds)]:
            del store[key]

    rows = {row.need: row for row in rows_with("notebook", without)}
    for need in ("budget", "charts", "nightly stop", "morning start"):
        assert rows[need].state is HopState.OK, str(rows[need])
