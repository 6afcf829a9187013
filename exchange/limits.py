"""Size limits of queue messages and table rows, checked before sending.

All adapters use these functions, so data that fits the embedded fabric also fits Azure. The size of
a property follows the rules of Azure Table Storage: two bytes per character, eight bytes per
number. The size of a row is the size of its JSON, which is never smaller than the size by those
rules. A row that is accepted here is therefore accepted by the service, and also by the emulator,
which measures the JSON.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, TypeVar

from broadside.exchange.ports import (
    BATCH_MAX_BYTES,
    BATCH_MAX_COUNT,
    ENTITY_MAX_BYTES,
    KEY_MAX_CHARS,
    MESSAGE_ID_MAX_CHARS,
    MESSAGE_MAX_BYTES,
    PROPERTY_MAX_BYTES,
    PROPERTY_MAX_COUNT,
    Entity,
    EntityTooLarge,
    MessageTooLarge,
    Outgoing,
    Value,
)

_T = TypeVar("_T")

# Allowance for the protocol overhead around body and id.
_MESSAGE_HEADERS_BYTES: Final = 512
# URL, headers and boundaries around a row in a batch.
_ROW_FRAME_BYTES: Final = 1024
# The largest size of one UTF-16 unit of a key, which is escaped in JSON and again in the URL.
_KEY_UNIT_BYTES: Final = 16
# Quotes, commas and the type name around a property.
_PROPERTY_FRAME_BYTES: Final = 48
# The largest number, boolean or timestamp as text.
_NUMBER_BYTES: Final = 32
_KEY_FORBIDDEN: Final = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f]")
_PROPERTY_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_PROPERTY_RESERVED: Final = frozenset({"PartitionKey", "RowKey", "Timestamp"})


def check_message(message: Outgoing) -> None:
    """Check the id, times and size of a message.

    Raises:
        MessageTooLarge: The message is above the queue's limit.
        ValueError: The id is invalid or a time has no time zone.
    """
    if not 1 <= len(message.message_id) <= MESSAGE_ID_MAX_CHARS:
        raise ValueError(
            f"message_id {message.message_id!r}: must be 1 to {MESSAGE_ID_MAX_CHARS} characters"
        )
    for at in (message.expires_at, message.enqueue_at):
        if at is not None and at.tzinfo is None:
            raise ValueError(f"message {message.message_id}: {at} has no zone; give UTC")
    size = message_bytes(message)
    if size > MESSAGE_MAX_BYTES:
        raise MessageTooLarge(
            f"message {message.message_id}: {size} bytes with headers, over the limit of "
            f"{MESSAGE_MAX_BYTES}; send less in one message"
        )


def check_key(key: str) -> None:
    """Check that a table accepts the partition or row key.

    Raises:
        ValueError: The key is empty, too long, or has a character that is not allowed.
    """
    if not 1 <= _utf16_bytes(key) // 2 <= KEY_MAX_CHARS:
        raise ValueError(f"key {key[:40]!r}...: must be 1 to {KEY_MAX_CHARS} characters")
    if _KEY_FORBIDDEN.search(key):
        raise ValueError(f"key {key!r}: must not hold / \\ # ? or control characters")


def check_entity(entity: Entity) -> None:
    """Check the keys, properties and size of a row.

    Raises:
        EntityTooLarge: A property or the row is above its limit.
        ValueError: A key, property name or value is invalid.
    """
    check_key(entity.partition_key)
    check_key(entity.row_key)
    place = f"row {entity.partition_key}|{entity.row_key}"
    if len(entity.properties) > PROPERTY_MAX_COUNT:
        raise EntityTooLarge(f"{place}: over {PROPERTY_MAX_COUNT} properties")
    for name, value in entity.properties.items():
        if not _PROPERTY_NAME.fullmatch(name) or name in _PROPERTY_RESERVED:
            raise ValueError(f"{place}: property name {name!r} is not a free identifier")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError(f"{place}: property {name}: {value} has no zone; give UTC")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{place}: property {name}: {value} does not fit 64 bits")
        if _value_bytes(value) > PROPERTY_MAX_BYTES:
            raise EntityTooLarge(
                f"{place}: property {name} is {_value_bytes(value)} bytes, over the limit of "
                f"{PROPERTY_MAX_BYTES}; split it"
            )
    if (size := entity_bytes(entity)) > ENTITY_MAX_BYTES:
        raise EntityTooLarge(f"{place}: {size} bytes, over the limit of {ENTITY_MAX_BYTES}")


def entity_bytes(entity: Entity) -> int:
    """Return the size of a row in bytes, to compare with the limits for rows and batches."""
    keys_bytes = _KEY_UNIT_BYTES * _utf16_bytes(entity.partition_key + entity.row_key) // 2
    return (
        _ROW_FRAME_BYTES
        + keys_bytes
        + sum(
            _PROPERTY_FRAME_BYTES + 2 * len(name) + _wire_bytes(value)
            for name, value in entity.properties.items()
        )
    )


def batches(entities: Sequence[Entity]) -> Iterator[Sequence[Entity]]:
    """Split rows of one partition into batches within the limits, in order.

    All rows will be checked before the first batch is yielded.

    Raises:
        EntityTooLarge: A row or property is above its limit.
        ValueError: A key or value is invalid, the rows have several partitions, or a row key is
            duplicated.
    """
    for entity in entities:
        check_entity(entity)
    if len({entity.partition_key for entity in entities}) > 1:
        raise ValueError("batch: rows of several partitions; send one batch for each")
    if len({entity.row_key for entity in entities}) < len(entities):
        raise ValueError("batch: duplicate row key; send each row once")
    return split(entities, entity_bytes, BATCH_MAX_BYTES, BATCH_MAX_COUNT)


def split(
    items: Iterable[_T],
    size_bytes: Callable[[_T], int],
    most_bytes: int,
    most_count: int = sys.maxsize,
) -> Iterator[list[_T]]:
    """Split items into batches.

    Args:
        items: The items to split.
        size_bytes: A function that returns the size of an item, in bytes.
        most_bytes: Largest size of a batch, in bytes. An item that is larger than this forms a
            batch by itself.
        most_count: The maximum number of items in a batch.

    Yields:
        Batches in the order of the items, none of them empty.
    """
    batch: list[_T] = []
    batch_bytes = 0
    for item in items:
        size = size_bytes(item)
        if batch and (len(batch) == most_count or batch_bytes + size > most_bytes):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(item)
        batch_bytes += size
    if batch:
        yield batch


def message_bytes(message: Outgoing) -> int:
    """Return the size of a message with protocol overhead, in bytes."""
    return len(message.body) + 2 * len(message.message_id) + _MESSAGE_HEADERS_BYTES


def _value_bytes(value: Value) -> int:
    match value:
        case bool():
            return 1
        case str():
            return _utf16_bytes(value)
        case bytes():
            return len(value)
        case int() | float() | datetime():
            return 8


def _wire_bytes(value: Value) -> int:
    match value:
        case str():
            return max(_utf16_bytes(value), len(json.dumps(value)))
        case bytes():
            # base64
            return (len(value) + 2) // 3 * 4
        case _:
            return _NUMBER_BYTES


def _utf16_bytes(text: str) -> int:
    return len(text.encode("utf-16-le"))
