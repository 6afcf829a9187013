"""Tables and progress lines of the command line."""

import sys
import time
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broadside.coordinator.cli.screen_text import one_line

# Width without a terminal, so that no row is wrapped.
UNWRAPPED_WIDTH: Final = 100_000
# Minimum width for a column when its text has several words.
_PROSE_WIDTH: Final = 24
# Columns between two table columns.
_GAP: Final = 2


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
    spare: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Print a table. Columns that do not fit are left out, and their names are printed.

    Args:
        title: Line to print above the table. Can be empty.
        columns: Column names.
        rows: Cells to print by row. Missing cells at the end will be blank.
        spare: Columns to leave out first when there is not enough space. Others follow from the
            right, then the last column. The first column is always shown.
        console: The console to use. Defaults to standard output.
    """
    console = console or open_console()
    # Short rows end with blank cells.
    rows = [[*row, *([""] * (len(columns) - len(row)))] for row in rows]
    # Without markup, because the text can come from other users.
    cells = [[Text(one_line(cell)) for cell in row] for row in rows]
    needed = [
        max(_whole_width(cell) for cell in (Text(name), *(row[place] for row in cells)))
        for place, name in enumerate(columns)
    ]
    places = list(range(len(columns)))
    leaving = [columns.index(name) for name in spare]
    leaving += [place for place in (*places[-2:0:-1], places[-1]) if place not in leaving]
    room = console.width + _GAP - sum(needed) - _GAP * len(columns)
    while room < 0 and leaving and len(places) > 1:
        places.remove(gone := leaving.pop(0))
        room += needed[gone] + _GAP
    drawn = Table(box=None, pad_edge=False)
    for place in places:
        widest = max(cell_len(columns[place]), *(row[place].cell_len for row in cells), 0)
        # A shortened run id is useless.
        drawn.add_column(
            columns[place], overflow="fold", no_wrap=room >= 0 and widest <= needed[place]
        )
    for row in cells:
        drawn.add_row(*(row[place] for place in places))
    if title:
        console.print(title, style="italic", markup=False)
    console.print(drawn)
    left = ", ".join(name for place, name in enumerate(columns) if place not in places)
    if left:
        console.print(f"left out: {left}; `| less -S` shows all", style="dim", markup=False)


def _whole_width(cell: Text) -> int:
    """Return the width needed to show a cell without breaking a word."""
    longest_word = max(map(cell_len, cell.plain.split()), default=0)
    return max(longest_word, min(cell.cell_len, _PROSE_WIDTH))


class Steps:
    """Progress messages with the elapsed time, on standard error."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._began_s:5.1f} s] {text}\n")
        sys.stderr.flush()
