"""The one place that makes foreign text fit for a terminal.

Labels, agents' names, findings and dead letters are written by others. A control character in one
of them could move the cursor, rename the window or, in some terminals, type a command.
"""

import re
import sys
from typing import Any, Final

from broadside.exchange.pipelines import uncommanded

# C0 but tab and line feed, DEL and C1, and what turns the direction of text round.
_UNSAFE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff]"
)


def printable(text: str) -> str:
    """The same text with control characters, and what pipelines take for commands, spelled out."""
    return uncommanded(_UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", text))


def one_line(text: str) -> str:
    """The same on one line: a second one would begin with whatever others wrote."""
    return printable(" ".join(text.splitlines()))


def cleaned(value: Any) -> Any:
    """A JSON value whose every string is :func:`printable`: what a client hands to commands."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): cleaned(item) for name, item in value.items()}
    return value


def write_bytes(body: bytes) -> None:
    """To the byte on standard output; a terminal is shown text without control characters."""
    if sys.stdout.isatty():
        body = printable(body.decode(errors="replace")).encode()
    sys.stdout.buffer.write(body)
