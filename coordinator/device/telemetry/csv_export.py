"""Byte counter and other quantities from an exported CSV file, one row per time.

The file is read again for each query. An empty cell is an unknown value.
"""

import csv
import io
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from pydantic import Field

from broadside.coordinator.core import formatting
from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import IssueKind, TelemetryIssue, TelemetrySeries
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.source import (
    ArchiveEntry,
    ArchiveSource,
    ByteCounter,
    ClockBound,
    DataLatency,
    Read,
    TelemetryError,
)
from broadside.coordinator.device.telemetry.timestamps import parse_timestamp
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now

# One year of one-minute rows takes about 16 MiB.
_FILE_MAX_BYTES: Final = 32 * 1_048_576
_BYTES_PER_S: Final[Mapping[str, float]] = {
    "bits_per_second": 1 / 8,
    "kilobits_per_second": 1e3 / 8,
    "megabits_per_second": 1e6 / 8,
    "gigabits_per_second": 1e9 / 8,
    "bytes_per_second": 1.0,
}
CsvUnit = Literal[
    "bits_per_second",
    "kilobits_per_second",
    "megabits_per_second",
    "gigabits_per_second",
    "bytes_per_second",
    "bytes",
    "bits",
]


class CsvColumn(Read):
    """Column to read from the file."""

    column: str
    instance: str = ""


class CsvByteCounter(ByteCounter):
    """Column of the byte counter, with bins of equal length.

    Attributes:
        column: Name of the column.
        unit: Unit of the values. ``bytes`` means bytes per bin, not a running total.
        label: Whether the time of a bin is its start or its end.
    """

    column: str = "bytes"
    unit: CsvUnit = "bytes"
    label: Literal["start", "end"] = "start"


class CsvEntry(ArchiveEntry):
    """Configuration of a CSV source."""

    file: Path
    # Column to read times from (ISO 8601 or epoch times).
    time_column: str = "time"
    # Time zone for times without an offset.
    zone: str = "UTC"
    clock_bound_s: ClockBound = np.nan
    byte_counter: CsvByteCounter | None = None
    read: Annotated[tuple[CsvColumn, ...], Field(max_length=64)] = ()


