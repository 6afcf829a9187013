"""Catalogue of harmless canary signatures, ``canary_signatures.toml``."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError


@cache
def canary_catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of each signature in the catalogue, by name."""
    path = Path(__file__).with_name("canary_signatures.toml")
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: {"name": name, **fields} for name, fields in entries.items()}


def with_named_signatures(value: object) -> object:
    """Replace the names of signatures by their fields. Other values are returned unchanged.

    Raises:
        PydanticCustomError: There is no signature with this name.
    """
    return tuple(map(_signature, value)) if isinstance(value, list | tuple) else value


def _signature(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in canary_catalogue():
        known = {"names": ", ".join(canary_catalogue())}
        raise PydanticCustomError("signature", "Signature should be one of {names}", known)
    return canary_catalogue()[value]
