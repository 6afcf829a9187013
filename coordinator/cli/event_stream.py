"""Reads server-sent events (WHATWG HTML, 9.2.6: interpreting an event stream)."""

import json
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from broadside.coordinator.cli.screen_text import cleaned, printable

EVENT_MAX_BYTES: Final = 32 * 1_048_576  # of one event; a course of a thousand bursts is a tenth


class EventTooLong(Exception):
    """An event without an end."""


class StreamEvent(NamedTuple):
    """One event as it came."""

    name: str
    data: str
    id: str | None  # the newest that the stream has named


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Each line that has come whole. Raises :class:`EventTooLong`."""
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
    """Each event of a stream's lines; comments are passed over. Raises :class:`EventTooLong`."""
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
                chars_count += len(value) + 64  # as each takes in memory
                if chars_count > EVENT_MAX_BYTES:
                    raise EventTooLong(f"an event of over {EVENT_MAX_BYTES} bytes")
            case "id":
                event_id = value


def clean_json(text: str) -> str:
    """One JSON document with printable strings; what is none is the reader's to refuse."""

    try:
        return json.dumps(cleaned(json.loads(text)))
    except (ValueError, RecursionError):
        return printable(text)
