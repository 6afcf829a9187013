"""Terminals, and the escaping of text from other users before it is shown on one.

Labels, agent names, findings and dead letters can contain any character. A control character could
move the cursor, rename the window or, in some terminals, type a command.
"""

import os
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from broadside.exchange.ci_logs import escape_workflow_commands

if TYPE_CHECKING:
    from rich.console import Console

# C0 except tab and line feed, DEL, C1, and characters that change the text direction.
_UNSAFE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff]"
)

# Width without a terminal, so that no row is wrapped.
UNWRAPPED_WIDTH: Final = 100_000
# Set by ``--output wide``: tables have all columns, and no cell is wrapped.
is_unwrapped: Final = ContextVar("is_unwrapped", default=False)


def printable(text: str) -> str:
    """Escape control characters, and text that a CI pipeline would use as a command."""
    return escape_workflow_commands(_UNSAFE.sub(lambda result: f"\\x{ord(result[0]):02x}", text))


def one_line(text: str) -> str:
    """Escape text and join its lines, because a new line could begin with any text."""
    return printable(" ".join(text.splitlines()))


def cleaned(value: Any) -> Any:
    """Escape all strings of a JSON value."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): cleaned(item) for name, item in value.items()}
    return value


def write_bytes(body: bytes) -> None:
    """Write bytes to standard output. On a terminal, control characters are escaped."""
    if sys.stdout.isatty():
        body = printable(body.decode(errors="replace")).encode()
    sys.stdout.buffer.write(body)


def open_console(*, stderr: bool = False) -> "Console":
    """Open a console with the terminal width. Without a terminal each row is one line.

    Colours and other styles are printed only on a terminal, and not with ``NO_COLOR`` or
    ``TERM=dumb``.

    Args:
        stderr: Print on standard error.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    console = Console(
        highlight=False,
        stderr=stderr,
        # Not by FORCE_COLOR, because a log cannot show moving lines.
        force_terminal=stream.isatty(),
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
    if is_unwrapped.get() or not console.is_terminal:
        console.width = UNWRAPPED_WIDTH
    return console
