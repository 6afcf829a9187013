"""Error handlers that convert every expected error to an RFC 9457 problem document."""

import json
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from broadside.coordinator.api.blame import NO_BODY, place_of, pointer_of
from broadside.coordinator.api.conditional import ConditionalRoute
from broadside.coordinator.auth.rights import methods_of
from broadside.coordinator.core.plan.planner import Infeasible
from broadside.coordinator.expected_errors import EXPECTED, told
from broadside.exchange.messages import Message

# Prefix for the `type` in a problem document. The address explains the problem.
TYPES: Final = "/problems/"
# Problems that are not in the expected-error table, by title.
_NOT_SENT: Final[Mapping[str, tuple[int, str]]] = {
    "Bad request": (422, "A field or parameter is wrong; `errors` names each, with what would do."),
    "Not feasible": (
        409,
        "The fleet that is there cannot carry the run; `errors` has each reason.",
    ),
    "Not signed in": (401, "There is no token, or it is unknown, revoked or over."),
    "Not allowed": (403, "Who asks is known and has no role for it."),
    "Sign-in unavailable": (503, "Keys or tokens cannot be read just now; ask again."),
    "Too many writes": (429, "`Retry-After` says how many seconds to wait."),
    "Too many requests at once": (
        429,
        "This credential has as many in progress as it may; `Retry-After` says how long to wait.",
    ),
    "Too large": (413, "The body is over the limit of its route."),
    "Not found": (404, "There is no such address."),
    "Method not allowed": (405, "`Allow` says what may be asked of this address."),
    "Refused": (400, "What was sent is not what its headers say, or another site's page sent it."),
    "Unexpected": (500, "A mistake of the coordinator's; its log has the details."),
}
# Maximum number of errors in one response, because a body can have thousands.
_FAULTS_MAX_COUNT: Final = 100
# Maximum length of a wrong value in a response.
_VALUE_MAX_CHARS: Final = 200
_SHORT: Final = reprlib.Repr()
vars(_SHORT).update(maxlevel=4, maxstring=_VALUE_MAX_CHARS, maxother=_VALUE_MAX_CHARS)
vars(_SHORT).update(maxdict=20, maxlist=20, maxtuple=20)
_BY_STATUS: Final = {404: "Not found", 405: "Method not allowed", 413: "Too large"}


def _kinds() -> Mapping[str, tuple[int, str]]:
    """Return every title with its status code and its meaning in one sentence."""
    expected = {
        title: (status, " ".join((error.__doc__ or "").split("\n\n")[0].split()))
        for error, (status, title, _) in EXPECTED.items()
        if not title.startswith("Record unreadable")
    }
    unreadable = (503, "What is stored cannot be read: another version's row, or a broken one.")
    return {**expected, "Record unreadable": unreadable, **_NOT_SENT}


KINDS: Final = _kinds()


def type_of(title: str) -> str:
    return TYPES + title.lower().replace(" ", "-")


class Fault(Message):
    """One thing that is wrong with a request, and where."""

    # Field name for the user.
    field: str
    message: str
    # JSON pointer (RFC 6901) into the request body.
    pointer: str | None = None
    # Parameter name in the query, the path or the headers.
    parameter: str | None = None
    # The value as it was parsed.
    value: str | None = None
    fix: str | None = None


class ProblemDocument(Message):
    """RFC 9457 problem details; `type` is an address that explains it."""

    type: str
    title: str
    status: int
    detail: str
    # Left out if the error is not about a field.
    errors: tuple[Fault, ...] | None = None


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": ProblemDocument, "content": {"application/problem+json": {}}}
    for code in (404, 409, 422, 503)
}
"""Problem documents that any route can return, for `responses=PROBLEMS`."""

router = APIRouter(include_in_schema=False, route_class=ConditionalRoute)


@router.get(TYPES[:-1])
@router.get(TYPES)
async def list_problems() -> PlainTextResponse:
    """Return a list of all problem types."""
    lines = sorted((type_of(title), status, title) for title, (status, _) in KINDS.items())
    return PlainTextResponse("".join(f"{at}  {status}  {title}\n" for at, status, title in lines))


