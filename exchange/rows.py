"""Read and write messages as table rows. A row has the message in its ``json`` property."""

import logging
from collections.abc import Mapping
from typing import Final, TypeVar

from pydantic import ValidationError

from broadside.exchange.messages import Message, plain_text
from broadside.exchange.ports import PROPERTY_MAX_BYTES, Entity, RecordUnreadable, Value
from broadside.exchange.strict_json import bounded_json

_M = TypeVar("_M", bound=Message)

# Number of unreadable rows to remember. We use it to log each of them only once.
_TOLD_MAX_COUNT: Final = 10_000

log = logging.getLogger(__name__)
_reported: set[str] = set()


def make_row(partition: str, key: str, properties: Mapping[str, Value]) -> Entity:
    """Return a row with the given key and properties.

    Args:
        partition: Partition key.
        key: Row key.
        properties: Properties by name, without the two keys.
    """
    return Entity(partition_key=partition, row_key=key, properties=properties)


def message_row(partition: str, key: str, message: Message) -> Entity:
    """Return a row with a message in its property ``json``.

    Args:
        partition: Partition key.
        key: Row key.
        message: Message to store as JSON text.
    """
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
    # An invalid row should not affect other rows, so we need to handle any error.
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
    """Return the key of a row to use in a log."""
    return f"{row.partition_key}|{row.row_key}"


def integer_of(row: Entity, name: str) -> int:
    """Return an integer property of a row, without a unit.

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

    Returns:
        Bytes by property name, in order. Empty for no bytes.
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
