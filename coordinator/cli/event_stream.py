"""Reads server-sent events (WHATWG HTML, 9.2.6: interpreting an event stream)."""

import json
from collections.abc import AsyncIterator
from typing import NamedTuple

from coordinator.cli.screen_text import cleaned, printable


class StreamEvent(NamedTuple):
    """One event as it came."""

    name: str
    data: str
    id: str | None  # the newest that the stream has named


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[StreamEvent]:
    """Each event of a stream's lines; comments are passed over."""
    name, event_id = "message", None
    data: list[str] = []
    async for line in lines:
        if not line:
            if data:
                yield StreamEvent(name, "\n".join(data), event_id)
            name, data = "message", []
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match key:
            case "event":
                name = value
            case "data":
                data.append(value)
            case "id":
                event_id = value


def clean_json(text: str) -> str:
    """One JSON document with printable strings; what is none is the reader's to refuse."""

    try:
        return json.dumps(cleaned(json.loads(text)))
    except (ValueError, RecursionError):
        return printable(text)
