"""A row as JSON text: on an agent's disk, and on the way to a coordinator."""

import base64
import json
from datetime import datetime
from typing import Any, Final

from broadside.exchange.ports import ENTITY_MAX_BYTES, Entity, Value
from broadside.exchange.rows import bounded_json

TEXT_MAX_BYTES: Final = 8 * ENTITY_MAX_BYTES  # with escapes


def entity_fields(entity: Entity) -> list[Any]:
    """A row as a list of JSON's own types; those that JSON lacks are tagged."""

    def tag(value: Value) -> object:
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, datetime):
            return {"at": value.isoformat()}
        return value

    properties = {name: tag(value) for name, value in entity.properties.items()}
    return [entity.partition_key, entity.row_key, properties]


def entity_of(fields: object, etag: str | None = None) -> Entity:
    """The reverse of :func:`entity_fields`. Raises ``ValueError``."""

    def untag(value: object) -> Value:
        match value:
            case {"bytes": str(encoded)}:
                return base64.b64decode(encoded, validate=True)
            case {"at": str(at)}:
                return datetime.fromisoformat(at)
            case bool() | int() | float() | str():
                return value
        raise ValueError(f"no property value: {value!r}")

    match fields:
        case [str(partition_key), str(row_key), dict(properties)]:
            return Entity(
                partition_key=partition_key,
                row_key=row_key,
                properties={str(name): untag(value) for name, value in properties.items()},
                etag=etag,
            )
    raise ValueError("no row")


def format_entity(entity: Entity) -> bytes:
    return json.dumps(entity_fields(entity)).encode()


def parse_entity(text: bytes) -> Entity:
    """The reverse of :func:`format_entity`. Raises ``ValueError``."""
    return entity_of(json.loads(bounded_json(text, TEXT_MAX_BYTES)))
