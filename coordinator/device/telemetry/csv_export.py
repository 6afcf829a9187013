"""Byte counter and other quantities from an exported CSV file, one row per time.

The file is read again for each query, in a thread, because a large file takes seconds. An empty
cell is an unknown value.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field

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
from broadside.coordinator.imports import BadFile, RowField
from broadside.coordinator.imports.column_profile import ColumnProfile, ProfileColumn
from broadside.coordinator.imports.table_reader import ProfileMismatch, TableReader
from broadside.coordinator.imports.time_text import parse_zone
from broadside.coordinator.imports.uploaded_files import read_text
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now

# Rows of one minute for one year.
_ROWS_MAX_COUNT: Final = 527_040
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
            self._zone = parse_zone(entry.zone)
        except ValueError as error:
            raise TelemetryError(
                f"telemetry {entry.device}: zone {entry.zone!r}: {error}"
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
        at_s, values = await asyncio.to_thread(self._column, counter.column)
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
            at_s, values = await asyncio.to_thread(self._column, column.column)
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
        names: dict[RowField, str] = {"started_at": entry.time_column, "metric": column}
        profile = ColumnProfile(
            title="values",
            columns={field: ProfileColumn(names=(name,)) for field, name in names.items()},
        )
        reader = TableReader(str(entry.file), profile, self._zone, _ROWS_MAX_COUNT)
        try:
            values = reader.values(read_text(entry.file))
        except ProfileMismatch as error:
            raise TelemetryError(
                f"telemetry {entry.device}: file {error}, or set time_column and column"
            ) from error
        except BadFile as error:
            raise TelemetryError(f"telemetry {entry.device}: file {error}") from error
        bins = np.array(
            [(at.timestamp(), value) for at, value in sorted(values.items())], dtype=float
        )
        return bins[:, 0], bins[:, 1]


def open_source(entry: Mapping[str, Any]) -> CsvSource:
    """Return the source for an entry of the telemetry file."""
    return CsvSource(parse_entry(CsvEntry, entry))
