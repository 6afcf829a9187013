"""Byte counter of the lab firewall, from its CSV file with a row of total counters each second.

The firewall counts the bytes (IP layer) that it delivered in each direction. Dropped packets are
not included. Acknowledgements flow against the payload. If a run uses a single direction, only the
flow with the payload is read. If it uses both, the sum will be read, which includes
acknowledgements
(:func:`broadside.coordinator.core.measure.formulas.headers.acknowledged_max_ratio`).

If a counter decreases because the reader was restarted, the bin is unknown and not negative. If the
first reading is 0, the firewall is new and no earlier run has used it.
"""

import csv
import io
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.source import (
    ArchiveSource,
    ByteCounter,
    DataLatency,
    SourceEntry,
    TelemetryError,
)
from broadside.exchange.messages import Direction, Flow
from broadside.exchange.outage_log import utc_now

COLUMN_OF_FLOW = {Flow.UP: "up_bytes", Flow.DOWN: "down_bytes"}
DROPS_OF_FLOW = {Flow.UP: "up_drops_count", Flow.DOWN: "down_drops_count"}


class LabEntry(SourceEntry):
    """Configuration of a source for the lab's firewall."""

    file: Path
    byte_counter: ByteCounter = ByteCounter()


class LabSource(ArchiveSource):
    """Byte counter and drops of the lab firewall."""

    entry: LabEntry

    def __init__(self, entry: LabEntry) -> None:
        super().__init__(entry, name="lab", latency=DataLatency(settle_s=3.0))

    async def query_bytes(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> CounterRecord:
        """Return the bins of the byte counter (see :meth:`.ArchiveSource.query_bytes`).

        Args:
            from_at: Start time.
            before_at: End time.
            direction: Direction of the traffic, which selects the columns of the file.

        Raises:
            TelemetryError: The file cannot be read.
        """
        try:
            text = self.entry.file.read_text(encoding="utf-8")
        except OSError as error:
            raise TelemetryError(
                f"file {self.entry.file}: {error.strerror}; is the lab up?"
            ) from error
        at_s, total_bytes, total_drops = _readings(text, direction)
        new = len(at_s) > 0 and total_bytes[0] == 0
        counts_from_s = float(at_s[0]) if new else None
        inside = (at_s >= from_at.timestamp() - 1.5) & (at_s <= before_at.timestamp() + 1.5)
        at_s, bins, drops = at_s[inside], np.diff(total_bytes[inside]), np.diff(total_drops[inside])
        return CounterRecord(
            source=self.name,
            layer="ip",
            start_s=at_s[:-1],
            end_s=at_s[1:],
            bytes=np.where(bins >= 0, bins, np.nan),
            drops_count=np.where(drops >= 0, drops, np.nan),
            grain_s=1.0,
            flows=direction.flows,
            read_at=utc_now(),
            counts_from_s=counts_from_s,
            counts_lost=False,
        )


def _readings(text: str, direction: Direction) -> tuple[Floats, Floats, Floats]:
    """Return epoch seconds, cumulative bytes and drops of the requested flows.

    Incomplete lines are skipped. Drops are NaN if the file has no columns for them.
    """
    columns = [COLUMN_OF_FLOW[flow] for flow in direction.flows]
    drops = [DROPS_OF_FLOW[flow] for flow in direction.flows]
    lines = text.splitlines(keepends=True)
    complete = "".join(line for line in lines if line.endswith("\n") and not line.startswith("#"))
    rows = []
    for row in csv.DictReader(io.StringIO(complete)):
        try:
            counts = [sum(float(row[name]) for name in columns)]
            counts.append(sum(float(row.get(name) or "nan") for name in drops))
            rows.append((float(row["at_s"]), *counts))
        except (KeyError, TypeError, ValueError):
            continue
    readings = np.array(rows, dtype=float).reshape(-1, 3)
    return readings[:, 0], readings[:, 1], readings[:, 2]


def open_source(entry: Mapping[str, Any]) -> LabSource:
    """Return the source for an entry of the telemetry file."""
    return LabSource(parse_entry(LabEntry, entry))
