"""Check of resources with the provider's schema: names, required arguments and block counts.

The schema is the output of ``terraform providers schema -json`` (``tests/data/azurerm``). It has
names and types. Texts that a service accepts are in :mod:`tests.deploy_check.range_rules`.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.deploy_check.hcl import Block, Module, is_expression

_META: Final = frozenset({"count", "for_each", "provider", "depends_on", "alias"})
_META_BLOCKS: Final = frozenset({"lifecycle", "provisioner", "connection", "timeouts"})
# Terraform defines these, not a provider.
_BUILT_IN: Final = frozenset({"terraform_data"})


class Schema:
    """Resources and data sources of one provider."""

    def __init__(self, printed: Mapping[str, Any]) -> None:
        self._resources: Mapping[str, Any] = printed["resource_schemas"]
        self._data: Mapping[str, Any] = printed["data_source_schemas"]
        self._provider: Mapping[str, Any] = printed["provider"]

    @classmethod
    def read(cls, path: Path) -> "Schema":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            (provider,) = json.load(file)["provider_schemas"].values()
        return cls(provider)

    def takes(self, kind: str, argument: str) -> bool:
        """Return whether a resource type has an argument."""
        return argument in self._resources.get(kind, {}).get("block", {}).get("attributes", {})

    def faults(self, module: Module) -> Iterator[str]:
        """Yield invalid and missing arguments of a module's resources and data sources."""
        for known, blocks in ((self._resources, module.resources), (self._data, module.data)):
            for (kind, name), block in blocks.items():
                text = f"{module}: {kind}.{name}"
                if kind in known:
                    yield from _block_faults(block, known[kind]["block"], text, top=True)
                elif kind not in _BUILT_IN:
                    yield f"{text}: the provider has no {kind}"
        for name, block in module.providers.items():
            yield from _block_faults(
                block, self._provider["block"], f"{module}: provider {name}", top=True
            )


def _block_faults(
    block: Block, schema: Mapping[str, Any], place: str, *, top: bool = False
) -> Iterator[str]:
    attributes: Mapping[str, Any] = schema.get("attributes", {})
    nested: Mapping[str, Any] = schema.get("block_types", {})
    for name, value in block.arguments.items():
        if top and name in _META:
            continue
        if name in nested:
            yield f"{place}: {name} is a block, not an argument"
        elif name not in attributes:
            yield f"{place}: has no argument {name}"
        elif not (attributes[name].get("required") or attributes[name].get("optional")):
            yield f"{place}: {name} is the provider's to set"
        elif not _fits(value, attributes[name].get("type")):
            yield f"{place}: {name} = {value!r} is no {attributes[name]['type']}"
    for name, attribute in attributes.items():
        if attribute.get("required") and name not in block.arguments:
            yield f"{place}: {name} is missing"
    for name, blocks in block.blocks.items():
        if top and name in _META_BLOCKS:
            continue
        if name not in nested:
            yield f"{place}: has no block {name}"
            continue
        for inner in blocks:
            yield from _block_faults(inner, nested[name]["block"], f"{place}.{name}")
    for name, kind in nested.items():
        yield from _count_faults(block.blocks.get(name, ()), kind, f"{place}.{name}")


def _count_faults(blocks: tuple[Block, ...], kind: Mapping[str, Any], place: str) -> Iterator[str]:
    sure = sum(not block.dynamic for block in blocks)
    if (least := kind.get("min_items", 0)) > len(blocks):
        yield f"{place}: {least} at least, not {len(blocks)}"
    if (most := kind.get("max_items", 0)) and sure > most:
        yield f"{place}: {most} at most, not {sure}"


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a literal fits a type. Expressions fit any type."""
    if value is None or is_expression(value) or kind is None:
        return True
    if isinstance(kind, list):
        outer, inner = kind
        if outer == "object":
            return isinstance(value, dict)
        if outer == "map":
            return isinstance(value, dict) and all(_fits(item, inner) for item in value.values())
        return isinstance(value, list) and all(_fits(item, inner) for item in value)
    if kind == "bool":
        return isinstance(value, bool) or value in ("true", "false")
    if kind == "number":
        return not isinstance(value, bool) and _is_number(value)
    return kind == "dynamic" or isinstance(value, str | int | float | bool)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
