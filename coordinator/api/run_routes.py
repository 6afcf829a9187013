"""Routes to launch, list, read, aggregate, stop, compare and remove runs."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Header, Query, Response
from pydantic import Field

from broadside.coordinator.api.dependencies import (
    Caller,
    CurrentCoordinator,
    OptionalCancel,
    make_router,
)
from broadside.coordinator.api.pagination import PAGED, KeyCursor, Links, PageLimit
from broadside.coordinator.api.tabular_responses import FILE_CONTENT, rows_at
from broadside.coordinator.core.comparison.group_comparison import Comparison
from broadside.coordinator.core.live.progress import Progress
from broadside.coordinator.core.live.status import RunStatus
from broadside.coordinator.core.summary import RunSummary, RunTrends, Verdict
from broadside.coordinator.request_errors import RunNotOver
from broadside.coordinator.runs.comparison_groups import compare_stored
from broadside.coordinator.runs.launch import KEY_MAX_CHARS, LaunchKey
from broadside.coordinator.runs.listing import (
    GROUPINGS,
    ListedState,
    RunFilter,
    RunGroups,
    labels_of,
)
from broadside.coordinator.runs.listing import aggregate_runs as aggregate
from broadside.coordinator.runs.listing import list_runs as list_page
from broadside.coordinator.runs.raw_output import find_raw_output
from broadside.coordinator.runs.requests import CompareRequest, LaunchRequest, RunChange
from broadside.coordinator.runs.retention import Pruned, PruneRequest
from broadside.coordinator.runs.retention import prune_runs as prune_all
from broadside.coordinator.views.burst_responses import recomputed
from broadside.coordinator.views.responses import Recomputed
from broadside.coordinator.views.tables.formats import FILE, chosen_format
from broadside.exchange.messages import Side, UtcDatetime
from broadside.exchange.records import RunHeader

router = make_router("runs")

_TEXT_MAX_CHARS = 200


def _filter(  # noqa: PLR0913 - query parameters
    scenario: Annotated[str | None, Query(max_length=_TEXT_MAX_CHARS)] = None,
    label: Annotated[
        list[Annotated[str, Field(pattern="=")]] | None,
        Query(max_length=20, description="`name=value`; if repeated, runs need all labels"),
    ] = None,
    state: ListedState | None = None,
    verdict: Verdict | None = None,
    by: Annotated[
        str | None,
        Query(max_length=_TEXT_MAX_CHARS, description="name of who launched the run"),
    ] = None,
    from_at: Annotated[
        UtcDatetime | None, Query(description="first traffic at or after this time")
    ] = None,
    before_at: Annotated[UtcDatetime | None, Query(description="first traffic before it")] = None,
) -> RunFilter:
    return RunFilter(
        scenario=scenario,
        by=by,
        labels=labels_of(label or ()),
        state=state,
        verdict=verdict and verdict.value,
        from_at=from_at,
        before_at=before_at,
    )


Filter = Annotated[RunFilter, Depends(_filter)]


@router.post("/runs", status_code=202)
async def create_run(
    request: LaunchRequest,
    response: Response,
    coordinator: CurrentCoordinator,
    caller: Caller,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=KEY_MAX_CHARS,
            description="requests with the same key and body launch one run only; "
            "the same key with another body is rejected",
        ),
    ] = None,
) -> RunStatus:
    """Plan a run on the available agents and queue its jobs."""
    spec, by = request.resolve(), caller.named(request.by)
    launcher = coordinator.launcher
    if idempotency_key is None:
        run_id = (await launcher.launch(spec, by=by)).run_id
    else:
        body = request.model_dump_json().encode()
        key = LaunchKey(key=idempotency_key, caller=caller.key, request=body)
        run_id = await launcher.launch_once(spec, by=by, key=key)
    response.headers["Location"] = f"/v1/runs/{run_id}"
    return await coordinator.stored.status(run_id)


@router.get("/runs", responses=PAGED)
async def list_runs(
    links: Links,
    coordinator: CurrentCoordinator,
    run_filter: Filter,
    limit: PageLimit = 50,
    cursor: KeyCursor = None,
) -> Sequence[RunHeader]:
    """List runs with their outcomes, newest first.

    A page can be short although more pages follow. Follow `Next-Cursor` until it is absent.
    """
    records = coordinator.fabric.records
    headers, following = await list_page(records, run_filter, limit=limit, cursor=cursor)
    links.name_next(following)
    return headers


@router.get("/aggregate", openapi_extra=rows_at("groups"))
async def aggregate_runs(
    coordinator: CurrentCoordinator,
    run_filter: Filter,
    group_by: Annotated[
        str,
        Query(max_length=60, description=GROUPINGS),
    ] = "scenario",
    timezone: Annotated[
        str, Query(max_length=60, description="IANA time zone of hours, days, weeks and months")
    ] = "UTC",
) -> RunGroups:
    """Aggregate runs by group.

    A group has bursts, verdicts, rates, completeness, worst residual and cost. Rates are received
    payload at real scale, from finished runs. Inconclusive runs have a separate rate. Times are
    those of the traffic.
    """
    return await aggregate(coordinator.fabric.records, run_filter, group_by, timezone)


@router.get("/runs/{run_id}", openapi_extra=rows_at("bursts"))
async def read_run(run_id: str, coordinator: CurrentCoordinator) -> RunStatus:
    """Return the status of a run."""
    return await coordinator.stored.status(run_id)


@router.patch("/runs/{run_id}")
async def update_run(run_id: str, change: RunChange, coordinator: CurrentCoordinator) -> RunStatus:
    """Change the labels of a run, also of a finished one (JSON merge patch).

    Labels that are not in the body are kept. The labels in the sealed plan are not changed.
    """
    return await coordinator.stored.change_labels(run_id, change.labels)


@router.post("/runs/{run_id}/abort", status_code=202)
async def abort_run(
    run_id: str, coordinator: CurrentCoordinator, caller: Caller, request: OptionalCancel
) -> RunStatus:
    """Stop a run. Agents stop within seconds. Data that was measured is not deleted."""
    await coordinator.cancel(run_id, by=caller.named(request.by), reason=request.reason)
    return await coordinator.stored.status(run_id)


@router.get("/runs/{run_id}/trends", openapi_extra=rows_at("disruptions"))
async def read_run_trends(run_id: str, coordinator: CurrentCoordinator) -> RunTrends:
    """Return disruptions, carried load and drift over the finished bursts."""
    return await coordinator.stored.trends(run_id)


@router.get("/runs/{run_id}/progress", openapi_extra=rows_at("seconds"))
async def read_run_progress(run_id: str, coordinator: CurrentCoordinator) -> Progress:
    """Return the seconds of the newest burst that has begun."""
    return await coordinator.stored.progress(run_id)


@router.get("/runs/{run_id}/summary", openapi_extra=rows_at("bursts"))
async def read_run_summary(run_id: str, coordinator: CurrentCoordinator) -> RunSummary:
    """Return the summary of a finished run with its verdict and metrics."""
    summary = await coordinator.stored.summary(run_id)
    if summary is None:
        raise RunNotOver(run_id)
    return summary


def _burst_and_side(
    burst: Annotated[int, Query(ge=1, le=10_000)] = 1, side: Side = Side.CLIENT
) -> tuple[int, Side]:
    return burst, side


@router.get(
    "/runs/{run_id}/raw/{pair}",
    responses={
        200: {
            "content": {
                FILE: FILE_CONTENT,
                "application/json": {"schema": {}},
                "application/x-ndjson": {
                    "schema": {"type": "string"},
                    "example": '{"event":"start","data":{}}\n{"event":"end","data":{}}\n',
                },
            }
        }
    },
    response_class=Response,
)
async def read_run_raw_output(
    run_id: str,
    pair: str,
    coordinator: CurrentCoordinator,
    end: Annotated[tuple[int, Side], Depends(_burst_and_side)],
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """Return the unchanged output of a traffic engine.

    It is one JSON document or JSON lines.
    """
    plan, records = await coordinator.stored.read_plan(run_id), coordinator.fabric.records
    burst, side = end
    text = await find_raw_output(records, plan, pair, burst - 1, side)
    lines = text.startswith(b'{"event"')
    media_type = f"application/{'x-ndjson' if lines else 'json'}"
    return Response(text, media_type=chosen_format(accept, (media_type, FILE)))


@router.post("/prune")
async def prune_runs(request: PruneRequest, coordinator: CurrentCoordinator) -> Pruned:
    """Delete old runs. By default, only list the runs that would be deleted."""
    return await prune_all(coordinator, request)


@router.get("/runs/{run_id}/recomputed")
async def recompute_run_summary(run_id: str, coordinator: CurrentCoordinator) -> Recomputed:
    """Compute the verdict of a run again.

    It is computed from the stored rows, and compared with the stored verdict.
    """
    return await recomputed(coordinator, run_id)


@router.post("/comparisons", openapi_extra=rows_at("metrics"))
async def compare_runs(request: CompareRequest, coordinator: CurrentCoordinator) -> Comparison:
    """Compare two runs, or two groups of bursts. Nothing is stored."""
    return await compare_stored(coordinator, request)
