"""Contract of all telemetry sources, and the fields that their entries share.

Errors::

    TelemetryError       the source cannot be read. The message has source, reason and fix.
    └── TelemetryBusy    the source throttles requests and gives a time to wait.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import (
    EXTREMES,
    FLOWS_COUNTED,
    FORMER_AGGREGATIONS,
    CounterDirection,
    CounterLayer,
    CounterRecord,
)
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
)
from broadside.exchange.messages import Aggregation, Direction, renamed_values
from broadside.exchange.outage_log import utc_now

# We need to limit the time to wait if it is requested by a source, because the value is external
# input.
BUSY_MAX_S: Final = 600.0
SECRET_MAX_BYTES: Final = 4096


class TelemetryError(Exception):
    """Failed read of a telemetry source. The message must not contain a secret."""


class TelemetryBusy(TelemetryError):
    """Throttled read of a telemetry source.

    Attributes:
        retry_after_s: Time to wait in seconds, at most ``BUSY_MAX_S``.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        # The comparison is also false for NaN.
        bounded = 0 <= retry_after_s <= BUSY_MAX_S
        self.retry_after_s = retry_after_s if bounded else BUSY_MAX_S


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLatency:
    """Time to wait until the newest values from a source are stable.

    Attributes:
        settle_s: Time in seconds after the end of a bin from which its value should not change.
        lag_s: Maximum delay in seconds between traffic and the label of its bin.
        reread_s: Seconds between two reads that must agree. ``None`` means that one read is enough.
        timeout_s: Seconds after the end of a run at which the values are used as they are. It must
            be longer than ``settle_s``.
    """

    settle_s: float
    lag_s: float = 0.0
    reread_s: float | None = None
    timeout_s: float = 60.0


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Secret(_Fields):
    """Secret in an environment variable or in a file of its own.

    Attributes:
        env: Name of the variable. Variables ``BROADSIDE_...`` are not passed to other programs.
        file: Path to the file.
    """

    env: Annotated[str, Field(pattern=r"^BROADSIDE_[A-Z0-9_]+$")] | None = None
    file: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(_FORM)
        return value

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError(_FORM)
        return self

    def read(self, device: str) -> str:
        """Return the secret.

        Args:
            device: Device name in messages.

        Raises:
            TelemetryError: The variable is not set, or the file is unreadable or too large.
        """
        name = self.env or str(self.file)
        try:
            text = os.environ.get(self.env, "") if self.env else _read_start(self.file or Path())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise TelemetryError(f"telemetry {device}: secret {name}: {reason}") from None
        text = text.strip()
        if not text or len(text) > SECRET_MAX_BYTES:
            raise TelemetryError(
                f"telemetry {device}: secret {name}: empty, or over {SECRET_MAX_BYTES} B"
            )
        return text


_FORM: Final = 'write { env = "BROADSIDE_..." } or { file = "..." } in place of the secret'


