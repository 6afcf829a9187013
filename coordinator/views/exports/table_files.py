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
        """Whether one file holds all tables."""
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
    """One file: of ``table``, or of all tables where the format holds them.

    A workbook opens on the ``summary``.

    Raises :class:`CannotWrite`.
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
    """The verdict in front, and a sheet a table: what people read first, the seconds last."""
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
