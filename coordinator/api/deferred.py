"""Large request bodies: validated in a worker thread, where the event loop waits for none."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, cast

from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError, WrapValidator

_T = TypeVar("_T")

# Each wrong item is an error of its own, and pydantic makes all of them before it counts. The lists
# of a body itself may be long where their type ends at the first error (``FailFast``).
ITEMS_MAX_COUNT: Final = 10_000  # of one list within another value
OWN_ITEMS_MAX_COUNT: Final = 100_000  # of a body's own list: rows, points


def _as_it_is(value: Any, _: Any) -> Any:
    return value


Deferred = Annotated[_T, WrapValidator(_as_it_is)]
"""A body that its route validates by :func:`validated`; its schema is that of the type."""


async def validated(
    form: TypeAdapter[_T], value: object, bound: Callable[[Any], None] = lambda _: None
) -> _T:
    """Validate a body of parsed JSON in a worker thread.

    Args:
        form: The body's type.
        value: The body.
        bound: Refuses a body before anything is built from it, by ``HTTPException``.

    Raises:
        RequestValidationError: As FastAPI raises it for other bodies.
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
    """Return an error's parts with their place in the request.

    A list that ends at its first wrong item is also reported as too short, which is left out.
    """
    found = error.errors(include_url=False)
    return [
        {**each, "loc": ("body", *each["loc"])}
        for each in found
        if each["type"] != "too_short"
        or not any(one["loc"][:-1][: len(each["loc"])] == each["loc"] for one in found)
    ]


def _too_many(body: object) -> dict[str, Any] | None:
    """The error of the first list that is too large, in the form of pydantic's."""
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
