"""Entries of the coordinator's telemetry file for devices in the lab."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def source_entry(fields: Mapping[str, Any]) -> str:
    """Return a ``[[source]]`` table. A value that is a table becomes an inline one."""
    return "\n".join(["[[source]]", *(f"{n} = {_toml(v)}" for n, v in fields.items()), ""])


def lab_entry(counter_path: Path) -> str:
    """Return the table of the lab firewall's byte counter."""
    return source_entry({"device": "lab", "type": "lab", "file": str(counter_path.absolute())})


def write_telemetry_file(path: Path, *entries: str) -> dict[str, str]:
    """Write a telemetry file.

    Args:
        path: File to write.
        *entries: Tables in TOML.

    Returns:
        Setting of the coordinator by variable name.
    """
    path.write_text("\n".join(entries))
    return {"BROADSIDE_TELEMETRY_FILE": str(path.absolute())}


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(v)}" for name, v in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