@router.get(TYPES + "{name}")
async def explain_problem(name: str) -> PlainTextResponse:
    """Return the explanation of a problem type."""
    for title, (status, meaning) in KINDS.items():
        if type_of(title) == TYPES + name:
            return PlainTextResponse(f"{title} ({status})\n\n{meaning}\n")
    raise HTTPException(404, f"{TYPES}{name}: no such problem; docs/problems.md lists them")


def problem(
    status: int,
    title: str,
    detail: str,
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return a problem document as a response.

    Args:
        status: HTTP status code.
        title: Title of the problem. The `type` is derived from it.
        detail: One line for the user.
        errors: Errors of single fields, with the members of :class:`Fault`.
        headers: Additional headers of the response.
    """
    body = ProblemDocument(
        type=type_of(title),
        title=title,
        status=status,
        detail=detail,
        errors=tuple(map(Fault.model_validate, errors)) or None,
    )
    return JSONResponse(
        body.model_dump(mode="json", exclude_none=True),
        status,
        headers=headers,
        media_type="application/problem+json",
    )


def _fault(found: Mapping[str, Any], body: object) -> Mapping[str, Any]:
    """Convert a pydantic error to a field error with its location."""
    if found["type"] == "json_invalid":
        why = f"no JSON: {found['ctx']['error']} at character {found['loc'][-1]}"
        return {"field": "body", "message": why, "pointer": ""}
    place, *path = found["loc"]
    where = (
        {"pointer": pointer_of(found, body)}
        if place == "body"
        else {"parameter": "-".join(map(str.capitalize, path[0].split("-")))}
        if place == "header"
        else {"parameter": str(path[0])}
    )
    if place == "body" and not path and isinstance(body, bytes):
        why = "it does not say application/json; send the body as that"
        return {"field": "Content-Type", "message": why, "parameter": "Content-Type"}
    return {
        "field": ".".join(str(part) for part in found["loc"]),
        "message": found["msg"].removeprefix("Value error, "),
        "value": _quoted(found.get("input")),
        **where,
    }


def _quoted(value: object) -> str:
    """Return the start of the ``repr`` without converting a large value completely."""
    if isinstance(value, str):
        return repr(value[:_VALUE_MAX_CHARS])[:_VALUE_MAX_CHARS]
    if isinstance(value, dict | list | tuple) and len(value) > 0:
        return _SHORT.repr(value)[:_VALUE_MAX_CHARS]
    return repr(value)[:_VALUE_MAX_CHARS]


async def _sent(request: Request) -> object:
    """Return the parsed request body, or ``NO_BODY`` if its route reads no body."""
    reads = getattr(request.scope.get("route"), "body_field", None) is not None
    text = await request.body() if reads else b""
    return json.loads(text) if text else NO_BODY


def handle_errors(app: FastAPI) -> None:
    """Add error handlers to the application."""

    async def expected(request: Request, error: Exception) -> JSONResponse:
        said = told(error)
        assert said is not None  # noqa: S101 - the handler is registered for errors in the table only
        faults: list[Mapping[str, Any]] = []
        if said.status < 500 and said.faults:
            body = await _sent(request)
            places = ((fault, place_of(fault, request, body)) for fault in said.faults)
            faults = [{**fault, **place} for fault, place in places if place is not None]
        return problem(said.status, said.title, said.detail, faults)

    for error in (*EXPECTED, Infeasible):
        app.add_exception_handler(error, expected)

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        faults = [_fault(found, error.body) for found in errors[:_FAULTS_MAX_COUNT]]
        detail = " | ".join(
            f"{f['field']}: {f['message']}" + (f" (got {f['value']})" if "value" in f else "")
            for f in faults
        )
        if len(errors) > len(faults):
            detail += f" | and {len(errors) - len(faults)} more"
        return problem(422, "Bad request", detail, faults)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        title = _BY_STATUS.get(error.status_code, "Refused")
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(methods_of(request.url.path))
        why = str(error.detail)
        # The server could not process the body.
        read = [{"field": "body", "message": why, "pointer": ""}]
        faults = read if error.status_code in (400, 413) else []
        return problem(error.status_code, title, why, faults, headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        """Return a 500 response without details. The server logs the traceback."""
        why = f"{type(error).__name__} in the coordinator; its log has the details"
        return problem(500, "Unexpected", why)
