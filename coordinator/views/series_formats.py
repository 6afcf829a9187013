"""Conversion of tables to JSON, CSV, Arrow or Parquet, as requested by ``Accept``."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from pydantic_core import to_json

from broadside.coordinator.core.measure.grid.second_table import Column
from broadside.exchange.installation import bring_extra

JSON: Final = "application/json"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
PARQUET: Final = "application/vnd.apache.parquet"
# Accepts any of the types as a file.
FILE: Final = "application/octet-stream"


class NotAcceptable(Exception):
    """Nothing that the caller accepts can be made."""


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
    for each in offered:
        kind = each.partition("/")[0]
        weight = next((ranges[name] for name in (each, f"{kind}/*", "*/*") if name in ranges), 0.0)
        if weight > best:
            best, chosen = weight, each
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


def as_json(head: Mapping[str, Any], columns: Sequence[Column]) -> bytes:
    """Convert columns to JSON, with one array for each column. Unknown values are null.

    Args:
        head: Additional members of the JSON object.
        columns: Columns to convert.
    """
    return to_json({**head, "columns": described(columns)}, inf_nan_mode="null")


def described(columns: Sequence[Column]) -> list[Mapping[str, Any]]:
    """Return the columns in their JSON form, in which NaN is not yet replaced with null."""
    return [
        {
            "name": column.name,
            "unit": column.unit,
            "layer": column.layer,
            "values": _values(column),
        }
        for column in columns
    ]


def as_csv(_: Mapping[str, Any], columns: Sequence[Column]) -> bytes:
    """Convert columns to CSV. An unknown value is an empty cell.

    The column names contain unit and layer.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([column.name for column in columns])
    cells = [[_cell(value) for value in _values(column)] for column in columns]
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Return a CSV cell. Text that a spreadsheet would run as a formula is quoted."""
    if isinstance(value, str):
        text = "".join(letter if letter.isprintable() else " " for letter in value)
        return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
    return "" if value is None or value != value else value


def as_arrow(head: Mapping[str, Any], columns: Sequence[Column]) -> bytes:
    """Convert columns to an Arrow IPC stream. The field metadata contains unit and layer.

    Args:
        head: Table metadata.
        columns: Columns to convert.
    """
    import pyarrow as pa

    table = _arrow_table(head, columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def as_parquet(head: Mapping[str, Any], columns: Sequence[Column]) -> bytes:
    """Convert columns to a Parquet file, with the metadata of ``as_arrow``.

    Args:
        head: Table metadata.
        columns: Columns to convert.
    """
    import pyarrow as pa
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(_arrow_table(head, columns), sink)
    return bytes(sink.getvalue())


# First characters of a formula in a spreadsheet.
_FORMULA: Final = ("=", "+", "-", "@")

FORMATS: Final[Mapping[str, Callable[[Mapping[str, Any], Sequence[Column]], bytes]]] = {
    JSON: as_json,
    CSV: as_csv,
    ARROW: as_arrow,
    PARQUET: as_parquet,
}


def render(media_type: str, head: Mapping[str, Any], columns: Sequence[Column]) -> bytes:
    """Convert columns to a format in ``FORMATS``.

    Args:
        media_type: Media type of the result.
        head: Table metadata.
        columns: Columns to convert.

    Raises:
        NotAcceptable: pyarrow is not installed.
    """
    try:
        return FORMATS[media_type](head, columns)
    except ModuleNotFoundError as error:
        raise NotAcceptable(
            f"{media_type}: {error.name} is missing where the coordinator runs; "
            f"{bring_extra('reports')}, or accept JSON or CSV"
        ) from error


def _values(column: Column) -> list[Any]:
    if column.values.dtype.kind == "M":
        told = np.datetime_as_string(column.values, unit="s").tolist()
        return [None if text == "NaT" else f"{text}Z" for text in told]
    values: list[Any] = column.values.tolist()
    return values


def _arrow_table(head: Mapping[str, Any], columns: Sequence[Column]) -> Any:
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
        metadata = {"unit": column.unit, **({"layer": column.layer} if column.layer else {})}
        arrays.append(array)
        fields.append(pa.field(column.name, array.type, metadata=metadata))
    known = {name: str(value) for name, value in head.items() if value is not None}
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=known))
