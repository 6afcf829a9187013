"""Parsing and validation of request bodies.

A large body is parsed and validated in a worker thread, so that the event loop is not blocked.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError, WrapValidator
from starlette.exceptions import HTTPException

from broadside.exchange.strict_json import (
    LARGE_FROM_BYTES,
    DuplicateNames,
    TooMuch,
    parse_strict_json,
    walk,
)

_T = TypeVar("_T")

# Maximum number of values in a body. Each value can be an object with its own error.
VALUES_MAX_COUNT: Final = 20_000
# Enough for 100,000 rows with 25 fields, or 100,000 points with three fields.
IMPORT_VALUES_MAX_COUNT: Final = 3_000_000
# Limit for one object. More labels do not fit into a run row.
NAMES_MAX_COUNT: Final = 5_000
# Maximum number of lists, counted by opening brackets, also those in strings. It allows three
# lists (of addresses) in each of 100,000 rows. The parser creates lists without a pause for other
# threads, and takes 0.1 s for this number.
LISTS_MAX_COUNT: Final = 300_000
# Values for each object of an import. A row has ten.
_OBJECT_VALUES_COUNT: Final = 50
IMPORTS: Final = "/v1/imports/"
# Key of the parsed body in the request scope.
PARSED_BODY: Final = "broadside.parsed_body"
DUPLICATE: Final = "it is there more than once; give it once"

# pydantic creates an error for each wrong item before it counts them. The top-level lists in a body
# can be long, because their types stop at the first error (``FailFast``).
# Limit for a list inside another value.
ITEMS_MAX_COUNT: Final = 10_000
# Limit for a top-level list in the body, such as rows or points.
OWN_ITEMS_MAX_COUNT: Final = 100_000


class InvalidBody(HTTPException):
    """Errors of a parsed body. FastAPI passes only an ``HTTPException`` on from the parser."""

    def __init__(self, errors: list[dict[str, Any]], body: object) -> None:
        super().__init__(422)
        self._errors = errors
        self.body = body

    def errors(self) -> list[dict[str, Any]]:
        return self._errors


def max_values(path: str, text: bytes) -> int:
    """Return the maximum number of values in a body, which are counted by commas before parsing.

    An import can have more values, but in many small objects. The parser creates one large object
    without a pause for other threads.

    Args:
        path: Path of the request.
        text: Body of the request.
    """
    if not path.startswith(IMPORTS):
        return VALUES_MAX_COUNT
    spread_count = VALUES_MAX_COUNT + _OBJECT_VALUES_COUNT * text.count(b"{")
    return min(IMPORT_VALUES_MAX_COUNT, spread_count)


def use_strict_json(request: Request) -> None:
    """Replace the request's JSON parser, which FastAPI calls, by the strict one."""

    async def read() -> Any:
        text = await request.body()
        limits = (
            ("lists", text.count(b"["), LISTS_MAX_COUNT),
            ("values", text.count(b","), max_values(request.url.path, text)),
        )
        for name, count, max_count in limits:
            if count > max_count:
                raise HTTPException(413, f"{count} {name} in the body; the limit is {max_count}")
        is_small = len(text) <= LARGE_FROM_BYTES
        value = _parse(text) if is_small else await asyncio.to_thread(_parse, text)
        request.scope[PARSED_BODY] = value
        return value

    request.json = read  # type: ignore[method-assign]


def _parse(text: bytes) -> Any:
    try:
        return parse_strict_json(text, len(text), names_max_count=NAMES_MAX_COUNT)
    except TooMuch as error:
        raise HTTPException(413, str(error)) from error
    except DuplicateNames as error:
        errors = [
            {"type": "duplicate_name", "loc": ("body", *path), "msg": DUPLICATE, "input": path[-1]}
            for path in error.paths
        ]
        raise InvalidBody(errors, error.value) from error
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error


Deferred = Annotated[_T, WrapValidator(lambda value, _: value)]
"""Body that its route validates with ``validated``. The type defines the schema."""


async def validated(
    form: TypeAdapter[_T], value: object, bound: Callable[[Any], None] = lambda _: None
) -> _T:
    """Validate a parsed JSON body in a worker thread.

    Args:
        form: Expected type of the body.
        value: Parsed body.
        bound: Check that runs before validation. It raises ``HTTPException`` to reject the body.

    Returns:
        The validated body.

    Raises:
        RequestValidationError: The body is invalid, in the same form as for other bodies.
    """

    def validate() -> _T | list[Any]:
        if (too_long := _too_long(value)) is not None:
            return [too_long]
        bound(value)
        try:
            return form.validate_python(value)
        except ValidationError as error:
            return _located(error)

    result = await asyncio.to_thread(validate)
    if isinstance(result, list):
        raise RequestValidationError(result, body=value)
    return result


def _located(error: ValidationError) -> list[Any]:
    """Return the parts of an error with their location in the request.

    A list that ends at its first wrong item is also reported as too short. That error is left out.
    """
    errors = error.errors(include_url=False)
    return [
        {**part, "loc": ("body", *part["loc"])}
        for part in errors
        if part["type"] != "too_short"
        or not any(one["loc"][:-1][: len(part["loc"])] == part["loc"] for one in errors)
    ]


def _too_long(body: object) -> dict[str, Any] | None:
    """Return a pydantic-like error for the first list that is too long, or None."""
    for path, _, value in walk([body]):
        if isinstance(value, list):
            # The path begins with the index in the list around the body.
            limit = OWN_ITEMS_MAX_COUNT if len(path) == 2 else ITEMS_MAX_COUNT
            if len(value) > limit:
                message = f"{len(value)} values; the limit is {limit}"
                return {
                    "type": "too_long",
                    "loc": ("body", *path[1:]),
                    "msg": message,
                    "input": None,
                }
    return None
