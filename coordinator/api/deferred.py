"""Validation of large request bodies in a worker thread, so that the event loop is not blocked."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, cast

from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError, WrapValidator

_T = TypeVar("_T")

# pydantic creates an error for each wrong item before it counts them. The top-level lists in a body
# can be long, because their types stop at the first error (``FailFast``).
# Limit for a list inside another value.
ITEMS_MAX_COUNT: Final = 10_000
# Limit for a top-level list in the body, such as rows or points.
OWN_ITEMS_MAX_COUNT: Final = 100_000


def _as_it_is(value: Any, _: Any) -> Any:
    return value


Deferred = Annotated[_T, WrapValidator(_as_it_is)]
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

    def checked() -> _T | list[Any]:
        if (wrong := _too_many(value)) is not None:
            return [wrong]
        bound(value)
        try:
            return form.validate_python(value)
        except ValidationError as error:
            return _located(error)

    found = await asyncio.to_thread(checked)
    if isinstance(found, list):
        raise RequestValidationError(found, body=value)
    return found


def _located(error: ValidationError) -> list[Any]:
    """Return the parts of an error with their location in the request.

    A list that ends at its first wrong item is also reported as too short. That error is left out.
    """
    found = error.errors(include_url=False)
    return [
        {**each, "loc": ("body", *each["loc"])}
        for each in found
        if each["type"] != "too_short"
        or not any(one["loc"][:-1][: len(each["loc"])] == each["loc"] for one in found)
    ]


def _too_many(body: object) -> dict[str, Any] | None:
    """Return a pydantic-like error for the first list that is too long, or None."""
    left: list[tuple[object, tuple[str | int, ...]]] = []
    if isinstance(body, dict | list):
        left.append((body, ()))
    while left:
        value, path = left.pop()
        if isinstance(value, list):
            most = OWN_ITEMS_MAX_COUNT if len(path) == 1 else ITEMS_MAX_COUNT
            if len(value) > most:
                said = f"{len(value)} values; {most} at most are read"
                return {"type": "too_long", "loc": ("body", *path), "msg": said, "input": None}
        parts = value.items() if isinstance(value, dict) else enumerate(cast(list[Any], value))
        for key, part in parts:
            if isinstance(part, dict | list):
                left.append((part, (*path, key)))
    return None
