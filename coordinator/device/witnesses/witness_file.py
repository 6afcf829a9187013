"""What every witness of the device promises, and how the file of witnesses is read.

Raises :class:`~coordinator.device.ledgers.source.LedgerError`, as ledgers do: a source that cannot
be read says which, why, and what to do, and never a secret.
"""

import importlib
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.core.measure.testimony import Witnessed
from coordinator.device.ledgers.source import LedgerError
from coordinator.device.witnesses import module_of, source_names

FILE_MAX_BYTES: Final = 1 << 20
SECRET_MAX_BYTES: Final = 4096
WITNESSES_MAX_COUNT: Final = 64


class WitnessSource(Protocol):
    """Somebody who tells of a device, or of several."""

    @property
    def name(self) -> str:
        """What a reader looks up: ``snmp fortinet 10.0.0.4``."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Of whom it tells; as findings, figures and charts name them."""

    @property
    def settle_s(self) -> float:
        """Seconds after an instant from which all is told that will be told of it."""

    async def watch(self) -> None:
        """Ask on a clock, until cancelled, where it keeps no history of its own; else return."""

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """What it has said of the span. Raises LedgerError."""


class WitnessEntry(BaseModel):
    """What every witness is told; each source adds its own fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    device: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$")]
    cores_count: Annotated[int, Field(ge=1, le=4096)] | None = None  # for CPU-seconds a gigabyte


class PolledEntry(WitnessEntry):
    """What is asked on a clock."""

    poll_s: Annotated[float, Field(ge=0.2, le=3600)] = 5.0


Entry = TypeVar("Entry", bound=WitnessEntry)


def parsed(kind: type[Entry], entry: Mapping[str, Any]) -> Entry:
    """An entry's fields. Raises LedgerError that names the field, and never its value: it may be
    a secret that somebody wrote there."""
    try:
        return kind.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise LedgerError(
            f"witness {entry.get('device', '?')}: {where}: {first['msg']}; fields of "
            f"{entry.get('source')}: {', '.join(kind.model_fields)}"
        ) from None


def secret_of(device: str, field: str, path: Path | None) -> str:
    """What a file of one secret holds. Raises LedgerError."""
    if path is None:
        raise LedgerError(f"witness {device}: {field}: not set; name a file that holds it alone")
    try:
        with path.open("rb") as file:
            text = file.read(SECRET_MAX_BYTES + 1).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise LedgerError(f"witness {device}: {field} {path}: {reason}") from None
    if not text or len(text) > SECRET_MAX_BYTES:
        raise LedgerError(f"witness {device}: {field} {path}: empty, or over {SECRET_MAX_BYTES} B")
    return text


def open_witnesses(path: Path | None) -> tuple[WitnessSource, ...]:
    """The witnesses that a file names, in its order; nothing is asked yet. Raises LedgerError."""
    if path is None:
        return ()
    document = read_toml(path, "witnesses_file")
    entries = document.pop("witness", [])
    if document or not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise LedgerError(
            f"witnesses_file {path}: {', '.join(document) or 'witness'}: write one [[witness]] "
            "table for each; see docs/witnesses.md"
        )
    if not 0 < len(entries) <= WITNESSES_MAX_COUNT:
        raise LedgerError(
            f"witnesses_file {path}: {len(entries)} witnesses; 1 to {WITNESSES_MAX_COUNT} can be"
        )
    return tuple(_open(entry, path.parent) for entry in entries)


def _open(entry: dict[str, Any], base: Path) -> WitnessSource:
    name = entry.get("source")
    if not isinstance(name, str) or name not in source_names():
        raise LedgerError(
            f"witness {entry.get('device', '?')}: source {name!r}: none of "
            f"{', '.join(source_names())}"
        )
    beside = {
        field: str(base / value)
        if field.endswith(("_file", "_path")) and isinstance(value, str)
        else value
        for field, value in entry.items()
    }
    try:
        module = importlib.import_module(module_of(name))
    except ModuleNotFoundError as error:
        extra = "azure" if name.startswith("azure") else "witnesses"
        raise LedgerError(
            f"witness source {name}: {error.name} is missing; pip install 'broadside[{extra}]'"
        ) from error
    opened: WitnessSource = module.open_source(beside)
    return opened


def read_toml(path: Path, field: str) -> dict[str, Any]:
    """A bounded TOML file. Raises LedgerError."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
        if len(data) > FILE_MAX_BYTES:
            raise LedgerError(f"{field} {path}: over {FILE_MAX_BYTES} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise LedgerError(f"{field} {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LedgerError(f"{field} {path}: not TOML ({error})") from error
