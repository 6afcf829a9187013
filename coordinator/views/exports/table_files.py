"""Writes tables as files. Excel and Parquet need the extra ``reports``."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic_core import to_json

from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.views.exports.run_tables import Tables
from broadside.coordinator.views.series_formats import ARROW, CSV, FORMATS, JSON, PARQUET, described
from broadside.exchange.installation import bring_extra


class CannotWrite(Exception):
    """The file cannot be made; the message is one line for a person."""


class Format(StrEnum):
    CSV = "csv"
    XLSX = "xlsx"
    PARQUET = "parquet"
    ARROW = "arrow"
    JSON = "json"

    @property
    def whole(self) -> bool:
        """Return True if one file contains all tables."""
        return self in (Format.XLSX, Format.JSON)

    @property
    def media_type(self) -> str:
        return {
            Format.CSV: CSV,
            Format.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            Format.PARQUET: PARQUET,
            Format.ARROW: ARROW,
            Format.JSON: JSON,
        }[self]


def write(
    chosen: Format,
    head: Mapping[str, Any],
    tables: Tables,
    table: str,
    summary: RunSummary | None = None,
) -> bytes:
    """Return the content of a file with one table, or with all tables if the format allows it.

    Args:
        chosen: File format.
        head: Metadata to write into the file.
        tables: The run's tables by name.
        table: Name of the table to write, for formats with one table.
        summary: Summary for the first sheet of a workbook. None to omit this sheet.

    Raises:
        CannotWrite: A required package is missing, or the table does not fit the format.
    """
    try:
        match chosen:
            case Format.XLSX:
                return _excel(head, tables, summary)
            case Format.JSON:
                parts = {name: described(columns) for name, columns in tables.items()}
                return to_json({**head, "tables": parts}, inf_nan_mode="null")
            case _:
                return FORMATS[chosen.media_type]({**head, "table": table}, tables[table])
    except ModuleNotFoundError as error:
        raise CannotWrite(
            f"format {chosen.value}: {error.name} is missing; {bring_extra('reports')}, "
            "or choose csv or json"
        ) from error


def _excel(head: Mapping[str, Any], tables: Tables, summary: RunSummary | None) -> bytes:
    """Return a workbook with the verdict first, then one sheet for each table."""
    from broadside.coordinator.views.exports.workbook import ROWS_MAX, Workbook

    for name, columns in tables.items():
        rows = len(columns[0].values) if columns else 0
        if rows > ROWS_MAX:
            raise CannotWrite(
                f"format xlsx: {name} has {rows} rows, a sheet holds {ROWS_MAX}; use csv or parquet"
            )
    book = Workbook()
    if summary is not None:
        book.front(head, summary, tables)
    for name in reversed(list(tables)):
        book.table(name, tables[name])
    return book.close()
