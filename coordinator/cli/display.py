"""Tables and steps of the command line."""

import sys
import time
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broadside.coordinator.cli.screen_text import one_line

UNWRAPPED_WIDTH: Final = 100_000  # columns: no word of others' begins a line
_PROSE_WIDTH: Final = 24  # columns that text of several words keeps, at least
_GAP: Final = 2  # columns between two of a table


def open_console() -> Console:
    """Standard output as wide as its terminal; another program gets each row on one line."""
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
    """A table on standard output; columns that do not fit are left out and named, the ``spare``
    ones first, then from the right, the last one late and the first one never."""
    console = console or open_console()
    rows = [[*row, *([""] * (len(columns) - len(row)))] for row in rows]  # short ones end blank
    cells = [[Text(one_line(cell)) for cell in row] for row in rows]  # no markup: others wrote it
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
        # A shortened run id is of no use.
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
    """Columns that a cell needs so that no word of it is cut: text of several words wraps."""
    longest_word = max(map(cell_len, cell.plain.split()), default=0)
    return max(longest_word, min(cell.cell_len, _PROSE_WIDTH))


class Steps:
    """Says on standard error what is being done, and how long it took."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._began_s:5.1f} s] {text}\n")
        sys.stderr.flush()
