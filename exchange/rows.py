"""A message as one row: the ``json`` property, and the error that names a row nobody can read."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from exchange.messages import Message
from exchange.ports import PROPERTY_MAX_BYTES, Entity, RecordUnreadable, Value

_M = TypeVar("_M", bound=Message)


def make_row(partition: str, key: str, properties: Mapping[str, Value]) -> Entity:
    return Entity(partition_key=partition, row_key=key, properties=properties)


def message_row(partition: str, key: str, message: Message) -> Entity:
    return make_row(partition, key, {"json": message.model_dump_json()})


def parse_row(model: type[_M], row: Entity) -> _M:
    try:
        return model.model_validate_json(str(row.properties.get("json")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "json"
        raise RecordUnreadable(
            f"row {row_name(row)}: not a {model.__name__} that this Broadside reads "
            f"({where}: {first['msg']}); was it written by another version?"
        ) from error


def row_name(row: Entity) -> str:
    return f"{row.partition_key}|{row.row_key}"


def integer_of(row: Entity, name: str) -> int:
    """A whole number that the row must have."""
    value = row.properties.get(name)
    if not isinstance(value, int):
        raise RecordUnreadable(f"row {row_name(row)}: {name} is {value!r}, not a number")
    return value


def cut_properties(name: str, data: bytes) -> dict[str, Value]:
    """Bytes cut into properties ``<name>_0, <name>_1...``, none over a property's limit."""
    cuts = range(0, len(data), PROPERTY_MAX_BYTES)
    return {f"{name}_{i}": data[at : at + PROPERTY_MAX_BYTES] for i, at in enumerate(cuts)}


def joined_properties(row: Entity, name: str) -> bytes:
    """What :func:`cut_properties` cut; empty where there is no such property."""
    parts: list[bytes] = []
    while isinstance(part := row.properties.get(f"{name}_{len(parts)}"), bytes):
        parts.append(part)
    return b"".join(parts)
