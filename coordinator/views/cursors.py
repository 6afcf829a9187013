"""Opaque cursors: where a list goes on, as text that a caller gives back unread."""

import base64
import binascii
import re
from typing import Final

CURSOR_MAX_CHARS: Final = 512
_PART: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


class BadCursor(Exception):
    """A cursor that no list gave out; the message is one line for a person."""


def make_cursor(*parts: str) -> str:
    """A cursor that :func:`parse_cursor` reads back."""
    return base64.urlsafe_b64encode("|".join(parts).encode()).decode().rstrip("=")


def parse_cursor(cursor: str, parts_count: int) -> list[str]:
    """The parts of a cursor. Raises :class:`BadCursor`."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        text = base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError) as error:
        raise _bad(cursor) from error
    parts = text.split("|")
    written_so = make_cursor(*parts) == cursor.rstrip("=")  # base64 can leave bits unused
    if (
        not written_so
        or len(parts) != parts_count
        or not all(_PART.fullmatch(part) for part in parts)
    ):
        raise _bad(cursor)
    return parts


def _bad(cursor: str) -> BadCursor:
    return BadCursor(f"cursor: {cursor[:40]!r} is not one that this list gave out; start without")
