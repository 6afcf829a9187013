"""Price tables as data files: the dated one that comes with Broadside, and a user's own over it."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from broadside.coordinator.core.plan.price import Prices

NEWEST: Final = Path(__file__).parent / "azure-2026-11.toml"


class BadPrices(Exception):
    """A price file cannot be used; one line that names file, field, value and fix."""


def load(own: Path | None = None) -> Prices:
    """The table that comes with Broadside, with every figure of ``own`` in place of its own.

    Raises :class:`BadPrices`.
    """
    return override({} if own is None else read(own))


def read(path: Path) -> dict[str, Any]:
    """A user's figures as plain values. Raises :class:`BadPrices`."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadPrices(f"prices {path}: {error.strerror}; name a readable file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadPrices(f"prices {path}: not valid TOML: {error}; see {NEWEST.name}") from error
    values.setdefault("name", path.stem)
    override(values)  # refuse a mistake where it is made
    return values


def override(own: Mapping[str, Any]) -> Prices:
    """The table that comes with Broadside under ``own`` figures. Raises :class:`BadPrices`."""
    table = tomllib.loads(NEWEST.read_text(encoding="utf-8"))
    try:
        return Prices.model_validate(_merged(table, own))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        value = "" if fault["type"] == "missing" else f" (got {fault['input']!r})"
        raise BadPrices(
            f"prices: {field}: {fault['msg']}{value}; see {NEWEST.name} for the form"
        ) from error


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values as JSON can carry them."""
    told: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return told


def _merged(table: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A new price takes the place of the old one, bounds, source and note with it."""
    merged = dict(table)
    for key, value in own.items():
        old = merged.get(key)
        deeper = isinstance(old, Mapping) and isinstance(value, Mapping) and "usd" not in value
        merged[key] = _merged(old, value) if deeper else value  # type: ignore[arg-type]
    return merged
