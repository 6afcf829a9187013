"""Every expected error as one RFC 9457 problem document."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from coordinator import scenarios
from coordinator.api.formats import NotAcceptable
from coordinator.core.measure.second_table import TableTooLong
from coordinator.core.plan.planner import Infeasible
from coordinator.core.plan.schedule import BadSchedule
from coordinator.imports import BadFile
from coordinator.prices import BadPrices
from coordinator.refusals import (
    BadStudy,
    BurstNotOver,
    EmptyGroup,
    KeyReused,
    LaunchUnderWay,
    NameTaken,
    NoChart,
    NoLedger,
    NoRaw,
    RunIsOver,
    RunNotOver,
    TooManyViewers,
    UnknownBurst,
    UnknownPair,
    UnknownRun,
    UnknownSchedule,
    UnknownStudy,
)
from coordinator.runs.dead_letters import CannotResend, UnknownDeadLetter
from coordinator.runs.listing import BadGrouping
from coordinator.views.cursors import BadCursor
from coordinator.views.exports import CannotWrite
from exchange.messages import Message
from exchange.ports import ExchangeError


class NotReady(Exception):
    """This coordinator cannot do its work just now."""


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

# error: status, title, and the detail's template, in which {} is the error's own text
_EXPECTED: Final[Mapping[type[Exception], tuple[int, str, str]]] = {
    UnknownRun: (404, "Unknown run", "run {}: no such run; list them at /v1/runs"),
    NoRaw: (404, "No raw output", "{}"),
    RunIsOver: (409, "Over", "run {0} is over; read its verdict at /v1/runs/{0}/summary"),
    RunNotOver: (409, "Not over", "run {0} is not over yet; read /v1/runs/{0}"),
    NoChart: (404, "No such chart", "{}"),
    TooManyViewers: (503, "Too many viewers", "{}"),
    UnknownBurst: (404, "Unknown burst", "{}"),
    BurstNotOver: (409, "Not over", "{}"),
    BadFile: (422, "Bad import", "{}"),
    BadGrouping: (422, "Bad grouping", "{}"),
    KeyReused: (409, "Key reused", "{}"),
    LaunchUnderWay: (409, "Under way", "{}"),
    UnknownPair: (404, "Unknown pair", "{}"),
    NotReady: (503, "Not ready", "{}"),
    NoLedger: (404, "No ledger", "{}"),
    NotAcceptable: (406, "Not acceptable", "{}"),
    CannotWrite: (422, "Cannot write", "{}"),
    TableTooLong: (422, "Too long", "{}"),
    BadCursor: (422, "Bad cursor", "{}"),
    UnknownDeadLetter: (
        404,
        "Unknown dead letter",
        "dead letter {}: there is none; list them at /v1/deadletters",
    ),
    CannotResend: (409, "Not sent again", "{}"),
    BadPrices: (422, "Bad prices", "{}"),
    UnknownSchedule: (
        404,
        "Unknown schedule",
        "schedule {}: there is none; list them at /v1/schedules",
    ),
    NameTaken: (
        409,
        "Name taken",
        "schedule {}: there is one of that name; remove it, or choose another name",
    ),
    BadSchedule: (422, "Bad schedule", "{}"),
    UnknownStudy: (404, "Unknown study", "study {}: no such study; list them at /v1/studies"),
    BadStudy: (422, "Bad study", "{}"),
    EmptyGroup: (422, "Empty group", "{}"),
    scenarios.ScenarioError: (422, "Bad scenario", "{}"),
    ExchangeError: (503, "Exchange unavailable", "{}"),
    # What a request says is checked before: these are about what is stored.
    ValidationError: (503, "Record unreadable", "{}"),
    json.JSONDecodeError: (503, "Record unreadable", "stored JSON: {}"),
    zlib.error: (503, "Record unreadable", "stored bytes: {}"),
}


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
    for error, (status, title, template) in _EXPECTED.items():
        app.add_exception_handler(error, _answer(status, title, template))

    @app.exception_handler(Infeasible)
    async def infeasible(_: Request, error: Infeasible) -> JSONResponse:
        faults = [
            {"field": fault.field, "message": fault.message, "fix": fault.fix}
            for fault in error.problems
        ]
        return problem(409, "Not feasible", str(error), faults)

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


def _answer(status: int, title: str, template: str) -> Callable[[Request, Exception], JSONResponse]:
    def answer(_: Request, error: Exception) -> JSONResponse:
        return problem(status, title, template.format(error))

    return answer
