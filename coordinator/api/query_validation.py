"""Validation that rejects unknown and repeated query parameters.

Without it, a misspelt filter would have no effect, and a repeated value would be ignored.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from broadside.coordinator.api.error_locations import query_parameters
from broadside.coordinator.api.request_body import DUPLICATE

# We do not include the live page, because it has to read its own parameters.
_CHECKED = ("/v1/", "/metrics", "/healthz", "/readyz", "/openapi.json", "/problems")


async def reject_unknown_parameters(request: Request) -> None:
    """Reject unknown query parameters, and repeated parameters that accept one value.

    Raises:
        RequestValidationError: It has one error for each parameter. For an unknown one, it
            suggests a similar name.
    """
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not request.url.path.startswith(_CHECKED):
        return
    known = query_parameters(route)
    errors: list[Mapping[str, Any]] = []
    for name in dict.fromkeys(request.query_params):
        values = request.query_params.getlist(name)
        location = {"loc": ("query", name), "input": values[0]}
        if name not in known:
            message = f"no such parameter; {_hint(name, list(known))}"
            errors.append({**location, "type": "unknown_parameter", "msg": message})
        elif len(values) > 1 and not known[name]:
            errors.append({**location, "type": "duplicate", "msg": DUPLICATE, "input": values})
    if errors:
        raise RequestValidationError(errors)


def _hint(name: str, known: Sequence[str]) -> str:
    similar = difflib.get_close_matches(name, known, n=1)
    if similar:
        return f"did you mean {similar[0]}?"
    return f"there are: {', '.join(known)}" if known else "this address takes none"
