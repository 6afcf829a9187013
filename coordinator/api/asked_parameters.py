"""Validation that rejects unknown and repeated parameters.

Without it, a misspelt filter would have no effect, and a repeated value would be ignored.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from broadside.coordinator.api.blame import parameters_of
from broadside.coordinator.api.json_once import TWICE

# The live page is not included, because it reads its own parameters.
_ASKED = (
    "/v1/",
    "/metrics",
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/problems",
)


async def known_parameters_only(request: Request) -> None:
    """Reject unknown query parameters, and repeated parameters or body members.

    Raises:
        RequestValidationError: It has one error for each parameter. For an unknown one, it
            suggests a similar name.
    """
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not request.url.path.startswith(_ASKED):
        return
    known = parameters_of(route)
    wrong: list[Mapping[str, Any]] = [
        {"type": "named_twice", "loc": ("body", *path), "msg": _TWICE, "input": path[-1]}
        for path in request.scope.get(TWICE, ())
    ]
    for name in dict.fromkeys(request.query_params):
        values = request.query_params.getlist(name)
        found = {"loc": ("query", name), "input": values[0]}
        if name not in known:
            why = f"no such parameter; {_hint(name, list(known))}"
            wrong.append({**found, "type": "unknown_parameter", "msg": why})
        elif len(values) > 1 and not known[name]:
            wrong.append({**found, "type": "named_twice", "msg": _TWICE, "input": values})
    if wrong:
        body = await request.json() if TWICE in request.scope else None
        raise RequestValidationError(wrong, body=body)


_TWICE: Final = "it is there more than once; give it once"


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"there are: {', '.join(known)}" if known else "this address takes none"
