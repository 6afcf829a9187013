"""Table files in JSON, CSV, Arrow, Parquet and Excel. Unknown values are empty.

Parquet, Arrow and Excel need the extra ``tables``.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import numpy as np
from pydantic_core import to_json

from broadside.coordinator.core.measure.grid.second_table import Column
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.core.verdict_reason import explain_verdict
from broadside.coordinator.views.metric_rows import metric_rows
from broadside.exchange.installation import bring_extra

JSON: Final = "application/json"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
PARQUET: Final = "application/vnd.apache.parquet"
XLSX: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
# Accepts any of the types as a file.
FILE: Final = "application/octet-stream"

# First characters of a formula in a spreadsheet.
_FORMULA: Final = ("=", "+", "-", "@")
# Rows of a sheet without the header row.
ROWS_MAX: Final = 1_048_575
_NUMBER_FORMATS: Final = {
    "bit/s": "#,##0",
    "B": "#,##0",
    "ratio": "0.00%",
    "s": "0.000",
    "count": "#,##0",
}
_VERDICT_COLOURS: Final = {"pass": "#e3f3e9", "fail": "#fdeaea", "inconclusive": "#fdf1da"}
_XLSX_OPTIONS: Final = {
    "in_memory": True,
    "nan_inf_to_errors": False,
    # Labels and findings can contain text from users.
    "strings_to_formulas": False,
    "strings_to_urls": False,
}

Metadata = Mapping[str, Any]
Columns = Sequence[Column]


class NotAcceptable(Exception):
    """No media type that the caller accepts is available."""


class CannotWrite(Exception):
    """The file cannot be written. The message is one line to show to the user."""


class Format(StrEnum):
    """File format of a table."""

    CSV = "csv"
    XLSX = "xlsx"
    PARQUET = "parquet"
    ARROW = "arrow"
    JSON = "json"

    @property
    def is_single_file(self) -> bool:
        """Return True if one file contains all tables."""
        return self in (Format.XLSX, Format.JSON)

    @property
    def media_type(self) -> str:
        return {"csv": CSV, "xlsx": XLSX, "parquet": PARQUET, "arrow": ARROW, "json": JSON}[self]


def chosen_format(accept: str | None, offered: Sequence[str] = ()) -> str:
    """Return the best media type for an ``Accept`` header (RFC 9110, section 12.5.1).

    Args:
        accept: Header value. None or empty accepts everything.
        offered: Types that can be returned. If several types match equally, the first is used.
            Defaults to ``FORMATS``.

    Raises:
        NotAcceptable: No available type is acceptable.
    """
    offered = offered or tuple(FORMATS)
    if accept is None or not accept.strip():
        return offered[0]
    ranges: dict[str, float] = {}
    for part in accept.split(","):
        name, *parameters = [piece.strip() for piece in part.split(";")]
        ranges[name.lower()] = _weight(parameters)
    best, chosen = 0.0, None
    for offer in offered:
        kind = offer.partition("/")[0]
        weight = next((ranges[name] for name in (offer, f"{kind}/*", "*/*") if name in ranges), 0.0)
        if weight > best:
            best, chosen = weight, offer
    if chosen is None:
        raise NotAcceptable(f"Accept: {accept[:100]!r}; there is {', '.join(offered)}")
    return chosen


def _weight(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def as_json(metadata: Metadata, columns: Columns) -> bytes:
    """Return columns as JSON, with one array for each column. Unknown values are null.

    Args:
        metadata: Additional members of the JSON object.
        columns: Columns to convert.
    """
    return to_json({**metadata, "columns": _described(columns)}, inf_nan_mode="null")


def _described(columns: Columns) -> list[Mapping[str, Any]]:
    return [
        {"name": column.name, "unit": column.unit, "layer": column.layer, "values": _values(column)}
        for column in columns
    ]


def as_csv(_: Metadata, columns: Columns) -> bytes:
    """Return columns as CSV. An unknown value is an empty cell.

    The column names contain unit and layer.

    Args:
        _: Not used, because CSV has no place for metadata.
        columns: Columns of equal length.

    Returns:
        UTF-8 text with a header row and CRLF line ends.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([column.name for column in columns])
    cells = [[_csv_cell(value) for value in _values(column)] for column in columns]
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue().encode()


