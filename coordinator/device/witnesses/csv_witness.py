"""Telemetry from an exported CSV file, one row per time and one column per quantity."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.testimony import Remark, RemarkKind, WitnessSeries
from broadside.coordinator.device.ledgers.csv_source import CsvFields, CsvForm, CsvLedger
from broadside.coordinator.device.witnesses.witness_file import (
    ArchiveEntry,
    ArchiveWitness,
    Read,
    parsed,
    series_of,
)


class Column(Read):
    column: str
    instance: str = ""


class CsvEntry(ArchiveEntry):
    csv_file: Path
    # Column to read times from (ISO 8601 or epoch times).
    time_column: str = "time"
    # Time zone for times without an offset.
    zone: str = "UTC"
    # Time after the end of a run until the file has all its rows.
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    read: Annotated[tuple[Column, ...], Field(min_length=1, max_length=64)]


def open_source(entry: Mapping[str, Any]) -> ArchiveWitness:
    """Return a witness that reads the file again for each run.

    An empty cell is unknown. Raises LedgerError when the entry is not valid.
    """
    named = parsed(CsvEntry, entry)
    name = f"csv {named.csv_file.name}"
    fields = CsvFields(
        path=f"witness {named.device}: csv_file",
        time_column="time_column",
        value_column="column",
        zone=f"witness {named.device}: zone",
    )

    async def ask(
        from_at: datetime, before_at: datetime
    ) -> tuple[list[WitnessSeries], list[Remark]]:
        found: list[WitnessSeries] = []
        remarks: list[Remark] = []
        for column in named.read:
            form = CsvForm(
                time_column=named.time_column, value_column=column.column, zone=named.zone
            )
            at_s, values = CsvLedger(named.csv_file, form, fields=fields).rows()
            series = series_of(
                named.device,
                name,
                column,
                at_s,
                values,
                instance=column.instance,
                bound_s=named.stated_bound_s,
            )
            within = series.within(from_at.timestamp(), before_at.timestamp())
            found.append(within)
            if len(at_s) and not len(within.at_s) and not remarks:
                remarks.append(_elsewhere(named.device, name, at_s, from_at, before_at))
        return found, remarks

    return ArchiveWitness(ask, name=name, entry=named, reads=named.read, settle_s=named.settle_s)


def _elsewhere(
    device: str, source: str, at_s: Floats, from_at: datetime, before_at: datetime
) -> Remark:
    """Return the remark for a file in which no row is within the run."""
    first, last = (
        f"{datetime.fromtimestamp(float(at), UTC):%Y-%m-%d %H:%M:%S}" for at in at_s[[0, -1]]
    )
    return Remark(
        kind=RemarkKind.UNPLACED,
        device=device,
        source=source,
        from_s=from_at.timestamp(),
        to_s=before_at.timestamp(),
        said=f"its rows reach from {first} to {last} UTC and none is of the run: check zone",
    )
