"""Read and write messages as table rows, and parse untrusted JSON safely.

A row contains the message in its ``json`` property. Size and depth of JSON are checked before
parsing.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from broadside.exchange.messages import Message, plain_text
from broadside.exchange.ports import PROPERTY_MAX_BYTES, Entity, RecordUnreadable, Value

# The deepest nesting to accept. Our messages have at most a dozen levels.
DEPTH_MAX_COUNT: Final = 32

# A smaller text is parsed in about a millisecond.
LARGE_FROM_BYTES: Final = 65_536

# ``finditer`` lets other threads run between two matches. One call for the whole text would block
# all threads until its end.
_STRINGS_AND_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


class TooMuch(ValueError):
    """JSON that exceeds the limits for size or nesting depth."""


def bounded_json(body: bytes | str, max_bytes: int) -> str:
    """Check the size and nesting depth of JSON text and return the text.

    Args:
        body: JSON text.
        max_bytes: The maximum length.

    Raises:
        TooMuch: The text is too large or nested too deep.
        ValueError: The bytes are not UTF-8.
    """
    if len(body) > max_bytes:
        raise TooMuch(f"{len(body)} bytes of JSON; {max_bytes} at most are read")
    text = body.decode() if isinstance(body, bytes) else body
    if (depth := _depth(text)) > DEPTH_MAX_COUNT:
        raise TooMuch(f"JSON nested {depth} deep; {DEPTH_MAX_COUNT} levels at most are read")
    return text


def lone_surrogate(value: object, place: str = "") -> str | None:
    """Return the path of the first text in parsed JSON that cannot be encoded as UTF-8.

    JSON text can contain a lone surrogate. Python accepts it, but it cannot be written to a
    response, a log or a row.

    Args:
        value: Value from ``json.loads``, of limited depth.
        place: The path of ``value``, for error messages.

    Returns:
        Path of the text, or None if all texts can be encoded.
    """
    match value:
        case str():
            return None if value.isascii() or _is_encodable(value) else place or "text"
        case dict():
            for name, inner in value.items():
                if not (name.isascii() or _is_encodable(name)):
                    return f"a name in {place or 'it'}"
                if (match := lone_surrogate(inner, f"{place}.{name}".lstrip("."))) is not None:
                    return match
        case list():
            for number, inner in enumerate(value):
                if (match := lone_surrogate(inner, f"{place}[{number}]")) is not None:
                    return match
    return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _depth(text: str) -> int:
    if text.count("[") + text.count("{") <= DEPTH_MAX_COUNT:
        # The text has too few brackets to be nested deeper.
        return 0
    depth = deepest = 0
    for match in _STRINGS_AND_BRACKETS.finditer(text):
        first = text[match.start()]
        if first != '"':
            depth += 1 if first in "[{" else -1
            deepest = max(deepest, depth)
    return deepest


_T = TypeVar("_T")


async def read_json(body: bytes, max_bytes: int) -> Any:
    """Parse JSON as :func:`read_json_as` does, and return the value itself."""
    return await read_json_as(body, max_bytes, lambda told: told)


async def read_json_as(body: bytes, max_bytes: int, read: Callable[[Any], _T]) -> _T:
    """Parse untrusted JSON, in a thread if it is large, so that the event loop is not blocked.

    Args:
        body: JSON text.
        max_bytes: The maximum size in bytes.
        read: A function that converts the value, called in the same thread.

    Raises:
        ValueError: The text is not JSON, too large (:class:`TooMuch`) or nested too deep. Errors of
            ``read`` are raised too.
    """

    def parsed() -> _T:
        return read(_load(bounded_json(body, max_bytes)))

    return await asyncio.to_thread(parsed) if len(body) > LARGE_FROM_BYTES else parsed()


def _load(text: str) -> Any:
    """Parse JSON. The hooks are Python functions, which let other threads run meanwhile."""
    if len(text) <= LARGE_FROM_BYTES:
        return json.loads(text)
    return json.loads(
        text,
        object_hook=lambda told: told,
        parse_int=lambda digits: int(digits),
        parse_float=lambda digits: float(digits),
    )


_M = TypeVar("_M", bound=Message)

# How many unreadable rows this process remembers, so that it logs each of them once.
_TOLD_MAX_COUNT: Final = 10_000

log = logging.getLogger(__name__)
_reported: set[str] = set()


def make_row(partition: str, key: str, properties: Mapping[str, Value]) -> Entity:
    return Entity(partition_key=partition, row_key=key, properties=properties)


def message_row(partition: str, key: str, message: Message) -> Entity:
    return make_row(partition, key, {"json": message.to_json()})


def parse_row(model: type[_M], row: Entity) -> _M:
    """Return the message in a row.

    Args:
        model: The message class to parse.
        row: The row to read.

    Raises:
        RecordUnreadable: The row does not contain a valid message.
    """
    try:
        text = bounded_json(str(row.properties.get("json")), PROPERTY_MAX_BYTES)
        return model.model_validate_json(text, extra=model.unknown_fields)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"])) or "json"
        raise RecordUnreadable(
            plain_text(
                f"row {row_name(row)}: not a {model.__name__} that this Broadside reads "
                f"({location}: {first['msg']}); was it written by another version?"
            )
        ) from error
    # An invalid row must not affect other rows, whatever the error is.
    except Exception as error:
        raise RecordUnreadable(
            plain_text(f"row {row_name(row)}: not a {model.__name__}: {error!r}")
        ) from error


def leave_out(error: RecordUnreadable) -> None:
    """Log once that an unreadable row is skipped.

    An invalid row from an agent must not prevent the other rows from being read.
    """
    text = str(error)
    if text not in _reported:
        if len(_reported) >= _TOLD_MAX_COUNT:
            _reported.clear()
        _reported.add(text)
        log.warning("left out: %s", error, extra={"action": "unreadable"})


def try_row(model: type[_M], row: Entity) -> _M | None:
    """Return the message in a row, and log an unreadable row once.

    Args:
        model: The message class to parse.
        row: The row to read.

    Returns:
        Message, or None if the row is unreadable.
    """
    try:
        return parse_row(model, row)
    except RecordUnreadable as error:
        leave_out(error)
        return None


def row_name(row: Entity) -> str:
    return f"{row.partition_key}|{row.row_key}"


def integer_of(row: Entity, name: str) -> int:
    """Return an integer property of a row.

    Args:
        row: The row to read.
        name: The property name.

    Raises:
        RecordUnreadable: The property is missing or not an integer.
    """
    value = row.properties.get(name)
    if not isinstance(value, int):
        raise RecordUnreadable(f"row {row_name(row)}: {name} is {value!r}, not a number")
    return value


def cut_properties(name: str, data: bytes) -> dict[str, Value]:
    """Split bytes into properties ``<name>_0``, ``<name>_1`` and so on.

    Args:
        name: The first part of the property names.
        data: Bytes to split. No property is larger than ``PROPERTY_MAX_BYTES``.
    """
    cuts = range(0, len(data), PROPERTY_MAX_BYTES)
    return {f"{name}_{i}": data[at : at + PROPERTY_MAX_BYTES] for i, at in enumerate(cuts)}


def joined_properties(row: Entity, name: str) -> bytes:
    """Join the properties from :func:`cut_properties`.

    Args:
        row: The row to read.
        name: The first part of the property names.

    Returns:
        Joined bytes, empty if there are no such properties.
    """
    parts: list[bytes] = []
    while isinstance(part := row.properties.get(f"{name}_{len(parts)}"), bytes):
        parts.append(part)
    return b"".join(parts)
