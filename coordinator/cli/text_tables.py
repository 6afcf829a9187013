"""Output of lists as a table or in another format, and progress lines."""

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broadside.coordinator.cli.command_group import Output
from broadside.coordinator.cli.document_output import OutputFormat, print_document, print_rows
from broadside.coordinator.cli.terminal_text import one_line, open_console
from broadside.coordinator.core import formatting
from broadside.exchange.messages import Message

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
TextColumn = str | Callable[[Any], str]


def cell(row: object, column: TextColumn) -> str:
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


def cells(row: object, columns: Mapping[str, TextColumn]) -> list[str]:
    """Return the table cells of a row.

    Args:
        row: Object that the columns read.
        columns: Columns by title, in the order of the cells.
    """
    return [cell(row, column) for column in columns.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTable:
    """Table of a list command.

    Attributes:
        columns: Columns of the table by title.
        model: Row type (``module:name``). It defines the columns of a file.
        empty: Line to print instead of an empty table.
        low_priority: Titles of the columns to omit first when the terminal is too narrow. The
            others fit into 80 columns.
        wide: Titles of the columns that only ``--output wide`` prints.
        hidden: Fields that are never printed.
    """

    columns: Mapping[str, TextColumn]
    model: str
    empty: str
    low_priority: Sequence[str] = ()
    wide: Collection[str] = ()
    hidden: Collection[str] = ()


def print_list(
    session: Output,
    rows: Sequence[Message],
    table: ListTable,
    *,
    extra: Callable[[Any], Mapping[str, Any]] | None = None,
) -> None:
    """Print a list as a table, or with all fields in another format.

    Args:
        session: Output of the command. It selects the format.
        rows: The rows to print.
        table: The table.
        extra: Function that returns additional fields of a row of JSON and YAML.
    """
    if session.is_text:
        if not rows:
            typer.echo(table.empty)
            return
        hidden = () if session.output == OutputFormat.WIDE else table.wide
        columns = {title: of for title, of in table.columns.items() if title not in hidden}
        texts = [cells(row, columns) for row in rows]
        print_table("", list(columns), texts, low_priority=table.low_priority)
        return
    dumped = [row.answer_fields(*table.hidden) for row in rows]
    if extra is not None:
        dumped = [{**values, **extra(row)} for values, row in zip(dumped, rows, strict=True)]
    if session.output in (OutputFormat.JSON, OutputFormat.YAML):
        print_document(dumped, session.output)
    else:
        print_rows(dumped, session.output, model=table.model, hidden=table.hidden)


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
        low_priority: Columns to omit first when the terminal is too narrow.
        console: The console to use. Defaults to standard output.
    """
    console = console or open_console()
    rows = [[*row, *([""] * (len(columns) - len(row)))] for row in rows]
    # We should not use markup, because the text can come from other users.
    texts = [[Text(one_line(value)) for value in row] for row in rows]
    shown, needed = _fitting_columns(
        [[Text(name), *(row[index] for row in texts)] for index, name in enumerate(columns)],
        [columns.index(name) for name in low_priority],
        console.width,
    )
    left = console.width + _GAP - sum(needed[index] + _GAP for index in shown)
    table = Table(box=None, pad_edge=False)
    for index in shown:
        widest = max(cell_len(columns[index]), *(row[index].cell_len for row in texts), 0)
        # A shortened run id is useless.
        extra = min(left, widest - needed[index])
        width = needed[index] + extra if left >= 0 else None
        left -= max(0, extra)
        table.add_column(columns[index], overflow="fold", width=width)
    for row in texts:
        table.add_row(*(row[index] for index in shown))
    if title:
        console.print(title, style="italic", markup=False)
    console.print(table)
    names = ", ".join(name for index, name in enumerate(columns) if index not in shown)
    if names:
        console.print(f"not shown: {names}; see `-o wide`", style="dim", markup=False)


def _fitting_columns(
    columns: Sequence[Sequence[Text]], low_priority: Sequence[int], width: int
) -> tuple[list[int], list[int]]:
    """Return the columns that fit into a width, and the width that each column needs.

    Args:
        columns: Cells by column, with the title.
        low_priority: Columns to omit first. Then text is wrapped at each word, and others follow
            from the right, then the last column. The first column always remains.
        width: Available width.
    """
    shown = list(range(len(columns)))
    others = [index for index in (*shown[-2:0:-1], shown[-1]) if index not in low_priority]
    needed: list[int] = []
    # Without priorities, a column is omitted before text is wrapped.
    last_width = 0 if low_priority else _TEXT_WIDTH
    for optional, text_width in ((list(low_priority), _TEXT_WIDTH), (others, last_width)):
        needed = [max(_min_width(text, text_width) for text in texts) for texts in columns]
        while sum(needed[index] + _GAP for index in shown) > width + _GAP:
            if not optional or len(shown) == 1:
                break
            shown.remove(optional.pop(0))
        else:
            break
    return shown, needed


def _min_width(text: Text, text_width: int) -> int:
    """Return the width needed to print a cell without breaking a word.

    Args:
        text: The cell.
        text_width: Minimum width of a cell with several words.
    """
    longest_part = max(map(cell_len, text.plain.split()), default=0)
    return max(longest_part, min(text.cell_len, text_width))


class ProgressLog:
    """Progress lines with the elapsed time, on standard error."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    def print(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._started_s:5.1f} s] {text}\n")
        sys.stderr.flush()
