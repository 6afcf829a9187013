"""Error handlers that convert every expected error to an RFC 9457 problem document."""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from broadside.coordinator.api.conditional import ConditionalRoute
from broadside.coordinator.api.error_locations import NO_BODY, error_location, json_pointer
from broadside.coordinator.api.expected_errors import EXPECTED, describe_error
from broadside.coordinator.api.request_body import PARSED_BODY, InvalidBody
from broadside.coordinator.auth.permissions import allowed_methods
from broadside.coordinator.core.plan.planner import Infeasible
from broadside.coordinator.request_errors import RequestError
from broadside.exchange.messages import Message

# Prefix for the `type` in a problem document. The address explains the problem.
TYPES: Final = "/problems/"
# Problems without an exception class, and those whose class describes more than this problem.
_OTHER: Final[Mapping[str, tuple[int, str]]] = {
    "Invalid request": (
        422,
        "A field or parameter is invalid. `errors` names each one, with the allowed values.",
    ),
    "Not feasible": (
        409,
        "The agents that are available cannot execute the run. `errors` has each reason and a fix.",
    ),
    "Not signed in": (401, "The token is missing, unknown, expired or revoked. Send a valid one."),
    "Not allowed": (403, "The role of the token does not allow this request."),
    "Sign-in unavailable": (503, "Keys or tokens cannot be read at the moment. Retry later."),
    "Too many writes": (429, "The limit of writes is reached. Retry after `Retry-After` seconds."),
    "Too many requests at once": (
        429,
        "The limit of concurrent requests is reached. Retry after `Retry-After` seconds.",
    ),
    "Too large": (413, "The body is larger than the limit. Send less."),
    "Not found": (404, "There is no such address."),
    "Method not allowed": (405, "The address does not support this method. `Allow` lists others."),
    "Request rejected": (
        400,
        "The body does not match its headers, or a page of another site sent the request.",
    ),
    "Internal error": (500, "The coordinator has a fault. Its log has the details."),
    "Exchange unavailable": (503, "The queue or a table does not respond. Retry later."),
    "Record unreadable": (
        503,
        "A stored record cannot be read. It is damaged, or another version wrote it.",
    ),
    "Bad schedule": (422, "The schedule is invalid. The detail has the reason."),
    "Bad scenario": (422, "The scenario is invalid. The detail names the field and the fix."),
    "Bad prices": (422, "The price list is invalid. The detail names the price."),
    "Bad import": (422, "The measurements cannot be imported. The detail names the file or row."),
    "Cannot write": (422, "The file format cannot contain this table. Choose another format."),
    "Too long": (422, "The table has too many rows for this format. Choose another format."),
    "Not acceptable": (406, "None of the media types in `Accept` is available."),
}
# Maximum number of errors in one response, because a body can have thousands.
_FAULTS_MAX_COUNT: Final = 100
# Maximum length of a wrong value in a response.
_VALUE_MAX_CHARS: Final = 200
_SHORT: Final = reprlib.Repr()
vars(_SHORT).update(maxlevel=4, maxstring=_VALUE_MAX_CHARS, maxother=_VALUE_MAX_CHARS)
vars(_SHORT).update(maxdict=20, maxlist=20, maxtuple=20)
# Problems that can end without a change of the request, and seconds until a client should retry.
_RETRYABLE: Final = frozenset({"Exchange unavailable", "Sign-in unavailable", "Not ready"})
_RETRY_AFTER_S: Final = 5
_BY_STATUS: Final = {404: "Not found", 405: "Method not allowed", 413: "Too large"}


def _request_errors(base: type[RequestError] = RequestError) -> Iterator[type[RequestError]]:
    for error in base.__subclasses__():
        yield error
        yield from _request_errors(error)


def _kinds() -> Mapping[str, tuple[int, str]]:
    """Return every title with its status code and its meaning in one sentence."""
    kinds = {
        error.title: (error.status, " ".join((error.__doc__ or "").split()))
        for error in _request_errors()
        if "title" in vars(error)
    }
    return {**kinds, **_OTHER}


KINDS: Final = _kinds()


def type_of(title: str) -> str:
    """Return the URI that identifies a type of problem."""
    return TYPES + title.lower().replace(" ", "-")


