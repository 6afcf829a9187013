"""Interface for all telemetry sources (witnesses), and the parser for the witnesses file.

Errors are :class:`~broadside.coordinator.device.ledgers.source.LedgerError`, as for ledgers. The
message should have the source, the reason and the fix, and must not include a secret.
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
    """Source of telemetry for one or more devices."""

    @property
    def name(self) -> str:
        """Name for reports, for example ``snmp fortinet 10.0.0.4``."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of the source, as named in findings, figures and charts."""

    @property
    def quantities(self) -> frozenset[Quantity]:
        """Quantities to request from each device.

        The first request shows which of them a device has.
        """

    @property
    def settle_s(self) -> float:
        """Time to wait in seconds until all telemetry for a point in time is available."""

    async def watch(self) -> None:
        """Poll until cancelled.

        A source with its own history returns at once.
        """

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """Return the telemetry in this time span.

        Args:
            from_at: Start time.
            before_at: End time.

        Raises:
            LedgerError: The source could not be read.
        """


class WitnessEntry(BaseModel):
    """Fields of every entry. Each source adds its own.

    Attributes:
        source: Name of the source.
        device: Device name in reports.
        cores_count: Number of CPU cores, to compute CPU-seconds per gigabyte.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    device: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$")]
    cores_count: Annotated[int, Field(ge=1, le=4096)] | None = None


class Read(BaseModel):
    """One quantity of a source and its location.

    Attributes:
        quantity: The quantity.
        scale: Factor to the unit of the quantity, for example 0.01 for a percentage.
        over_s: Seconds before a value over which it is averaged.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    quantity: Quantity
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    over_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0


def quantities_of(reads: Iterable[Read]) -> frozenset[Quantity]:
    return frozenset(read.quantity for read in reads)


def series_of(
    device: str, source: str, read: Read, at_s: Floats, values: Floats, **more: Any
) -> WitnessSeries:
    """Return a series from the values of a source.

    Args:
        device: Device name in reports.
        source: Source name in reports.
        read: Quantity, scale and averaging time.
        at_s: Times in epoch seconds.
        values: Values in the unit of the source, same length as ``at_s``.
        **more: ``bound_s`` (uncertainty of the times in seconds) and other fields of the series.
    """
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
    """Entry for a source that is read after a run and has unverified timestamps.

    Attributes:
        clock_bound_s: Uncertainty of the timestamps in seconds. ``None`` estimates the offset from
            the rise and fall of the values in the bursts. If this fails, the values are not used
            as evidence.
    """

    clock_bound_s: Annotated[float, Field(ge=0, le=3600)] | None = None

    @property
    def stated_bound_s(self) -> float:
        """Return the configured uncertainty in seconds, or NaN."""
        return math.nan if self.clock_bound_s is None else self.clock_bound_s


class PolledEntry(WitnessEntry):
    """Entry of a source that is polled.

    Attributes:
        poll_s: Time between polls in seconds.
    """

    poll_s: Annotated[float, Field(ge=0.2, le=3600)] = 5.0


Entry = TypeVar("Entry", bound=WitnessEntry)


def parsed(kind: type[Entry], entry: Mapping[str, Any]) -> Entry:
    """Return the validated fields of an entry.

    Args:
        kind: Model of the entry.
        entry: Table from the witnesses file.

    Raises:
        LedgerError: A field is not valid. The message does not include the value, because it can
            be a secret.
    """
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
    """Return the content of a file with one secret.

    Args:
        device: Device name in messages.
        field: Field name in messages.
        path: Path to the file.

    Raises:
        LedgerError: The path is missing, or the file is unreadable, empty or too large.
    """
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
    """Return the series of an incomplete response without values, and a remark about it.

    Args:
        device: Device name in reports.
        source: Source name in reports.
        series: Series in the response.
        why: Reason in the remark.
        from_s: Start time of the request, in epoch seconds.
        before_s: End time of the request, in epoch seconds.
    """
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
    """Source with its own history, read once after a run (see :class:`WitnessSource`).

    Attributes:
        name: Name in reports.
        devices: The device.
        quantities: Quantities to request.
        settle_s: Time in seconds after which the data is complete.
    """

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
        """Prepare the witness, without sending requests.

        Args:
            ask: Function that returns series and remarks of a span. It raises LedgerError.
            name: Name in reports.
            entry: Entry from the witnesses file.
            reads: Quantities to read.
            settle_s: Time in seconds after which the data is complete.
        """
        self.name = name
        self.devices = (entry.device,)
        self.quantities = quantities_of(reads)
        self.settle_s = settle_s
        self._ask = ask
        self._cores_count = entry.cores_count

    async def watch(self) -> None:
        """Return at once, because the source has its own history."""

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """Return the telemetry in this time span (see :meth:`WitnessSource.read`)."""
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
    """Return the witnesses of a file in its order, without sending requests yet.

    Raises:
        LedgerError: The file or an entry is not valid.
    """
    return () if path is None else tuple(map(open_witness, read_entries(path)))


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the tables of a witnesses file, with full paths for files beside it.

    Raises:
        LedgerError: The file is not valid.
    """
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
    """Return the witness of one entry, without sending requests yet.

    Raises:
        LedgerError: The entry is invalid or a package is not installed.
    """
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
    """Return the content of a TOML file with a size limit.

    Args:
        path: Path to the file.
        field: Setting name in messages.

    Raises:
        LedgerError: The file is unreadable, too large or not TOML.
    """
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
