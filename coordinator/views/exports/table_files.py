"""Writes tables as files. Excel and Parquet need the extra ``reports``."""

import io
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import numpy as np
from pydantic_core import from_json, to_json

from coordinator.core.measure.second_table import Column
from coordinator.views.exports.run_tables import Tables

_EXCEL_ROWS_MAX: Final = 1_048_575  # below the header


class CannotWrite(Exception):
    """The file cannot be made; the message is one line for a person."""


class Format(StrEnum):
    CSV = "csv"
    XLSX = "xlsx"
    PARQUET = "parquet"
    JSON = "json"

    @property
    def whole(self) -> bool:
        """Whether one file holds all tables."""
        return self in (Format.XLSX, Format.JSON)

    @property
    def media_type(self) -> str:
        return {
            Format.CSV: "text/csv",
            Format.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            Format.PARQUET: "application/vnd.apache.parquet",
            Format.JSON: "application/json",
        }[self]


def write(chosen: Format, head: Mapping[str, Any], tables: Tables, table: str) -> bytes:
    """One file: of ``table``, or of all tables where the format holds them.

    Raises :class:`CannotWrite`.
    """
    from coordinator.views.series_formats import (  # the API's package imports this one
        as_csv,
        as_parquet,
    )

    try:
        match chosen:
            case Format.CSV:
                return as_csv(head, tables[table])
            case Format.PARQUET:
                return as_parquet({**head, "table": table}, tables[table])
            case Format.XLSX:
                return _excel(head, tables)
            case Format.JSON:
                return _json(head, tables)
    except ModuleNotFoundError as error:
        raise CannotWrite(
            f"format {chosen.value}: {error.name} is missing; pip install 'broadside[reports]', "
            "or choose csv or json"
        ) from error


def _json(head: Mapping[str, Any], tables: Tables) -> bytes:
    from coordinator.views.series_formats import as_json  # as above

    parts = {name: from_json(as_json({}, columns))["columns"] for name, columns in tables.items()}
    return to_json({**head, "tables": parts}, inf_nan_mode="null")


def _excel(head: Mapping[str, Any], tables: Tables) -> bytes:
    """A workbook with a sheet a table; the first line of each says units and layers."""
    import xlsxwriter

    out = io.BytesIO()
    book = xlsxwriter.Workbook(out, {"in_memory": True, "nan_inf_to_errors": False})
    bold = book.add_format({"bold": True, "text_wrap": True, "valign": "top"})
    instant = book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"})
    for name, columns in tables.items():
        sheet = book.add_worksheet(name)
        sheet.freeze_panes(1, 0)
        rows = len(columns[0].values) if columns else 0
        if rows > _EXCEL_ROWS_MAX:
            raise CannotWrite(
                f"format xlsx: {name} has {rows} rows, a sheet holds {_EXCEL_ROWS_MAX}; "
                "use csv or parquet"
            )
        for place, column in enumerate(columns):
            sheet.write_string(0, place, _titled(column), bold)
            sheet.set_column(place, place, 19 if column.values.dtype.kind in "MU" else 13)
            _fill(sheet, place, column.values, instant)
    about = book.add_worksheet("about")
    about.set_column(0, 1, 34)
    for place, (key, value) in enumerate(head.items()):
        about.write_string(place, 0, key)
        about.write_string(place, 1, str(value))
    book.close()
    return out.getvalue()


def _titled(column: Column) -> str:
    unit = column.unit if column.layer is None else f"{column.unit}, {column.layer}"
    return f"{column.name} [{unit}]"


def _fill(sheet: Any, place: int, values: np.ndarray[Any, Any], instant: Any) -> None:
    """Cells of what is known; the rest stays empty."""
    kind = values.dtype.kind
    if kind == "M":
        for row, at in enumerate(values.astype("datetime64[ms]").tolist()):
            if at is not None:
                sheet.write_datetime(row + 1, place, at, instant)
    elif kind == "U":
        for row, text in enumerate(values.tolist()):
            if text:
                sheet.write_string(row + 1, place, text)
    else:
        for row, number in enumerate(values.tolist()):
            if number == number:
                sheet.write_number(row + 1, place, number)
