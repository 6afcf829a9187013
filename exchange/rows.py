"""A message as one row: the ``json`` property, and the error that names a row nobody can read."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from exchange.messages import Message
from exchange.ports import Entity, RecordUnreadable, Value

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
