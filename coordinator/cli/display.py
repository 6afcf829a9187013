"""Tables and steps of the command line."""

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordinator.cli.screen_text import printable

UNWRAPPED_WIDTH = 1000  # columns


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A plain table."""
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")  # a shortened run id is of no use
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))  # no markup: others wrote it
    return drawn


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table on standard output; another program gets each row on one line."""
    console = Console()
    if not console.is_terminal:
        console.width = UNWRAPPED_WIDTH
    console.print(table(title, columns, rows), highlight=False)


class Steps:
    """Says on standard error what is being done, and how long it took."""

    def __init__(self, *, write: Callable[[str], object] = sys.stderr.write) -> None:
        self._write = write
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        self._write(f"[{time.monotonic() - self._began_s:5.1f} s] {text}\n")
        sys.stderr.flush()
