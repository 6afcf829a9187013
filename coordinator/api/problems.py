"""Every expected error as one RFC 9457 problem document."""

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

TYPES: Final = "/problems/"  # what a problem's `type` begins with; the address explains it
_NOT_SENT: Final[Mapping[str, tuple[int, str]]] = {  # beside the expected errors, by title
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
_FAULTS_MAX_COUNT: Final = 100  # of one answer: a body may be wrong in thousands of places
_VALUE_MAX_CHARS: Final = 200  # of a wrong value, in an answer
_SHORT: Final = reprlib.Repr()
vars(_SHORT).update(maxlevel=4, maxstring=_VALUE_MAX_CHARS, maxother=_VALUE_MAX_CHARS)
vars(_SHORT).update(maxdict=20, maxlist=20, maxtuple=20)
_BY_STATUS: Final = {404: "Not found", 405: "Method not allowed", 413: "Too large"}


def _kinds() -> Mapping[str, tuple[int, str]]:
    """Every title that an answer may have: its status, and what it means in a sentence."""
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

    field: str  # as a person names it
    message: str
    pointer: str | None = None  # RFC 6901, into the request's body
    parameter: str | None = None  # of the query, the path or the headers
    value: str | None = None  # as it was understood
    fix: str | None = None


class ProblemDocument(Message):
    """RFC 9457 problem details; `type` is an address that explains it."""

    type: str
    title: str
    status: int
    detail: str
    errors: tuple[Fault, ...] | None = None  # left out where nothing in particular is wrong


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": ProblemDocument, "content": {"application/problem+json": {}}}
    for code in (404, 409, 422, 503)
}
"""What any route may answer beside its own value: `responses=PROBLEMS`."""

router = APIRouter(include_in_schema=False, route_class=ConditionalRoute)


@router.get(TYPES[:-1])
@router.get(TYPES)
async def list_problems() -> PlainTextResponse:
    """Every address that a problem's `type` may be."""
    lines = sorted((type_of(title), status, title) for title, (status, _) in KINDS.items())
    return PlainTextResponse("".join(f"{at}  {status}  {title}\n" for at, status, title in lines))


@router.get(TYPES + "{name}")
async def explain_problem(name: str) -> PlainTextResponse:
    """What a problem's `type` points at."""
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
    """A problem as an answer."""
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
    """One of pydantic's findings, with where it is."""
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
    """The beginning of a value's ``repr``; of a large one no more than that is built."""
    if isinstance(value, str):
        return repr(value[:_VALUE_MAX_CHARS])[:_VALUE_MAX_CHARS]
    if isinstance(value, dict | list | tuple) and len(value) > 0:
        return _SHORT.repr(value)[:_VALUE_MAX_CHARS]
    return repr(value)[:_VALUE_MAX_CHARS]


async def _sent(request: Request) -> object:
    """A request's body, where its route reads one: it was found to be JSON before."""
    reads = getattr(request.scope.get("route"), "body_field", None) is not None
    text = await request.body() if reads else b""
    return json.loads(text) if text else NO_BODY


def handle_errors(app: FastAPI) -> None:
    """Map every expected error to one problem document."""

    async def expected(request: Request, error: Exception) -> JSONResponse:
        said = told(error)
        assert said is not None  # noqa: S101 - it is registered for what is in the table only
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
        read = [{"field": "body", "message": why, "pointer": ""}]  # by whoever cannot go on with it
        faults = read if error.status_code in (400, 413) else []
        return problem(error.status_code, title, why, faults, headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        """The server logs the traceback; who asks learns that it is not his fault, and no more."""
        why = f"{type(error).__name__} in the coordinator; its log has the details"
        return problem(500, "Unexpected", why)
