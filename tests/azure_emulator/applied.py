"""Applied state of a stage: its resources for the walk, and its storage as a fixture."""

import json
import lzma
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from broadside.coordinator.azure_range.resources import Resources, properties, short
from broadside.coordinator.azure_range.rights import assignments, role_of
from broadside.coordinator.azure_range.trace import HopState
from broadside.coordinator.azure_range.walk import walk
from tests.azure_emulator.stage import Stage
from tests.deploy_check.tools import ROOT

FIXTURES: Final = ROOT / "tests" / "data" / "azure_range"
# Values of a Terraform state that are secrets in a real subscription.
_SECRET: Final = re.compile(r"key$|connection_string$|password", re.IGNORECASE)


def applied(stage: Stage, before: Collection[str] = ()) -> Resources:
    """Return the resources of a stage.

    Args:
        stage: Stage after `up`.
        before: Ids of the resources of other owners.
    """
    return Resources(
        by_id=stage.subscription.store,
        foreign=frozenset(key.lower() for key in before),
        blobs=frozenset(stage.data.blobs),
    )


def faults(resources: Resources) -> Iterator[str]:
    """Yield the needs that are not met, each with the hop that breaks."""
    return (str(row) for row in walk(resources) if row.state is HopState.BROKEN)


def granted(resources: Resources) -> dict[str, set[tuple[str, str]]]:
    """Return the data roles of each kind of VM, with the last part of their scope."""
    by_name: dict[str, set[tuple[str, str]]] = {}
    for item in resources.of_kind("userAssignedIdentities"):
        by_name[str(item["name"]).rsplit("-", 1)[-1]] = {
            (role_of(resources, one)[0], short(properties(one)["scope"]))
            for one in assignments(resources, properties(item)["principalId"])
            if "/microsoft.network/" not in properties(one)["scope"].lower()
        }
    by_name.pop("wake", None)
    return by_name


def store_fixture(stage: Stage, before: Collection[str], path: Path) -> None:
    """Write resources and Terraform state of a stage without secrets and local paths."""
    state = json.loads(stage.terraform("show", "-json").output)
    store = {
        key: {name: value for name, value in item.items() if name != "_taken"}
        for key, item in stage.subscription.store.items()
    }
    document = {
        "before": sorted(key.lower() for key in before),
        "blobs": sorted(stage.data.blobs),
        "store": store,
        "state": {"values": {"root_module": _without_secrets(state["values"]["root_module"])}},
    }
    text = json.dumps(document, sort_keys=True).replace(str(stage.folder), "/folder")
    path.write_bytes(lzma.compress(text.encode()))


def _without_secrets(value: Any) -> Any:
    match value:
        case dict():
            return {
                key: "x"
                if _SECRET.search(key) and isinstance(inner, str)
                else _without_secrets(inner)
                for key, inner in value.items()
                if key not in ("data_json", "sensitive_values")
            }
        case list():
            return [_without_secrets(inner) for inner in value]
    return value


def read_fixture(name: str) -> Mapping[str, Any]:
    """Return a stored state: ``store``, ``before``, ``blobs`` and ``state`` (of Terraform)."""
    document: dict[str, Any] = json.loads(
        lzma.decompress((FIXTURES / f"{name}.json.xz").read_bytes())
    )
    return document


def resources_of(document: Mapping[str, Any]) -> Resources:
    """Return the resources of a stored state."""
    return Resources(
        by_id=document["store"],
        foreign=frozenset(document["before"]),
        blobs=frozenset(document["blobs"]),
    )
