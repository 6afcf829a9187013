"""The limits of a queue's messages and a table's rows, checked before anything is sent.

Every adapter calls these, so that what fits on one host also fits in Azure. A property counts by
Azure Table storage's own arithmetic: two bytes a character, eight a number. A row counts as the
JSON that travels, which is never less than that arithmetic says: whether the service weighs one or
the other (its emulator weighs JSON), what passes here passes there.
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

_MESSAGE_HEADERS_BYTES: Final = 512  # room for what the wire adds to body and id
_ROW_FRAME_BYTES: Final = 1024  # URL, headers and boundaries round a row in a batch
_KEY_UNIT_BYTES: Final = 16  # of a key's UTF-16 unit: escaped in JSON and again in the URL
_PROPERTY_FRAME_BYTES: Final = 48  # quotes, commas and the name of the type
_NUMBER_BYTES: Final = 32  # a number, truth or instant in digits
_KEY_FORBIDDEN: Final = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f]")
_PROPERTY_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_PROPERTY_RESERVED: Final = frozenset({"PartitionKey", "RowKey", "Timestamp"})


def check_message(message: Outgoing) -> None:
    """Raise :class:`MessageTooLarge`, or ``ValueError`` for a bad id or a naive instant."""
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
    """Raise ``ValueError`` for a partition or row key that a table would refuse."""
    if not 1 <= _utf16_bytes(key) // 2 <= KEY_MAX_CHARS:
        raise ValueError(f"key {key[:40]!r}...: must be 1 to {KEY_MAX_CHARS} characters")
    if _KEY_FORBIDDEN.search(key):
        raise ValueError(f"key {key!r}: must not hold / \\ # ? or control characters")


def check_entity(entity: Entity) -> None:
    """Raise :class:`EntityTooLarge`, or ``ValueError`` for a bad key, name or value."""
    check_key(entity.partition_key)
    check_key(entity.row_key)
    where = f"row {entity.partition_key}|{entity.row_key}"
    if len(entity.properties) > PROPERTY_MAX_COUNT:
        raise EntityTooLarge(f"{where}: over {PROPERTY_MAX_COUNT} properties")
    for name, value in entity.properties.items():
        if not _PROPERTY_NAME.fullmatch(name) or name in _PROPERTY_RESERVED:
            raise ValueError(f"{where}: property name {name!r} is not a free identifier")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError(f"{where}: property {name}: {value} has no zone; give UTC")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{where}: property {name}: {value} does not fit 64 bits")
        if _value_bytes(value) > PROPERTY_MAX_BYTES:
            raise EntityTooLarge(
                f"{where}: property {name} is {_value_bytes(value)} bytes, over the limit of "
                f"{PROPERTY_MAX_BYTES}; split it"
            )
    if (size := entity_bytes(entity)) > ENTITY_MAX_BYTES:
        raise EntityTooLarge(f"{where}: {size} bytes, over the limit of {ENTITY_MAX_BYTES}")


def entity_bytes(entity: Entity) -> int:
    """What a row counts, at most, against the limits of a row and of a batch."""
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
    """Split one partition's rows into batches, in order, none over the limits of one.

    Everything is checked before the first batch is yielded. Raises :class:`EntityTooLarge`, or
    ``ValueError`` for rows of several partitions or a row key twice.
    """
    for entity in entities:
        check_entity(entity)
    if len({entity.partition_key for entity in entities}) > 1:
        raise ValueError("batch: rows of several partitions; send one batch for each")
    if len({entity.row_key for entity in entities}) < len(entities):
        raise ValueError("batch: a row key comes twice; send it once")
    return split(entities, entity_bytes, BATCH_MAX_BYTES, BATCH_MAX_COUNT)


def split(
    items: Iterable[_T],
    size_bytes: Callable[[_T], int],
    most_bytes: int,
    most_count: int = sys.maxsize,
) -> Iterator[list[_T]]:
    """Batches in order, none over the limits but of one item that is so by itself."""
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
    """What a message counts with what the wire adds to its body."""
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
            return (len(value) + 2) // 3 * 4  # base64
        case _:
            return _NUMBER_BYTES


def _utf16_bytes(text: str) -> int:
    return len(text.encode("utf-16-le"))