class Fault(Message):
    """One thing that is wrong with a request, and where.

    Attributes:
        field: Name of the field for the user.
        message: What is wrong, with the given value and the limit.
        pointer: JSON pointer (RFC 6901) into the request body.
        parameter: Parameter name in the query, the path or the headers.
        value: The value as it was parsed.
        fix: How to fix it.
    """

    field: str
    message: str
    pointer: str | None = None
    parameter: str | None = None
    value: str | None = None
    fix: str | None = None


class ProblemDocument(Message):
    """RFC 9457 problem details; `type` is an address that explains it.

    Attributes:
        type: Address of a page that explains the error.
        title: Short name of the error, the same for each occurrence.
        status: HTTP status.
        detail: What happened, with values and the next step.
        errors: All faults, with one entry for each field. It is absent if the error is not about a
            field.
    """

    type: str
    title: str
    status: int
    detail: str
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
    raise HTTPException(404, f"{TYPES}{name}: no such problem; {TYPES[:-1]} lists all")


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
        headers: Additional headers of the response. None adds none.
    """
    if title in _RETRYABLE:
        headers = {"Retry-After": str(_RETRY_AFTER_S), **(headers or {})}
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


def _fault(error: Mapping[str, Any], body: object) -> Mapping[str, Any]:
    """Convert a pydantic error to a field error with its location."""
    if error["type"] == "json_invalid":
        message = f"not JSON: {error['ctx']['error']} at character {error['loc'][-1]}"
        return {"field": "body", "message": message, "pointer": ""}
    place, *path = error["loc"]
    location = (
        {"pointer": json_pointer(error, body)}
        if place == "body"
        else {"parameter": "-".join(map(str.capitalize, path[0].split("-")))}
        if place == "header"
        else {"parameter": str(path[0])}
    )
    if place == "body" and not path and isinstance(body, bytes):
        message = "the body must be application/json; set the header to that"
        return {"field": "Content-Type", "message": message, "parameter": "Content-Type"}
    return {
        "field": ".".join(str(part) for part in error["loc"]),
        "message": error["msg"].removeprefix("Value error, "),
        "value": _quoted(error.get("input")),
        **location,
    }


def _quoted(value: object) -> str:
    """Return the start of the ``repr`` without converting a large value completely."""
    if isinstance(value, str):
        return repr(value[:_VALUE_MAX_CHARS])[:_VALUE_MAX_CHARS]
    if isinstance(value, dict | list | tuple) and len(value) > 0:
        return _SHORT.repr(value)[:_VALUE_MAX_CHARS]
    return repr(value)[:_VALUE_MAX_CHARS]


def handle_errors(app: FastAPI) -> None:
    """Add error handlers to the application."""

    async def expected(request: Request, error: Exception) -> JSONResponse:
        described = describe_error(error)
        assert described is not None  # noqa: S101 - the handler is registered for expected errors
        faults: list[Mapping[str, Any]] = []
        if described.status < 500:
            body = request.scope.get(PARSED_BODY, NO_BODY)
            places = ((field, error_location(field, request, body)) for field in described.fields)
            faults = [{**field, **place} for field, place in places if place is not None]
        return problem(described.status, described.title, described.detail, faults)

    for kind in (*EXPECTED, RequestError, Infeasible):
        app.add_exception_handler(kind, expected)

    @app.exception_handler(InvalidBody)
    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError | InvalidBody) -> JSONResponse:
        errors = error.errors()
        faults = [_fault(part, error.body) for part in errors[:_FAULTS_MAX_COUNT]]
        detail = " | ".join(
            f"{f['field']}: {f['message']}" + (f" (got {f['value']})" if "value" in f else "")
            for f in faults
        )
        if len(errors) > len(faults):
            detail += f" | and {len(errors) - len(faults)} more"
        return problem(422, "Invalid request", detail, faults)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        title = _BY_STATUS.get(error.status_code, "Request rejected")
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(allowed_methods(request.url.path))
        why = str(error.detail)
        # The server could not process the body.
        in_body = [{"field": "body", "message": why, "pointer": ""}]
        faults = in_body if error.status_code in (400, 413) else []
        return problem(error.status_code, title, why, faults, headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        """Return a 500 response without details. The server logs the traceback."""
        why = f"{type(error).__name__} in the coordinator. Its log has the details."
        return problem(500, "Internal error", why)
