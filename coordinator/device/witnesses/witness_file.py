"""What every witness of the device promises, and how the file of witnesses is read.

Raises :class:`~broadside.coordinator.device.ledgers.source.LedgerError`, as ledgers do: a source
that cannot be read says which, why, and what to do, and never a secret.
"""

import importlib
import math
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.testimony import (
    Quantity,
    Remark,
    RemarkKind,
    Witnessed,
    WitnessSeries,
)
from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.coordinator.device.witnesses import module_of, source_names
from broadside.exchange.installation import bring_extra

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
    def quantities(self) -> frozenset[Quantity]:
        """What it is set to ask of each; whether a device has it shows when it is asked."""

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


class Read(BaseModel):
    """One figure of a source that is told where it stands."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    quantity: Quantity
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # 0.01: it is a percentage
    over_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0  # the mean of so many seconds before


def quantities_of(reads: Iterable[Read]) -> frozenset[Quantity]:
    return frozenset(read.quantity for read in reads)


def series_of(
    device: str, source: str, read: Read, at_s: Floats, values: Floats, **more: Any
) -> WitnessSeries:
    """A series from what a source told, in its own unit and scale; more: instance, bound_s."""
    bound_s = more.pop("bound_s", 0.0)
    return WitnessSeries(
        device=device,
        source=source,
        quantity=read.quantity,
        at_s=at_s,
        over_s=np.full(len(at_s), read.over_s),
        bound_s=np.full(len(at_s), bound_s),
        values=values * read.scale,
        **more,
    )


class ArchiveEntry(WitnessEntry):
    """What is read after a run, with time stamps that cannot be checked by asking.

    ``clock_bound_s`` states by how much the stamps may be off. Unset: the offset is estimated from
    the rise and fall of the figures with the bursts; where that cannot be, they prove nothing.
    """

    clock_bound_s: Annotated[float, Field(ge=0, le=3600)] | None = None

    @property
    def stated_bound_s(self) -> float:
        """The stated bound; NaN where there is none."""
        return math.nan if self.clock_bound_s is None else self.clock_bound_s


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


def secret_if_any(device: str, field: str, path: Path | None) -> str | None:
    return None if path is None else secret_of(device, field, path)


def partial_of(
    device: str,
    source: str,
    series: Sequence[WitnessSeries],
    why: str,
    from_s: float,
    before_s: float,
) -> tuple[list[WitnessSeries], Remark]:
    """Return the series of an incomplete answer without their values, and the remark on it."""
    blank = [replace(each, values=np.full(len(each.values), np.nan)) for each in series]
    remark = Remark(
        kind=RemarkKind.PARTIAL,
        device=device,
        source=source,
        from_s=from_s,
        to_s=before_s,
        said=why,
    )
    return blank, remark


class ArchiveWitness:
    """One whose device or service keeps its own history: asked once, when a run is over; see
    :class:`WitnessSource`."""

    def __init__(
        self,
        ask: Callable[
            [datetime, datetime], Awaitable[tuple[Sequence[WitnessSeries], Sequence[Remark]]]
        ],
        *,
        name: str,
        entry: WitnessEntry,
        reads: Iterable[Read],
        settle_s: float,
    ) -> None:
        """``ask`` gives what there is of a span, with remarks, and raises LedgerError."""
        self.name = name
        self.devices = (entry.device,)
        self.quantities = quantities_of(reads)
        self.settle_s = settle_s
        self._ask = ask
        self._cores_count = entry.cores_count

    async def watch(self) -> None:
        """There is nothing to remember."""

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        [device], cores_count = self.devices, self._cores_count
        series, remarks = await self._ask(from_at, before_at)
        return Witnessed(
            devices=self.devices,
            series=tuple(replace(each, is_archive=True) for each in series if len(each.at_s)),
            remarks=tuple(remarks),
            read_at=datetime.now(UTC),
            cores_count=None if cores_count is None else {device: cores_count},
        )


def open_witnesses(path: Path | None) -> tuple[WitnessSource, ...]:
    """The witnesses that a file names, in its order; nothing is asked yet. Raises LedgerError."""
    return () if path is None else tuple(map(open_witness, read_entries(path)))


def read_entries(path: Path) -> list[dict[str, Any]]:
    """The tables of such a file, with files beside it named whole. Raises LedgerError."""
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
    return [
        {
            field: str(path.parent / value)
            if field.endswith("_file") and isinstance(value, str)
            else value
            for field, value in entry.items()
        }
        for entry in entries
    ]


def open_witness(entry: Mapping[str, Any]) -> WitnessSource:
    """The witness of one entry; nothing is asked yet. Raises LedgerError."""
    name = entry.get("source")
    if not isinstance(name, str) or name not in source_names():
        raise LedgerError(
            f"witness {entry.get('device', '?')}: source {name!r}: none of "
            f"{', '.join(source_names())}"
        )
    try:
        module = importlib.import_module(module_of(name))
    except ModuleNotFoundError as error:
        extra = "azure" if name.startswith("azure") else "witnesses"
        raise LedgerError(
            f"witness source {name}: {error.name} is missing; {bring_extra(extra)}"
        ) from error
    opened: WitnessSource = module.open_source(entry)
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
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise LedgerError(f"{field} {path}: not TOML ({error})") from error
