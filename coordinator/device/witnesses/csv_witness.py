"""What somebody exported of a device as CSV: a row an instant, a column a quantity."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from coordinator.core.measure.testimony import Witnessed
from coordinator.device.ledgers.csv_source import CsvFields, CsvForm, CsvLedger
from coordinator.device.witnesses.witness_file import (
    Read,
    WitnessEntry,
    parsed,
    quantities_of,
    said_by,
    series_of,
)


class Column(Read):
    column: str
    instance: str = ""


class CsvEntry(WitnessEntry):
    csv_file: Path
    time_column: str = "time"  # ISO 8601, or epoch seconds
    zone: str = "UTC"  # of times without an offset
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 0.0  # until the rows of a run are all there
    read: Annotated[tuple[Column, ...], Field(min_length=1, max_length=64)]


class CsvWitness:
    """Read anew each time; an empty cell is unknown."""

    def __init__(self, entry: CsvEntry) -> None:
        self.name = f"csv {entry.csv_file.name}"
        self.devices = (entry.device,)
        self.quantities = quantities_of(entry.read)
        self.settle_s = entry.settle_s
        self._entry = entry

    async def watch(self) -> None:
        """A file keeps its own history."""

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        entry = self._entry
        found = []
        for column in entry.read:
            form = CsvForm(
                time_column=entry.time_column, value_column=column.column, zone=entry.zone
            )
            fields = CsvFields(
                path=f"witness {entry.device}: csv_file",
                time_column="time_column",
                value_column="column",
                zone=f"witness {entry.device}: zone",
            )
            at_s, values = CsvLedger(entry.csv_file, form, fields=fields).rows()
            series = series_of(
                entry.device, self.name, column, at_s, values, instance=column.instance
            )
            found.append(series.within(from_at.timestamp(), before_at.timestamp()))
        return said_by(entry, found)


def open_source(entry: Mapping[str, Any]) -> CsvWitness:
    return CsvWitness(parsed(CsvEntry, entry))
