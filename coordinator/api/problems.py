"""Every expected error as one RFC 9457 problem document."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from coordinator.core.plan.planner import Infeasible
from coordinator.expected_errors import EXPECTED, told
from exchange.messages import Message


class Problem(Message):
    """RFC 9457 problem details."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: Sequence[Mapping[str, Any]] = ()


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": Problem, "content": {"application/problem+json": {}}}
    for code in (404, 409, 422, 503)
}
"""What any route may answer beside its own value: `responses=PROBLEMS`."""


def problem(
    status: int,
    title: str,
    detail: str,
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """A problem as an answer."""
    body = Problem(title=title, status=status, detail=detail, errors=errors)
    return JSONResponse(
        body.model_dump(mode="json"),
        status,
        headers=headers,
        media_type="application/problem+json",
    )


def handle_errors(app: FastAPI) -> None:
    """Map every expected error to one problem document."""

    async def expected(_: Request, error: Exception) -> JSONResponse:
        said = told(error)
        assert said is not None  # noqa: S101 - it is registered for what is in the table only
        return problem(*said)

    for error in (*EXPECTED, Infeasible):
        app.add_exception_handler(error, expected)

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError) -> JSONResponse:
        faults = [
            {
                "field": ".".join(str(part) for part in fault["loc"]),
                "message": fault["msg"],
                "value": repr(fault.get("input"))[:200],
            }
            for fault in error.errors()
        ]
        detail = " | ".join(f"{f['field']}: {f['message']} (got {f['value']})" for f in faults)
        return problem(422, "Bad request", detail, faults)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, "Refused", str(error.detail), headers=error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        """The server logs the traceback; who asks learns that it is not his fault, and no more."""
        why = f"{type(error).__name__} in the coordinator; its log has the details"
        return problem(500, "Unexpected", why)
