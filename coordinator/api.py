"""The coordinator over HTTP: launch, list, read and cancel runs. Errors are RFC 9457 problems."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from coordinator import scenarios
from coordinator.answers import Recomputed
from coordinator.core.compare import Comparison
from coordinator.core.plan import Infeasible
from coordinator.core.progress import Progress
from coordinator.core.runs import RunSpec
from coordinator.core.status import RunStatus
from coordinator.core.summary import RunSummary
from coordinator.deadletters import CannotResend, DeadJob, UnknownDeadLetter
from coordinator.groups import CompareRequest, EmptyGroup
from coordinator.imports import BadFile
from coordinator.imports.results import ImportedRecordings
from coordinator.imports.tables import ImportedTable
from coordinator.imports.values import OriginalTable, Recordings
from coordinator.requests import CancelRequest, LaunchRequest
from coordinator.retention import Pruned, PruneRequest
from coordinator.service import Coordinator, NoRaw, RunIsOver, RunNotOver, UnknownRun
from exchange.messages import Message, Presence, Side
from exchange.ports import ExchangeError
from exchange.records import RunHeader


class Problem(Message):
    """RFC 9457 problem details."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: Sequence[Mapping[str, Any]] = ()


def is_loopback(host: str) -> bool:
    """Whether listening on ``host`` stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def create_app(coordinator: Coordinator, *, tick_s: float | None = 1.0) -> FastAPI:
    """The application; with ``tick_s`` it also looks after unfinished runs while it is up."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if tick_s is None:
            yield
            return
        loop = asyncio.create_task(coordinator.run_forever(tick_s))
        try:
            yield
        finally:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop

    app = FastAPI(
        title="Broadside",
        summary="Distributed load generation with a verdict",
        version="1",
        lifespan=lifespan,
    )
    _handle_errors(app)
    problems: dict[int | str, dict[str, Any]] = {
        code: {"model": Problem, "content": {"application/problem+json": {}}}
        for code in (404, 409, 422, 503)
    }

    @app.get("/healthz")
    async def health() -> Mapping[str, str]:
        """Answers while the process lives."""
        return {"status": "ok"}

    @app.get("/v1/scenarios")
    async def list_scenarios() -> Mapping[str, RunSpec]:
        """The scenarios that come with Broadside, by name."""
        return {name: scenarios.load(name) for name in scenarios.names()}

    @app.get("/v1/presences", responses=problems)
    async def list_presences() -> Sequence[Presence]:
        """Every agent that was ever heard of and did not say goodbye."""
        return await coordinator.presences()

    @app.post("/v1/runs", status_code=202, responses=problems)
    async def create_run(request: LaunchRequest, response: Response) -> RunStatus:
        """Plan a run on the fleet that is there and queue its jobs."""
        plan = await coordinator.launch(request.resolve(), by=request.by)
        response.headers["Location"] = f"/v1/runs/{plan.run_id}"
        return await coordinator.status(plan.run_id)

    @app.get("/v1/runs", responses=problems)
    async def list_runs(
        limit: Annotated[int, Query(ge=1, le=1000)] = 50, before_at: datetime | None = None
    ) -> Sequence[RunHeader]:
        """Runs, newest first."""
        return await coordinator.runs(limit=limit, before_at=before_at)

    @app.get("/v1/runs/{run_id}", responses=problems)
    async def read_run(run_id: str) -> RunStatus:
        """Where a run stands."""
        return await coordinator.status(run_id)

    @app.delete("/v1/runs/{run_id}", status_code=202, responses=problems)
    async def cancel_run(run_id: str, request: CancelRequest | None = None) -> RunStatus:
        """Stop a run; agents stop traffic within seconds, what was measured is kept."""
        asked = request or CancelRequest()
        await coordinator.cancel(run_id, by=asked.by, reason=asked.reason)
        return await coordinator.status(run_id)

    @app.get("/v1/runs/{run_id}/progress", responses=problems)
    async def read_progress(run_id: str) -> Progress:
        """What the newest begun burst has sent so far, second by second."""
        return await coordinator.progress(run_id)

    @app.get("/v1/runs/{run_id}/summary", responses=problems)
    async def read_summary(run_id: str) -> RunSummary:
        """The verdict with its figures, once the run is over."""
        summary = await coordinator.summary(run_id)
        if summary is None:
            raise RunNotOver(run_id)
        return summary

    @app.get(
        "/v1/runs/{run_id}/raw/{pair}",
        responses={**problems, 200: {"content": {"application/json": {}}}},
        response_class=Response,
    )
    async def read_raw(
        run_id: str,
        pair: str,
        burst_index: Annotated[int, Query(ge=0)] = 0,
        side: Side = Side.CLIENT,
    ) -> Response:
        """An engine's own output, to the byte: one JSON document, or one a line."""
        text = await coordinator.raw(run_id, pair, burst_index, side)
        lines = text.startswith(b'{"event"')
        return Response(text, media_type=f"application/{'x-ndjson' if lines else 'json'}")

    @app.post("/v1/prune", responses=problems)
    async def prune_runs(request: PruneRequest) -> Pruned:
        """Forget old runs; by default only say which would go."""
        return await coordinator.prune(request)

    @app.get("/v1/runs/{run_id}/recomputed", responses=problems)
    async def recompute_summary(run_id: str) -> Recomputed:
        """The verdict from the stored rows alone, and whether it is the stored one to the byte."""
        return await coordinator.recomputed(run_id)

    @app.post("/v1/comparisons", responses=problems)
    async def compare_groups(request: CompareRequest) -> Comparison:
        """Two runs, or two groups of bursts, side by side. Nothing is stored."""
        return await coordinator.compare(request)

    @app.post("/v1/imports/original", status_code=201, responses=problems)
    async def import_table(table: OriginalTable, response: Response) -> ImportedTable:
        """Make a run of one of the original test's tables."""
        imported = await coordinator.import_table(table)
        response.headers["Location"] = f"/v1/runs/{imported.run_id}"
        return imported

    @app.post("/v1/imports/iperf3", status_code=201, responses=problems)
    async def import_recordings(recordings: Recordings, response: Response) -> ImportedRecordings:
        """Make one run of files that iperf3 wrote."""
        imported = await coordinator.import_recordings(recordings)
        response.headers["Location"] = f"/v1/runs/{imported.run_id}"
        return imported

    @app.get("/v1/deadletters", responses=problems)
    async def list_dead_letters(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Sequence[DeadJob]:
        """The oldest messages that were set aside, with what to do about each."""
        return await coordinator.dead_letters(limit=limit)

    @app.get("/v1/deadletters/{sequence_number}", responses=problems)
    async def read_dead_letter(sequence_number: int) -> DeadJob:
        """One of the oldest thousand."""
        return await coordinator.dead_letter(sequence_number)

    @app.post("/v1/deadletters/{sequence_number}/resend", responses=problems)
    async def resend_dead_letter(sequence_number: int) -> DeadJob:
        """Put its job back on the queue, as long as its instant is to come and nobody has it."""
        return await coordinator.resend(sequence_number)

    return app


def _handle_errors(app: FastAPI) -> None:
    """Map every expected error to one problem document."""

    def problem(
        status: int, title: str, detail: str, errors: Sequence[Mapping[str, Any]] = ()
    ) -> JSONResponse:
        body = Problem(title=title, status=status, detail=detail, errors=errors)
        return JSONResponse(
            body.model_dump(mode="json"), status, media_type="application/problem+json"
        )

    @app.exception_handler(UnknownRun)
    async def unknown_run(_: Request, error: UnknownRun) -> JSONResponse:
        return problem(404, "Unknown run", f"run {error}: no such run; list them at /v1/runs")

    @app.exception_handler(NoRaw)
    async def no_raw(_: Request, error: NoRaw) -> JSONResponse:
        return problem(404, "No raw output", str(error))

    @app.exception_handler(RunIsOver)
    async def run_is_over(_: Request, error: RunIsOver) -> JSONResponse:
        detail = f"run {error} is over; read its verdict at /v1/runs/{error}/summary"
        return problem(409, "Over", detail)

    @app.exception_handler(RunNotOver)
    async def run_not_over(_: Request, error: RunNotOver) -> JSONResponse:
        return problem(409, "Not over", f"run {error} is not over yet; read /v1/runs/{error}")

    @app.exception_handler(BadFile)
    async def bad_file(_: Request, error: BadFile) -> JSONResponse:
        return problem(422, "Bad import", str(error))

    @app.exception_handler(UnknownDeadLetter)
    async def unknown_dead_letter(_: Request, error: UnknownDeadLetter) -> JSONResponse:
        detail = f"dead letter {error}: there is none; list them at /v1/deadletters"
        return problem(404, "Unknown dead letter", detail)

    @app.exception_handler(CannotResend)
    async def cannot_resend(_: Request, error: CannotResend) -> JSONResponse:
        return problem(409, "Not sent again", str(error))

    @app.exception_handler(EmptyGroup)
    async def empty_group(_: Request, error: EmptyGroup) -> JSONResponse:
        return problem(422, "Empty group", str(error))

    @app.exception_handler(scenarios.ScenarioError)
    async def bad_scenario(_: Request, error: scenarios.ScenarioError) -> JSONResponse:
        return problem(422, "Bad scenario", str(error))

    @app.exception_handler(Infeasible)
    async def infeasible(_: Request, error: Infeasible) -> JSONResponse:
        faults = [
            {"field": fault.field, "message": fault.message, "fix": fault.fix}
            for fault in error.problems
        ]
        return problem(409, "Not feasible", str(error), faults)

    @app.exception_handler(ExchangeError)
    async def exchange_failed(_: Request, error: ExchangeError) -> JSONResponse:
        return problem(503, "Exchange unavailable", str(error))

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
        return problem(error.status_code, "Refused", str(error.detail))