def _read_start(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(SECRET_MAX_BYTES + 1).decode()


class ByteCounter(_Fields):
    """Properties of the counter whose bytes are compared with the fleet's.

    Attributes:
        layer: Layer at which the device counts bytes.
        direction: Direction that it counts.
        mss_bytes: TCP payload of a full packet, if the engines do not report it.
        counts_lost: Whether it counts packets before it drops any.
        lag_s: Seconds by which the labels are later than the traffic. ``None`` estimates them.
        aggregation: What a value is of its bin.
    """

    layer: CounterLayer = "unknown"
    direction: CounterDirection = "both"
    mss_bytes: Annotated[int, Field(ge=88, le=65_535)] | None = None
    counts_lost: bool | None = None
    lag_s: Annotated[float, Field(ge=-900, le=900)] | None = None
    aggregation: Annotated[
        Literal[Aggregation.MEAN, Aggregation.MAX, Aggregation.MIN],
        renamed_values(FORMER_AGGREGATIONS),
    ] = Aggregation.MEAN

    def declare(self, device_counter: CounterRecord) -> CounterRecord:
        """Return a counter with the properties that are configured."""
        configured: dict[str, Any] = {
            "layer": None if self.layer == "unknown" else self.layer,
            "flows": None if self.direction == "both" else FLOWS_COUNTED[self.direction],
            "mss_bytes": self.mss_bytes,
            "counts_lost": self.counts_lost,
            "lag_hint_s": self.lag_s,
            "extreme": EXTREMES.get(self.aggregation),
        }
        return replace(
            device_counter, **{n: value for n, value in configured.items() if value is not None}
        )


class SourceEntry(_Fields):
    """Fields of every ``[[source]]`` table. Each type adds its own.

    Attributes:
        type: Type of the source.
        device: Device name in reports.
        cores_count: Number of CPU cores, to compute CPU-seconds per gigabyte.
        byte_counter: The device counter, or ``None`` if this source has none.
    """

    type: str
    device: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$")]
    cores_count: Annotated[int, Field(ge=1, le=4096)] | None = None
    byte_counter: ByteCounter | None = None

    @property
    def cores_by_device(self) -> dict[str, int] | None:
        return None if self.cores_count is None else {self.device: self.cores_count}


class ArchiveEntry(SourceEntry):
    """Entry of a system with its own history.

    Attributes:
        settle_s: Seconds in which the newest values may still change. ``None`` is the default of
            the type.
    """

    settle_s: Annotated[float, Field(ge=0, le=3600)] | None = None


# Uncertainty of unverified timestamps in seconds. NaN estimates the offset from the rise and fall
# of the values in the bursts. If this fails, the values will not be used as evidence.
ClockBound = Annotated[float, Field(ge=0, le=3600)]


class Read(_Fields):
    """One quantity of a source and its location.

    Attributes:
        quantity: The quantity.
        scale: Factor to the unit of the quantity, for example 0.01 for a percentage.
        over_s: Seconds before a value over which it is averaged.
    """

    quantity: Quantity
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    over_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0

    @field_validator("quantity")
    @classmethod
    def _of_device(cls, value: Quantity) -> Quantity:
        if value is Quantity.SEEN_UNITS:
            raise ValueError(f"{value} is measured by the fleet; use {Quantity.UNITS.value}")
        return value


class TelemetrySource(Protocol):
    """Telemetry of one device from one system.

    Attributes:
        name: Name in reports, for example ``snmp fortinet 10.0.0.4``.
        counter_name: Name of its byte counter in plans and reports.
        entry: Configuration of the source.
        quantities: Quantities to query. The first query shows which of them the device has.
        latency: Time to wait until values are stable.
    """

    @property
    def name(self) -> str: ...
    @property
    def counter_name(self) -> str: ...
    @property
    def entry(self) -> SourceEntry: ...
    @property
    def quantities(self) -> frozenset[Quantity]: ...
    @property
    def latency(self) -> DataLatency: ...

    async def poll_forever(self) -> None:
        """Poll until cancelled. A source with its own history returns at once."""

    async def query(self, from_at: datetime, before_at: datetime) -> DeviceTelemetry:
        """Return all quantities in a time span.

        Args:
            from_at: Start time.
            before_at: End time.

        Raises:
            TelemetryError: The source could not be read.
        """


class ArchiveSource(ABC):
    """Base class of sources with their own history, queried after a run."""

    def __init__(
        self,
        entry: SourceEntry,
        *,
        name: str,
        latency: DataLatency,
        reads: Iterable[Read] = (),
        counter_name: str | None = None,
    ) -> None:
        self.name = name
        self.counter_name = counter_name or name
        self.entry = entry
        self.latency = latency
        self.quantities = frozenset(read.quantity for read in reads)

    async def poll_forever(self) -> None:  # noqa: B027  # nothing to poll
        """Return at once, because the system has its own history."""

    async def query(self, from_at: datetime, before_at: datetime) -> DeviceTelemetry:
        """Return all quantities in a time span (see :meth:`TelemetrySource.query`).

        Args:
            from_at: Start time.
            before_at: End time.

        Raises:
            TelemetryError: The source could not be read.
        """
        series, issues = await self.query_series(from_at, before_at)
        return DeviceTelemetry(
            devices=(self.entry.device,),
            series=tuple(replace(item, is_archive=True) for item in series if len(item.at_s)),
            issues=tuple(issues),
            read_at=utc_now(),
            cores_count=self.entry.cores_by_device,
        )

    async def query_series(
        self, from_at: datetime, before_at: datetime
    ) -> tuple[Sequence[TelemetrySeries], Sequence[TelemetryIssue]]:
        """Return the series in a time span. The default has none.

        Args:
            from_at: Start time.
            before_at: End time.

        Returns:
            Series with values in SI units, and problems of the source in the span.
        """
        return (), ()

    @abstractmethod
    async def query_bytes(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> CounterRecord:
        """Return the bins of the byte counter that overlap a time span.

        A bin is NaN (unknown) if it has not ended or if its value may not have arrived yet.

        Args:
            from_at: Start time.
            before_at: End time.
            direction: Direction of the traffic.

        Raises:
            TelemetryError: The source could not be read.
        """

    def series(
        self, read: Read, at_s: Floats, values: Floats, *, bound_s: float, instance: str = ""
    ) -> TelemetrySeries:
        """Return a series from the values of the system.

        Args:
            read: Quantity, scale and averaging time.
            at_s: Times in epoch seconds.
            values: Values in the unit of the system, same length as ``at_s``.
            bound_s: Uncertainty of the times in seconds, or NaN.
            instance: Part of the device.
        """
        return TelemetrySeries(
            device=self.entry.device,
            source=self.name,
            quantity=read.quantity,
            instance=instance,
            at_s=at_s,
            over_s=np.full(len(at_s), read.over_s),
            bound_s=np.full(len(at_s), bound_s),
            values=values * read.scale,
        )

    def issue(
        self, kind: IssueKind, text: str, from_at: datetime, before_at: datetime
    ) -> TelemetryIssue:
        return TelemetryIssue(
            kind=kind,
            device=self.entry.device,
            source=self.name,
            from_s=from_at.timestamp(),
            to_s=before_at.timestamp(),
            text=text,
        )


def without_values(series: Iterable[TelemetrySeries]) -> list[TelemetrySeries]:
    """Return the series of an incomplete response with unknown values."""
    return [replace(item, values=np.full(len(item.values), math.nan)) for item in series]
