"""Azure resource ids: kind, parent, and references in a body."""

import re
import uuid
from collections.abc import Iterator
from typing import Any, Final

_PROVIDERS: Final = re.compile(r"/providers/", re.IGNORECASE)


def named(path: str) -> tuple[str, list[str], list[str]]:
    """Return namespace, types and names of the last resource in a path."""
    last = _PROVIDERS.split(path)[-1]
    if "/providers/" not in path.lower():
        parts = path.strip("/").split("/")
        return "Microsoft.Resources", parts[0::2], parts[1::2]
    parts = last.split("/")
    return parts[0], parts[1::2], parts[2::2]


def kind_of(path: str) -> str:
    """Return the kind ``Microsoft.X/types`` as the path spells it."""
    namespace, types, _ = named(path)
    if "/providers/" not in path.lower() and types[-1].lower() == "resourcegroups":
        return "Microsoft.Resources/resourceGroups"
    return "/".join([namespace, *types])


def parent_of(path: str) -> str | None:
    """Return the required parent, or None for resources of the subscription."""
    if "/providers/" not in path.lower():
        return None
    _, types, _ = named(path)
    if len(types) > 1:
        return path.rsplit("/", 2)[0]
    return "/providers/".join(_PROVIDERS.split(path)[:-1]) or None


def group_of(path: str) -> str | None:
    """Return the id of the resource group in lower case."""
    match = re.match(r"/subscriptions/[^/]+/resourcegroups/[^/]+", path.lower())
    return match[0] if match else None


def references(value: Any, position: str = "") -> Iterator[tuple[str, str]]:
    """Yield every resource id in a body with its position."""
    match value:
        case dict():
            for key, inner in value.items():
                if key.lower().startswith("/subscriptions/"):
                    yield position, key
                yield from references(inner, f"{position}.{key}")
        case list():
            for inner in value:
                yield from references(inner, position)
        case str() if value.lower().startswith("/subscriptions/") and "\n" not in value:
            yield position, value


def guid(text: str) -> str:
    """Return a GUID that depends only on the text."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, text.lower()))
