"""Strict parser for untrusted JSON, used by API, agents' port, agents and device clients.

RFC 8259 does not define what duplicate names mean, and Python uses the last one. Python also
accepts *NaN* and *Infinity*, which are not JSON. Both are rejected. Size, nesting depth and number
of values are checked before parsing.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from pydantic import BaseModel

# The deepest nesting to accept. Our messages have at most a dozen levels.
DEPTH_MAX_COUNT: Final = 32

# It will take about a millisecond to parse a smaller text.
LARGE_FROM_BYTES: Final = 65_536

# ``finditer`` lets other threads run between two matches. If we used a single call for the whole
# text, it would block all threads.
_STRINGS_AND_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)

_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=BaseModel)
Path = tuple[str | int, ...]


class TooMuch(ValueError):
    """JSON that exceeds the limits for size, nesting depth or number of members."""


class DuplicateNames(ValueError):
    """JSON objects that contain a name more than once.

    Attributes:
        value: The parsed value, with the last member of each name.
        paths: Path of each duplicate member.
    """

    def __init__(self, value: object, paths: Sequence[Path]) -> None:
        super().__init__(f"{'.'.join(map(str, paths[0]))}: the name occurs more than once")
        self.value = value
        self.paths = paths


def bounded_json(body: bytes | str, max_bytes: int) -> str:
    """Check the size and nesting depth of JSON text and return the text.

    Args:
        body: JSON text.
        max_bytes: The maximum length.

    Returns:
        The text, decoded from UTF-8.

    Raises:
        TooMuch: The text is too large or nested too deep.
        ValueError: The bytes are not UTF-8.
    """
    if len(body) > max_bytes:
        raise TooMuch(f"{len(body)} bytes of JSON; the limit is {max_bytes}")
    text = body.decode() if isinstance(body, bytes) else body
    if (depth := _depth(text)) > DEPTH_MAX_COUNT:
        raise TooMuch(f"JSON nested {depth} levels deep; the limit is {DEPTH_MAX_COUNT}")
    return text


def parse_strict_json(
    body: bytes | str, max_bytes: int, *, names_max_count: int | None = None
) -> Any:
    """Parse JSON and reject what is ambiguous or too large.

    Args:
        body: JSON text.
        max_bytes: The maximum length.
        names_max_count: The maximum number of members of one object, or None.

    Returns:
        The value: dicts, lists, texts, numbers, booleans and None.

    Raises:
        TooMuch: A limit is exceeded.
        DuplicateNames: An object contains a name more than once.
        ValueError: The text is not JSON.
    """
    text = bounded_json(body, max_bytes)
    duplicates: list[tuple[Mapping[str, Any], str]] = []

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if names_max_count is not None and len(pairs) > names_max_count:
            raise TooMuch(f"an object of {len(pairs)} members; the limit is {names_max_count}")
        members = dict(pairs)
        if len(members) < len(pairs):
            names = [name for name, _ in pairs]
            duplicates.extend((members, name) for name in members if names.count(name) > 1)
        return members

    def reject_constant(name: str) -> NoReturn:
        raise json.JSONDecodeError(f"{name} is not a JSON value", text, max(0, text.find(name)))

    # The hooks are Python functions, which let other threads run while a large text is parsed.
    large: dict[str, Any] = {"parse_int": lambda text: int(text), "parse_float": lambda t: float(t)}
    value = json.loads(
        text,
        object_pairs_hook=make_object,
        parse_constant=reject_constant,
        **(large if len(text) > LARGE_FROM_BYTES else {}),
    )
    if duplicates:
        paths = {id(member): path for path, _, member in walk(value)} | {id(value): ()}
        raise DuplicateNames(value, [(*paths[id(member)], name) for member, name in duplicates])
    return value


def parse_strict_model(model: type[_Model], body: bytes | str, max_bytes: int) -> _Model:
    """Return a model from JSON that :func:`parse_strict_json` accepts.

    Args:
        model: The class to parse.
        body: JSON text.
        max_bytes: The maximum length.

    Raises:
        ValueError: The text is not strict JSON, or does not have this type.
    """
    parse_strict_json(body, max_bytes)
    return model.model_validate_json(body)


async def read_json(body: bytes, max_bytes: int) -> Any:
    """Parse JSON as :func:`read_json_as` does, and return the value itself.

    Args:
        body: JSON text.
        max_bytes: The maximum size in bytes.

    Returns:
        The value: dicts, lists, texts, numbers, booleans and None.

    Raises:
        ValueError: The text is not JSON, ambiguous, too large (:class:`TooMuch`) or nested too
            deep.
    """
    return await read_json_as(body, max_bytes, lambda value: value)


async def read_json_as(body: bytes, max_bytes: int, convert: Callable[[Any], _T]) -> _T:
    """Parse untrusted JSON, in a thread if it is large, so that the event loop is not blocked.

    Args:
        body: JSON text.
        max_bytes: The maximum size in bytes.
        convert: A function that converts the value, called in the same thread.

    Returns:
        The result of ``convert``.

    Raises:
        ValueError: The text is not JSON, ambiguous, too large (:class:`TooMuch`) or nested too
            deep. Errors of ``convert`` are raised too.
    """

    def parse() -> _T:
        return convert(parse_strict_json(body, max_bytes))

    return await asyncio.to_thread(parse) if len(body) > LARGE_FROM_BYTES else parse()


def walk(value: object) -> Iterator[tuple[Path, str | int, object]]:
    """Yield path, key and value of everything in a parsed JSON value, breadth first."""
    waiting: deque[tuple[Path, object]] = deque([((), value)])
    while waiting:
        path, parent = waiting.popleft()
        members: Iterable[tuple[str | int, object]] = ()
        if isinstance(parent, Mapping):
            members = parent.items()
        elif isinstance(parent, list):
            members = enumerate(parent)
        for key, member in members:
            yield (*path, key), key, member
            if isinstance(member, Mapping | list):
                waiting.append(((*path, key), member))


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
                if (path := lone_surrogate(inner, f"{place}.{name}".lstrip("."))) is not None:
                    return path
        case list():
            for number, inner in enumerate(value):
                if (path := lone_surrogate(inner, f"{place}[{number}]")) is not None:
                    return path
    return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _depth(text: str) -> int:
    if text.count("[") + text.count("{") <= DEPTH_MAX_COUNT:
        # The text does not have enough brackets to be nested deeper.
        return 0
    depth = deepest = 0
    for match in _STRINGS_AND_BRACKETS.finditer(text):
        first = text[match.start()]
        if first != '"':
            depth += 1 if first in "[{" else -1
            deepest = max(deepest, depth)
    return deepest
