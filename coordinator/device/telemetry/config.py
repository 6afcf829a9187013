"""Parser of the telemetry file, a TOML file with one ``[[source]]`` table per device and system."""

import importlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from broadside.coordinator.device.telemetry import SOURCES
from broadside.coordinator.device.telemetry.source import (
    SourceEntry,
    TelemetryError,
    TelemetrySource,
)
from broadside.exchange.installation import bring_extra

FILE_MAX_BYTES: Final = 1 << 20
SOURCES_MAX_COUNT: Final = 64
# Settings of earlier versions. All their other settings had an effect only beside one of these.
_REPLACED: Final = ("BROADSIDE_LEDGER", "BROADSIDE_WITNESSES_FILE")
_FORM: Final = (
    'write a [[source]] table with type = "...", device = "..." and the fields of the type, and '
    "byte_counter = {} in the one that counts the bytes; see /docs/telemetry.html of the "
    "coordinator"
)

EntryType = TypeVar("EntryType", bound=SourceEntry)


def open_telemetry(path: Path | None) -> tuple[TelemetrySource, ...]:
    """Return the sources of a telemetry file in its order, without sending requests yet.

    Args:
        path: Path to the file. ``None`` means that no source is configured.

    Raises:
        TelemetryError: The file or an entry is not valid, or a setting of an earlier version is
            set.
    """
    refuse_replaced_settings()
    return () if path is None else tuple(map(open_entry, read_entries(path)))


def refuse_replaced_settings() -> None:
    """Check that no setting of an earlier version is set.

    Raises:
        TelemetryError: Such a setting is set. The message names its replacement.
    """
    if names := sorted(name for name in os.environ if name.startswith(_REPLACED)):
        raise TelemetryError(
            f"{', '.join(names)}: replaced by BROADSIDE_TELEMETRY_FILE, a TOML file; {_FORM}"
        )


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the tables of a telemetry file, with full paths for files beside it.

    Raises:
        TelemetryError: The file is not valid.
    """
    document = read_toml(path, "telemetry_file")
    entries = document.pop("source", [])
    if document or not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise TelemetryError(
            f"telemetry_file {path}: {', '.join(document) or 'source'}: not valid; {_FORM}"
        )
    if not 0 < len(entries) <= SOURCES_MAX_COUNT:
        raise TelemetryError(
            f"telemetry_file {path}: {len(entries)} sources; give 1 to {SOURCES_MAX_COUNT}"
        )
    return [_beside(path.parent, entry) for entry in entries]


def _beside(folder: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with paths relative to the folder of the telemetry file."""
    by_name: dict[str, Any] = {}
    for field, value in table.items():
        if isinstance(value, dict):
            by_name[field] = _beside(folder, value)
        elif isinstance(value, str) and (field == "file" or field.endswith("_file")):
            by_name[field] = str(folder / value)
        else:
            by_name[field] = value
    return by_name


def open_entry(entry: Mapping[str, Any]) -> TelemetrySource:
    """Return the source of one entry, without sending requests yet.

    Raises:
        TelemetryError: The entry is invalid or a package is not installed.
    """
    name = str(entry.get("type"))
    if name not in SOURCES:
        raise TelemetryError(
            f"telemetry {entry.get('device', '?')}: type {name!r} is unknown; use "
            f"one of {', '.join(SOURCES)}"
        )
    try:
        module = importlib.import_module(f"{__package__}.{SOURCES[name]}")
        source: TelemetrySource = module.open_source(entry)
    except ModuleNotFoundError as error:
        extra = "azure" if name.startswith("azure") else "telemetry"
        raise TelemetryError(
            f"telemetry type {name}: {error.name} is missing; {bring_extra(extra)}"
        ) from error
    return source


def parse_entry(kind: type[EntryType], entry: Mapping[str, Any]) -> EntryType:
    """Return the validated fields of an entry.

    Args:
        kind: Model of the entry.
        entry: Table from the telemetry file.

    Raises:
        TelemetryError: A field is not valid. The message does not include the value, because it
            can be a secret.
    """
    try:
        return kind.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise TelemetryError(
            f"telemetry {entry.get('device', '?')}: {field}: {first['msg']}; fields of "
            f"{entry.get('type')}: {', '.join(kind.model_fields)}"
        ) from None


def read_toml(path: Path, field: str) -> dict[str, Any]:
    """Return the content of a TOML file with a size limit.

    Args:
        path: Path to the file.
        field: Setting name in messages.

    Returns:
        Values by name, not validated.

    Raises:
        TelemetryError: The file is unreadable, too large or not TOML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
        if len(data) > FILE_MAX_BYTES:
            raise TelemetryError(f"{field} {path}: over {FILE_MAX_BYTES} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise TelemetryError(f"{field} {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise TelemetryError(f"{field} {path}: not TOML ({error})") from error
