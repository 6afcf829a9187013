"""Repeated output of a command (``--watch``)."""

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import typer
from rich.live import Live
from rich.text import Text

from broadside.coordinator.cli.document_output import OutputFormat
from broadside.coordinator.cli.exit_codes import INTERRUPTED
from broadside.coordinator.cli.terminal_text import open_console

_INTERVAL_S: Final = 2.0
# Formats whose output is one document. It is printed again as a whole.
_DOCUMENTS: Final = (OutputFormat.JSON, OutputFormat.YAML)


class _Captured(io.TextIOWrapper):
    """Captured output that is a terminal if standard output is one."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        self.flush()
        content: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]  # of io.BytesIO
        return content.decode(errors="replace")


def repeat(command: Callable[[], object], output: str) -> None:
    """Run a command again and again until Ctrl-C, which exits with 130.

    On a terminal, the output is drawn again in the same place. Otherwise only changes are printed.

    Args:
        command: Command without arguments.
        output: Output format of the command.

    Raises:
        typer.Exit: Ctrl-C was pressed.
    """
    try:
        with _printer(output) as show:
            while True:
                captured = _Captured(is_terminal=sys.stdout.isatty())
                with contextlib.redirect_stdout(captured):
                    command()
                show(captured.text())
                time.sleep(_INTERVAL_S)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextlib.contextmanager
def _printer(output: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a new output."""
    console = open_console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Changes(is_document=output in _DOCUMENTS).print
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda text: live.update(Text.from_ansi(text), refresh=True)


class _Changes:
    """Print new lines only, or a whole document if it has changed."""

    def __init__(self, *, is_document: bool) -> None:
        self._is_document = is_document
        self._printed: tuple[str, ...] = ()

    def print(self, text: str) -> None:
        """Print what the last text did not contain."""
        lines = (text,) if self._is_document else tuple(text.splitlines(keepends=True))
        if new := [line for line in lines if line not in self._printed]:
            sys.stdout.write("".join(new))
            sys.stdout.flush()
        self._printed = lines
