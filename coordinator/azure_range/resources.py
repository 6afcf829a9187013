"""Azure resources of a range in the form of the Resource Manager, indexed by id."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Network
from typing import Any

Resource = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of a range and the resources of other owners that it uses.

    Attributes:
        by_id: Resources by id in lower case.
        foreign: Ids in lower case of the resources of other owners.
        blobs: URLs of uploaded blobs, or None if they are unknown.
        is_complete: False if resources of other owners are missing, as in a Terraform state.
    """

    by_id: Mapping[str, Resource]
    foreign: Set[str] = field(default_factory=frozenset)
    blobs: Set[str] | None = None
    is_complete: bool = True

    def get(self, resource_id: str | None) -> Resource | None:
        """Return a resource, or None if the id is missing or unknown."""
        return self.by_id.get((resource_id or "").lower().rstrip("/"))

    def is_foreign(self, resource_id: str) -> bool:
        """Return whether the resource belongs to another owner."""
        key = resource_id.lower()
        if key in self.by_id:
            return key in self.foreign
        return not self.is_complete

    @cached_property
    def _kinds(self) -> Mapping[str, list[Resource]]:
        kinds: dict[str, list[Resource]] = {}
        for resource in self.by_id.values():
            kinds.setdefault(str(resource["type"]).lower().rsplit("/", 1)[1], []).append(resource)
        return kinds

    def of_kind(self, kind: str) -> list[Resource]:
        """Return the resources of a kind, such as ``subnets``."""
        return self._kinds.get(kind.lower(), [])

    def children(self, parent_id: str | None, kind: str) -> Iterator[Resource]:
        """Yield the child resources of a kind.

        Args:
            parent_id: Id of the parent, in any case. None or an empty id has no children.
            kind: Last part of the resource type, such as ``routes``.
        """
        prefix = f"{(parent_id or 'none').lower()}/"
        return (item for item in self.of_kind(kind) if str(item["id"]).lower().startswith(prefix))


def properties(resource: Resource | None) -> Mapping[str, Any]:
    """Return the properties of a resource, empty if there is none."""
    return (resource or {}).get("properties") or {}


def reference(fields: Mapping[str, Any], name: str) -> str:
    """Return the id in a field such as ``{"id": ...}``, or an empty string.

    Args:
        fields: Properties of a resource.
        name: Name of the field with the reference.
    """
    return str((fields.get(name) or {}).get("id") or "")


def short(resource_id: str) -> str:
    """Return the last part of an id, or ``(none)``."""
    return resource_id.rstrip("/").rsplit("/", 1)[-1] or "(none)"


def parent_id(resource_id: str) -> str:
    """Return the id of the parent resource."""
    return resource_id.rsplit("/", 2)[0]


def prefixes(subnet: Resource) -> list[IPv4Network]:
    """Return the address prefixes of a subnet."""
    fields = properties(subnet)
    texts = fields.get("addressPrefixes") or [fields.get("addressPrefix")]
    return [IPv4Network(text, strict=False) for text in texts if text]


def address_space(network: Resource | None) -> list[IPv4Network]:
    """Return the address space of a virtual network."""
    space = properties(network).get("addressSpace") or {}
    return [IPv4Network(text, strict=False) for text in space.get("addressPrefixes") or ()]