class CsvSource(ArchiveSource):
    """Columns of one file."""

    entry: CsvEntry

    def __init__(self, entry: CsvEntry) -> None:
        """Check the entry, without reading the file.

        Raises:
            TelemetryError: The time zone is unknown, or the entry names no column.
        """
        try:
            self._zone = ZoneInfo(entry.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise TelemetryError(
                f"telemetry {entry.device}: zone {entry.zone!r}: no such time zone; give one such "
                "as Europe/Berlin"
            ) from error
        if not entry.read and entry.byte_counter is None:
            raise TelemetryError(f"telemetry {entry.device}: read, byte_counter: set one")
        self._where = f"telemetry {entry.device}: file {entry.file}"
        settle_s = entry.settle_s or 0.0
        super().__init__(
            entry,
            name=f"csv {entry.file.name}",
            reads=entry.read,
            latency=DataLatency(settle_s=settle_s, reread_s=5.0, timeout_s=settle_s + 60),
        )

    async def query_bytes(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> CounterRecord:
        """Return the bins of the byte counter (see :meth:`.ArchiveSource.query_bytes`).

        Args:
            from_at: Start time.
            before_at: End time.
            direction: Direction of the traffic. The column counts what the user exported, so it is
                not used.

        Raises:
            TelemetryError: The file cannot be read, has less than two rows, or irregular times.
        """
        counter = self.entry.byte_counter or CsvByteCounter()
        at_s, values = self._column(counter.column)
        place = self._where
        if len(at_s) > 1 and np.diff(at_s).min() < 0.99 * np.median(np.diff(at_s)):
            raise TelemetryError(f"{place}: its rows are not a regular interval apart")
        grain_s = float(np.median(np.diff(at_s))) if len(at_s) > 1 else 0.0
        if not grain_s:
            raise TelemetryError(f"{place}: {len(at_s)} rows; give two or more")
        start_s = at_s - (grain_s if counter.label == "end" else 0.0)
        rate = _BYTES_PER_S.get(counter.unit)
        amount = 1 / 8 if counter.unit == "bits" else 1.0
        counts = values * amount if rate is None else values * rate * grain_s
        inside = (start_s < before_at.timestamp()) & (start_s + grain_s > from_at.timestamp())
        return CounterRecord(
            source=self.name,
            start_s=start_s[inside],
            end_s=start_s[inside] + grain_s,
            bytes=counts[inside],
            grain_s=grain_s,
            read_at=utc_now(),
        )

    async def query_series(
        self, from_at: datetime, before_at: datetime
    ) -> tuple[list[TelemetrySeries], list[TelemetryIssue]]:
        """Return the columns, with an issue if no row is within the run.

        Args:
            from_at: Start time.
            before_at: End time.

        Returns:
            Series with the rows between both times, and at most one issue.

        Raises:
            TelemetryError: The file cannot be read.
        """
        results: list[TelemetrySeries] = []
        issues: list[TelemetryIssue] = []
        for column in self.entry.read:
            at_s, values = self._column(column.column)
            series = self.series(
                column, at_s, values, bound_s=self.entry.clock_bound_s, instance=column.instance
            ).within(from_at.timestamp(), before_at.timestamp())
            results.append(series)
            if len(at_s) and not len(series.at_s) and not issues:
                first, last = (f"{datetime.fromtimestamp(s, UTC):%F %T}" for s in at_s[[0, -1]])
                text = f"its rows are from {first} to {last} UTC, so none is in the run"
                issues.append(
                    self.issue(IssueKind.UNPLACED, f"{text}; check zone", from_at, before_at)
                )
        return results, issues

    def _column(self, column: str) -> tuple[Floats, Floats]:
        """Return times in epoch seconds and unconverted values, sorted by time."""
        entry = self.entry
        return read_column(
            entry.file, entry.time_column, column, self._zone, error_prefix=self._where
        )


def read_column(
    path: Path, time_column: str, value_column: str, zone: tzinfo, *, error_prefix: str
) -> tuple[Floats, Floats]:
    """Return a column of a CSV file, sorted by time.

    Args:
        path: Path to the file.
        time_column: Name of the column with times (ISO 8601 or epoch times).
        value_column: Name of the column with values.
        zone: Time zone for times without an offset.
        error_prefix: Prefix of error messages.

    Returns:
        Times in epoch seconds, and values. NaN is an empty value.

    Raises:
        TelemetryError: The file cannot be read or a row is invalid.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TelemetryError(f"{error_prefix}: {reason}") from error
    if len(data) > _FILE_MAX_BYTES:
        raise TelemetryError(
            f"{error_prefix}: larger than {formatting.size(_FILE_MAX_BYTES)}; export only the "
            "time of the run"
        )
    rows = csv.DictReader(io.StringIO(text))
    by_name: dict[float, float] = {}
    try:
        for column, field in ((time_column, "time_column"), (value_column, "column")):
            if column not in (rows.fieldnames or ()):
                names = ", ".join(rows.fieldnames or ()) or "none"
                raise TelemetryError(
                    f"{error_prefix}: no column {column!r}; it has {names}; set {field}"
                )
        for row in rows:
            at_s = parse_timestamp(row[time_column] or "", zone)
            if at_s in by_name:
                raise ValueError(f"{row[time_column]!r} occurs twice")
            by_name[at_s] = _value(row[value_column] or "")
    except ValueError as error:
        raise TelemetryError(f"{error_prefix}, line {rows.line_num}: {error}") from error
    except csv.Error as error:
        raise TelemetryError(f"{error_prefix}: not CSV ({error})") from error
    bins = np.array(sorted(by_name.items()), dtype=float).reshape(-1, 2)
    return bins[:, 0], bins[:, 1]


def _value(text: str) -> float:
    """Return a number, or NaN for an empty cell. Raises ``ValueError``."""
    if not text.strip():
        return float("nan")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(
            f"{text!r} is not a number >= 0; write plain digits, or leave an unknown value empty"
        )
    return value


def open_source(entry: Mapping[str, Any]) -> CsvSource:
    """Return the source for an entry of the telemetry file."""
    return CsvSource(parse_entry(CsvEntry, entry))
