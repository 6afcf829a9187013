"""Parser for server-sent events (WHATWG HTML, 9.2.6, Interpreting an event stream)."""

import json
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from broadside.coordinator.cli.screen_text import cleaned, printable

# Limit for one event. The trends for 1,000 bursts need a tenth of it.
EVENT_MAX_BYTES: Final = 32 * 1_048_576


class EventTooLong(Exception):
    """An event is longer than the limit."""


class StreamEvent(NamedTuple):
    """One event.

    Attributes:
        name: Event type.
        data: The data lines, joined with newlines.
        id: Last id of the stream so far. None if there was none.
    """

    name: str
    data: str
    id: str | None


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield each complete line of a byte stream.

    Raises:
        EventTooLong: A line is longer than the limit.
    """
    rest = bytearray()
    async for piece in pieces:
        if b"\n" in piece:
            *lines, last = (bytes(rest) + piece).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                yield line.removesuffix(b"\r").decode(errors="replace")
        else:
            rest += piece
        if len(rest) > EVENT_MAX_BYTES:
            raise EventTooLong(f"an event of over {EVENT_MAX_BYTES} bytes")


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[StreamEvent]:
    """Yield each event. Comments are skipped.

    Raises:
        EventTooLong: An event is longer than the limit.
    """
    name, event_id, chars_count = "message", None, 0
    data: list[str] = []
    async for line in lines:
        if not line:
            if data:
                yield StreamEvent(name, "\n".join(data), event_id)
            name, data, chars_count = "message", [], 0
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match key:
            case "event":
                name = value
            case "data":
                data.append(value)
                # Memory that each line needs, approximately.
                chars_count += len(value) + 64
                if chars_count > EVENT_MAX_BYTES:
                    raise EventTooLong(f"an event of over {EVENT_MAX_BYTES} bytes")
            case "id":
                event_id = value


def clean_json(text: str) -> str:
    """Return the JSON document with printable strings. Invalid JSON is only made printable."""

    try:
        return json.dumps(cleaned(json.loads(text)))
    except (ValueError, RecursionError):
        return printable(text)
