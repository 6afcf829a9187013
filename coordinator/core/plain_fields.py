"""Conversion of a model to a flat mapping from dotted field names to text."""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from broadside.exchange.messages import Message

NOT_SET: Final = "not set"
# Texts of unknown values.
UNKNOWN_TEXTS: Final = (NOT_SET, "()")


def plain_fields(value: Message) -> Mapping[str, str]:
    """Return all fields of a model by dotted name, as text.

    Nested models and mappings are expanded. An optional nested model also has an entry ``set``.
    Example: ``{"burst_s": "30", "traffic.dscp": "not set", "device.sku": "premium"}``.
    """
    fields: dict[str, str] = {}
    for name, field in type(value).model_fields.items():
        inner = getattr(value, name)
        if isinstance(inner, Message):
            if field.default is None:
                fields[name] = "set"
            fields |= {f"{name}.{key}": text for key, text in plain_fields(inner).items()}
        elif isinstance(inner, Mapping) and inner:
            fields |= {f"{name}.{key}": _text(item) for key, item in inner.items()}
        else:
            fields[name] = _text(inner)
    return fields


def _text(value: object) -> str:
    if value is None or value == {}:
        return NOT_SET
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value.value) if isinstance(value, Enum) else str(value)
