"""Convert a row to JSON text, for the agent's disk and for transfer to a coordinator."""

import base64
import json
import math
from datetime import datetime
from typing import Any, Final

from broadside.exchange.ports import ENTITY_MAX_BYTES, Entity, Value
from broadside.exchange.strict_json import parse_strict_json

# If a row has to be escaped in JSON, it will be longer than in the table.
TEXT_MAX_BYTES: Final = 8 * ENTITY_MAX_BYTES


def entity_fields(entity: Entity) -> list[Any]:
    """Return a row as a list of JSON types.

    Values of types that JSON does not have are wrapped in a tagged object.
    """

    def tag(value: Value) -> object:
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, datetime):
            return {"at": value.isoformat()}
        if isinstance(value, float) and not math.isfinite(value):
            return {"number": str(value)}
        return value

    properties = {name: tag(value) for name, value in entity.properties.items()}
    return [entity.partition_key, entity.row_key, properties]


def entity_of(fields: object, etag: str | None = None) -> Entity:
    """Convert the output of :func:`entity_fields` back to a row.

    Args:
        fields: List from :func:`entity_fields`, parsed from JSON.
        etag: ETag of the row. None if unknown.

    Returns:
        The row with typed values: bytes and times are decoded.

    Raises:
        ValueError: The fields are not a row.
    """

    def untag(value: object) -> Value:
        match value:
            case {"bytes": str(encoded)}:
                return base64.b64decode(encoded, validate=True)
            case {"at": str(at)}:
                return datetime.fromisoformat(at)
            case {"number": "inf" | "-inf" | "nan" as number}:
                return float(number)
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
    """Return a row as JSON text."""
    return json.dumps(entity_fields(entity)).encode()


def parse_entity(text: bytes) -> Entity:
    """Convert the output of :func:`format_entity` back to a row.

    Raises:
        ValueError: The text is not a row.
    """
    return entity_of(parse_strict_json(text, TEXT_MAX_BYTES))
