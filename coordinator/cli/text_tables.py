"""Output of lists as a table, as JSON or in another format, and progress lines."""

import pkgutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Annotated, Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broadside.coordinator.cli.command_group import Output, print_json
from broadside.coordinator.cli.terminal_text import one_line, write_bytes
from broadside.coordinator.core import formatting
from broadside.exchange.messages import Message

# Width without a terminal, so that no row is wrapped.
UNWRAPPED_WIDTH: Final = 100_000
# Minimum width of a column whose text has several words.
_TEXT_WIDTH: Final = 24
# Spaces between two columns.
_GAP: Final = 2
# The unit in a field name defines the format of its value.
_FORMATS: Final[Mapping[str, Callable[[float | None], str]]] = {
    "bits_per_second": formatting.rate,
    "_ratio": formatting.ratio,
    "_bytes": formatting.size,
    "_usd": formatting.dollars,
    "_s": formatting.time,
}

# Field path such as ``outcome.verdict``, or a function that returns the cell.
Column = str | Callable[[Any], str]


class RowsFormat(StrEnum):
    """Format for rows that are written to a file or to standard output."""

    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"
    PARQUET = "parquet"

    @property
    def media_type(self) -> str:
        from broadside.coordinator.views.tables import Format

        return Format(self.value).media_type


RowsOption = Annotated[
    RowsFormat | None,
    typer.Option("--format", help="Print all fields of all rows in this format."),
]


def cell(row: object, column: Column) -> str:
    """Return a table cell.

    Args:
        row: The object with the fields.
        column: A function, or a field path. The field name defines the format of the value.

    Returns:
        The text. It is empty if an object on the path is None.
    """
    if callable(column):
        return column(row)
    value: Any = row
    for name in column.split("."):
        if value is None:
            return ""
        value = getattr(value, name)
    for suffix, text_of in _FORMATS.items():
        if column.endswith(suffix):
            return text_of(value)
    match value:
        case None:
            return ""
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case Enum():
            return str(value.value)
        case tuple():
            return "; ".join(map(str, value))
    return str(value)


def cells(row: object, columns: Mapping[str, Column]) -> list[str]:
    """Return the table cells of a row."""
    return [cell(row, column) for column in columns.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTable:
    """Table of a list command.

    Attributes:
        columns: Columns of the table by title.
        model: Row type (``module:name``). It defines the columns of a file.
        empty: Line to print instead of an empty table.
        low_priority: Titles of the columns to omit first when the terminal is too narrow.
        hidden: Fields that are never printed.
    """

    columns: Mapping[str, Column]
    model: str
    empty: str
    low_priority: Sequence[str] = ()
    hidden: Collection[str] = ()


def print_list(
    session: Output,
    rows: Sequence[Message],
    table: ListTable,
    *,
    form: RowsFormat | None = None,
    extra: Callable[[Any], Mapping[str, Any]] | None = None,
) -> None:
    """Print a list as a table, or with all fields in another format.

    Args:
        session: Output of the command. It selects JSON.
        rows: The rows to print.
        table: The table.
        form: File format. None for a table or JSON.
        extra: Function that returns additional JSON fields of a row.
    """
    columns, hidden = table.columns, table.hidden
    if form is None and not session.as_json:
        if not rows:
            typer.echo(table.empty)
            return
        print_table(
            "",
            list(columns),
            [cells(row, columns) for row in rows],
            low_priority=table.low_priority,
        )
        return
    dumped = [row.answer_fields(*hidden) for row in rows]
    if extra is not None:
        dumped = [{**values, **extra(row)} for values, row in zip(dumped, rows, strict=True)]
    print_rows(dumped, form or RowsFormat.JSON, model=table.model, hidden=hidden)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    form: RowsFormat,
    *,
    model: str,
    hidden: Collection[str] = (),
) -> None:
    """Print rows with all fields except the hidden ones.

    Args:
        rows: The rows in JSON form.
        form: File format.
        model: Row type (``module:name``).
        hidden: Fields that are never printed.
    """
    if form is RowsFormat.JSON:
        print_json(rows)
        return
    from broadside.coordinator.views.tables.formats import render
    from broadside.coordinator.views.tables.table_columns import column_specs, columns_of

    fields = [one for one in column_specs(pkgutil.resolve_name(model)) if one.path[0] not in hidden]
    write_bytes(render(form.media_type, {}, columns_of(rows, fields)))


def open_console() -> Console:
    """Open a console with the terminal width. Without a terminal each row is one line."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = UNWRAPPED_WIDTH
    return console


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    low_priority: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Print a table. Columns that do not fit are omitted, and their names are printed.

    Args:
        title: Line to print above the table. Can be empty.
        columns: Column titles.
        rows: Cells by row. Missing cells at the end are blank.
        low_priority: Columns to omit first when the terminal is too narrow. Others follow from the
            right, then the last column. The first column is always printed.
        console: The console to use. Defaults to standard output.
    """
    console = console or open_console()
    rows = [[*row, *([""] * (len(columns) - len(row)))] for row in rows]
    # We should not use markup, because the text can come from other users.
    texts = [[Text(one_line(value)) for value in row] for row in rows]
    needed = [
        max(_min_width(text) for text in (Text(name), *(row[index] for row in texts)))
        for index, name in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    optional = [columns.index(name) for name in low_priority]
    optional += [index for index in (*shown[-2:0:-1], shown[-1]) if index not in optional]
    width_left = console.width + _GAP - sum(needed) - _GAP * len(columns)
    while width_left < 0 and optional and len(shown) > 1:
        shown.remove(omitted := optional.pop(0))
        width_left += needed[omitted] + _GAP
    table = Table(box=None, pad_edge=False)
    for index in shown:
        widest = max(cell_len(columns[index]), *(row[index].cell_len for row in texts), 0)
        # A shortened run id is useless.
        fits = width_left >= 0 and widest <= needed[index]
        table.add_column(columns[index], overflow="fold", no_wrap=fits)
    for row in texts:
        table.add_row(*(row[index] for index in shown))
    if title:
        console.print(title, style="italic", markup=False)
    console.print(table)
    names = ", ".join(name for index, name in enumerate(columns) if index not in shown)
    if names:
        console.print(f"not shown: {names}; `| less -S` shows all", style="dim", markup=False)


def _min_width(text: Text) -> int:
    """Return the width needed to print a cell without breaking a word."""
    longest_part = max(map(cell_len, text.plain.split()), default=0)
    return max(longest_part, min(text.cell_len, _TEXT_WIDTH))


class ProgressLog:
    """Progress lines with the elapsed time, on standard error."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    def print(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._started_s:5.1f} s] {text}\n")
        sys.stderr.flush()
