"""Price tables in TOML files, with the dated table in Broadside and overrides by the user."""

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


def load(overrides: Path | None = None) -> Prices:
    """Load the price table in Broadside, with overrides from a file.

    Args:
        overrides: Path of the file with overrides, or None.

    Raises:
        BadPrices: The file is invalid.
    """
    return override({} if overrides is None else read(overrides))


def read(path: Path) -> dict[str, Any]:
    """Read the overrides from a file as plain values.

    Raises:
        BadPrices: The file is invalid.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadPrices(f"prices {path}: {error.strerror}; name a readable file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadPrices(f"prices {path}: not valid TOML: {error}; see {NEWEST.name}") from error
    values.setdefault("name", path.stem)
    # We should check the values here, so that the error will be reported for this file.
    override(values)
    return values


def override(overrides: Mapping[str, Any]) -> Prices:
    """Return the price table in Broadside with some values replaced.

    Raises:
        BadPrices: A value is invalid.
    """
    table = tomllib.loads(NEWEST.read_text(encoding="utf-8"))
    try:
        return Prices.model_validate(_merged(table, overrides))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        value = "" if fault["type"] == "missing" else f" (got {fault['input']!r})"
        raise BadPrices(
            f"prices: {field}: {fault['msg']}{value}; see {NEWEST.name} for the form"
        ) from error


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to types that can be used in JSON."""
    plain_values: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain_values


def _merged(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Replace prices. A new price also replaces the bounds, source and note of the old one."""
    merged = dict(table)
    for key, value in overrides.items():
        old = merged.get(key)
        deeper = isinstance(old, Mapping) and isinstance(value, Mapping) and "usd" not in value
        merged[key] = _merged(old, value) if deeper else value  # type: ignore[arg-type]
    return merged
