"""Escaping of text from other users, to be used before it is shown on a terminal.

Labels, agent names, findings and dead letters can contain any character. A control character could
move the cursor, rename the window or, in some terminals, type a command.
"""

import re
import sys
from contextvars import ContextVar
from typing import Any, Final

from broadside.exchange.ci_logs import escape_workflow_commands

# C0 except tab and line feed, DEL, C1, and characters that change the text direction.
_UNSAFE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff]"
)

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