def _csv_cell(value: Any) -> Any:
    """Return a CSV cell. Text that a spreadsheet would run as a formula is quoted."""
    if isinstance(value, str):
        text = "".join(letter if letter.isprintable() else " " for letter in value)
        return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
    return "" if value is None or value != value else value


def _values(column: Column) -> list[Any]:
    if column.values.dtype.kind == "M":
        texts = np.datetime_as_string(column.values, unit="s").tolist()
        return [None if text == "NaT" else f"{text}Z" for text in texts]
    values: list[Any] = column.values.tolist()
    return values


def as_arrow(metadata: Metadata, columns: Columns) -> bytes:
    """Return columns as an Arrow IPC stream. The field metadata contains unit and layer.

    Args:
        metadata: Table metadata.
        columns: Columns to convert.
    """
    import pyarrow as pa

    table = _arrow_table(metadata, columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def as_parquet(metadata: Metadata, columns: Columns) -> bytes:
    """Return columns as a Parquet file, with the metadata of ``as_arrow``.

    Args:
        metadata: Table metadata.
        columns: Columns to convert.
    """
    import pyarrow as pa
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(_arrow_table(metadata, columns), sink)
    return bytes(sink.getvalue())


def _arrow_table(metadata: Metadata, columns: Columns) -> Any:
    import pyarrow as pa

    arrays, fields = [], []
    for column in columns:
        kind = column.values.dtype.kind
        if kind == "M":
            array = pa.array(column.values.astype("datetime64[ms]")).cast(pa.timestamp("ms", "UTC"))
        elif kind == "f":
            array = pa.array(column.values, mask=np.isnan(column.values))
        elif kind == "i":
            values = np.ma.asarray(column.values)
            array = pa.array(values.filled(0), mask=np.ma.getmaskarray(values))
        else:
            array = pa.array(column.values.tolist(), pa.string())
        details = {"unit": column.unit, **({"layer": column.layer} if column.layer else {})}
        arrays.append(array)
        fields.append(pa.field(column.name, array.type, metadata=details))
    known = {name: str(value) for name, value in metadata.items() if value is not None}
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=known))


FORMATS: Final[Mapping[str, Callable[[Metadata, Columns], bytes]]] = {
    JSON: as_json,
    CSV: as_csv,
    ARROW: as_arrow,
    PARQUET: as_parquet,
}


def render(media_type: str, metadata: Metadata, columns: Columns) -> bytes:
    """Return columns in a format of ``FORMATS``.

    Args:
        media_type: Media type of the result.
        metadata: Table metadata.
        columns: Columns to convert.

    Raises:
        NotAcceptable: pyarrow is not installed.
    """
    try:
        return FORMATS[media_type](metadata, columns)
    except ModuleNotFoundError as error:
        raise NotAcceptable(
            f"{media_type}: {error.name} is not installed on the coordinator; "
            f"{bring_extra('tables')}, or accept JSON or CSV"
        ) from error


def write(
    chosen: Format,
    metadata: Metadata,
    tables: Mapping[str, Columns],
    table: str,
    summary: RunSummary | None = None,
) -> bytes:
    """Return the content of a file with one table, or with all tables if the format allows it.

    Args:
        chosen: File format.
        metadata: Metadata to write into the file.
        tables: The run's tables by name.
        table: Name of the table to write, for formats with one table.
        summary: Summary for the first sheet of a workbook. None to omit this sheet.

    Raises:
        CannotWrite: A required package is missing, or the table does not fit the format.
    """
    try:
        match chosen:
            case Format.XLSX:
                return _xlsx(metadata, tables, summary)
            case Format.JSON:
                parts = {name: _described(columns) for name, columns in tables.items()}
                return to_json({**metadata, "tables": parts}, inf_nan_mode="null")
            case _:
                return FORMATS[chosen.media_type]({**metadata, "table": table}, tables[table])
    except ModuleNotFoundError as error:
        raise CannotWrite(
            f"format {chosen.value}: {error.name} is not installed; {bring_extra('tables')}, or "
            "choose csv or json"
        ) from error


