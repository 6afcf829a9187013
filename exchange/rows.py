"""A message as one row: the ``json`` property, and the error that names a row nobody can read.

JSON that somebody else wrote is looked at before it is parsed.
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

DEPTH_MAX_COUNT: Final = 32  # brackets one in another; ours have at most a dozen

LARGE_FROM_BYTES: Final = 65_536  # below it a text is parsed in about a millisecond

# A search match by match: between two, another thread may go on. One call for a whole text blocks
# all threads for as long as it takes.
_STRINGS_AND_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


class TooMuch(ValueError):
    """It is larger, or nested deeper, than anything of ours."""


def bounded_json(body: bytes | str, max_bytes: int) -> str:
    """The text as it is. Raises :class:`TooMuch`, and ``ValueError`` for what is not UTF-8."""
    if len(body) > max_bytes:
        raise TooMuch(f"{len(body)} bytes of JSON; {max_bytes} at most are read")
    text = body.decode() if isinstance(body, bytes) else body
    if (depth := _depth(text)) > DEPTH_MAX_COUNT:
        raise TooMuch(f"JSON nested {depth} deep; {DEPTH_MAX_COUNT} levels at most are read")
    return text


def lone_surrogate(value: object, place: str = "") -> str | None:
    """Return where parsed JSON has a text that cannot be encoded; None where all texts can.

    JSON can write half of a character. Python keeps it, and then neither an answer, a log nor
    a row can hold the text.

    Args:
        value: What ``json.loads`` returned, of a bounded depth.
        place: The path of ``value``, for the messages of the caller.
    """
    match value:
        case str():
            return None if value.isascii() or _is_encodable(value) else place or "text"
        case dict():
            for name, inner in value.items():
                if not (name.isascii() or _is_encodable(name)):
                    return f"a name in {place or 'it'}"
                if (found := lone_surrogate(inner, f"{place}.{name}".lstrip("."))) is not None:
                    return found
        case list():
            for number, inner in enumerate(value):
                if (found := lone_surrogate(inner, f"{place}[{number}]")) is not None:
                    return found
    return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _depth(text: str) -> int:
    if text.count("[") + text.count("{") <= DEPTH_MAX_COUNT:
        return 0  # it cannot be deeper: most texts need no closer look
    depth = deepest = 0
    for found in _STRINGS_AND_BRACKETS.finditer(text):
        first = text[found.start()]
        if first != '"':
            depth += 1 if first in "[{" else -1
            deepest = max(deepest, depth)
    return deepest


_T = TypeVar("_T")


async def read_json(
    body: bytes, max_bytes: int, read: Callable[[Any], _T] = lambda told: told
) -> _T:
    """Parse JSON that somebody else sent; a large one in a thread, beside which the loop goes on.

    Args:
        body: The text.
        max_bytes: Most bytes.
        read: Makes what is wanted from the value, in the same thread.

    Raises:
        ValueError: It is no JSON, too large (:class:`TooMuch`) or nested too deep; and whatever
            ``read`` raises.
    """

    def parsed() -> _T:
        return read(_load(bounded_json(body, max_bytes)))

    return await asyncio.to_thread(parsed) if len(body) > LARGE_FROM_BYTES else parsed()


def _load(text: str) -> Any:
    """``json.loads`` with hooks in Python, at which another thread may go on."""
    if len(text) <= LARGE_FROM_BYTES:
        return json.loads(text)
    return json.loads(
        text,
        object_hook=lambda told: told,
        parse_int=lambda digits: int(digits),
        parse_float=lambda digits: float(digits),
    )


_M = TypeVar("_M", bound=Message)

_TOLD_MAX_COUNT: Final = 10_000  # unreadable rows that are remembered as logged

log = logging.getLogger(__name__)
_told: set[str] = set()


def make_row(partition: str, key: str, properties: Mapping[str, Value]) -> Entity:
    return Entity(partition_key=partition, row_key=key, properties=properties)


def message_row(partition: str, key: str, message: Message) -> Entity:
    return make_row(partition, key, {"json": message.to_json()})


def parse_row(model: type[_M], row: Entity) -> _M:
    try:
        text = bounded_json(str(row.properties.get("json")), PROPERTY_MAX_BYTES)
        return model.model_validate_json(text, extra=model.unknown_fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "json"
        raise RecordUnreadable(
            plain_text(
                f"row {row_name(row)}: not a {model.__name__} that this Broadside reads "
                f"({where}: {first['msg']}); was it written by another version?"
            )
        ) from error
    except Exception as error:  # whatever it is made of, it is this row's end
        raise RecordUnreadable(
            plain_text(f"row {row_name(row)}: not a {model.__name__}: {error!r}")
        ) from error


def leave_out(error: RecordUnreadable) -> None:
    """Say in the log, once, that a row is left out; the error names it.

    Whoever may write a row may spoil it; that costs that row, and never its neighbours.
    """
    said = str(error)
    if said not in _told:
        if len(_told) >= _TOLD_MAX_COUNT:
            _told.clear()
        _told.add(said)
        log.warning("left out: %s", error, extra={"action": "unreadable"})


def try_row(model: type[_M], row: Entity) -> _M | None:
    """The message in a row; None where it cannot be read, which is logged once."""
    try:
        return parse_row(model, row)
    except RecordUnreadable as error:
        leave_out(error)
        return None


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
