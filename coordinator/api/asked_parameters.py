"""Parameters that a route does not know are refused by name: a misspelt filter must not be none."""

import difflib
from collections.abc import Sequence

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from coordinator.api.blame import parameters_of

_ASKED = ("/v1/", "/metrics", "/healthz", "/readyz")  # not the page, which reads its own address


async def known_parameters_only(request: Request) -> None:
    """Raises :class:`RequestValidationError`, which names each unknown one and what is near."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    if not request.url.path.startswith(_ASKED):
        return
    known = parameters_of(route)
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if unknown:
        raise RequestValidationError(
            [
                {
                    "type": "unknown_parameter",
                    "loc": ("query", name),
                    "msg": f"no such parameter; {_hint(name, known)}",
                    "input": request.query_params[name],
                }
                for name in unknown
            ]
        )


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"there are: {', '.join(known)}" if known else "this address takes none"
