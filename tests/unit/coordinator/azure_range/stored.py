"""Stored ranges, with changes."""

import base64
import copy
from collections.abc import Callable
from functools import cache
from typing import Any

from broadside.coordinator.azure_range.resources import Resources
from broadside.coordinator.azure_range.trace import TraceRow
from broadside.coordinator.azure_range.walk import walk
from tests.azure_emulator.applied import read_fixture, resources_of

Store = dict[str, dict[str, Any]]
document = cache(read_fixture)


def range_with(state: str, change: Callable[[Store], None]) -> Resources:
    """Return the resources of a stored range after a change."""
    stored = document(state)
    store = copy.deepcopy(stored["store"])
    change(store)
    return resources_of({**stored, "store": store})


def rows_with(state: str, change: Callable[[Store], None]) -> list[TraceRow]:
    return walk(range_with(state, change))


def one(store: Store, end: str) -> dict[str, Any]:
    """Return the only resource whose id ends with these parts."""
    (key,) = (key for key in store if key.endswith(end.lower()))
    return store[key]


def drop(store: Store, end: str) -> None:
    (key,) = (key for key in store if key.endswith(end.lower()))
    del store[key]


def replace_given(store: Store, end: str, before: str, after: str) -> None:
    """Replace a text in the custom data of a VM or scale set."""
    fields = one(store, end)["properties"]
    profile = (fields.get("virtualMachineProfile") or fields)["osProfile"]
    text = base64.b64decode(profile["customData"]).decode()
    assert before in text
    profile["customData"] = base64.b64encode(text.replace(before, after).encode()).decode()