def _xlsx(metadata: Metadata, tables: Mapping[str, Columns], summary: RunSummary | None) -> bytes:
    """Return a workbook with the verdict first, then one sheet for each table."""
    import xlsxwriter

    for name, columns in tables.items():
        rows = len(columns[0].values) if columns else 0
        if rows > ROWS_MAX:
            raise CannotWrite(
                f"format xlsx: {name} has {rows} rows, the limit of a sheet is {ROWS_MAX}; use csv "
                "or parquet"
            )
    content = io.BytesIO()
    book = xlsxwriter.Workbook(content, _XLSX_OPTIONS)
    if summary is not None:
        _add_verdict(book, metadata, summary)
    for name in reversed(list(tables)):
        _add_table(book, name, tables[name])
    book.close()
    return content.getvalue()


def _add_verdict(book: Any, metadata: Metadata, summary: RunSummary) -> None:
    """Add a sheet with verdict, metadata, metrics and findings."""
    worksheet = book.add_worksheet("verdict")
    worksheet.set_column(0, 0, 52)
    worksheet.set_column(1, 4, 22)
    bold, wrap = book.add_format({"bold": True}), book.add_format({"text_wrap": True})
    time = book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"})
    colour = _VERDICT_COLOURS.get(summary.verdict.value, "#e9f1f8")
    headline = book.add_format({"bold": True, "font_size": 18, "bg_color": colour})
    worksheet.write_string(0, 0, summary.verdict.value, headline)
    row = 2
    for name, value in metadata.items():
        worksheet.write_string(row, 0, name, bold)
        if name.endswith("_at"):
            at = datetime.fromisoformat(value).astimezone(UTC).replace(tzinfo=None)
            worksheet.write_datetime(row, 1, at, time)
        else:
            worksheet.write(row, 1, value)
        row += 1
    titles = ("metric", "layer", "measured", "measured, base unit", "at real scale, base unit")
    worksheet.write_row(row + 1, 0, titles, bold)
    row += 2
    for metric in metric_rows(summary):
        worksheet.write_row(row, 0, (metric.label, metric.layer, metric.measured))
        if metric.value is not None:
            scale = 1 if metric.scaled_metric is None else summary.scale
            worksheet.write_row(row, 3, (metric.value, metric.value * scale))
        row += 1
    worksheet.write_string(row + 1, 0, "findings", bold)
    row += 1
    for finding in explain_verdict(summary).findings:
        row += 1
        worksheet.write_string(row, 0, finding.severity)
        next_step = f" Next: {finding.next_step}" if finding.next_step else ""
        worksheet.merge_range(row, 1, row, 4, finding.sentence + next_step, wrap)
        worksheet.set_row(row, 15 * (1 + len(finding.sentence + next_step) // 88))


def _add_table(book: Any, name: str, columns: Columns) -> None:
    """Add a sheet with a table. The header row contains the units, and has filters."""
    worksheet = book.add_worksheet(name)
    worksheet.freeze_panes(1, 1)
    bold = book.add_format({"bold": True, "text_wrap": True, "valign": "top"})
    time = book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"})
    formats = {
        unit: book.add_format({"num_format": text}) for unit, text in _NUMBER_FORMATS.items()
    }
    for index, column in enumerate(columns):
        unit = column.unit if column.layer is None else f"{column.unit}, {column.layer}"
        title = column.name if column.unit == "name" else f"{column.name} [{unit}]"
        worksheet.write_string(0, index, title, bold)
        kind = column.values.dtype.kind
        worksheet.set_column(index, index, 19 if kind in "MU" else 15)
        values = column.values.astype("datetime64[ms]") if kind == "M" else column.values
        cell_format = time if kind == "M" else formats.get(column.unit)
        for row, value in enumerate(values.tolist(), 1):
            # Cells of unknown values stay empty.
            if value not in (None, "") and value == value:
                worksheet.write(row, index, value, cell_format)
    if columns:
        worksheet.autofilter(0, 0, len(columns[0].values), len(columns) - 1)
