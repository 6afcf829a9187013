"""Routes to launch, list, read, aggregate, stop, compare and remove runs."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Header, Query, Request, Response
from pydantic import Field

from broadside.coordinator.api.dependencies import Caller, OptionalCancel, Service, routes
from broadside.coordinator.api.pages import PAGED, KeyCursor, name_next
from broadside.coordinator.api.row_answers import FILE_CONTENT, rows_in
from broadside.coordinator.core.comparison import Comparison
from broadside.coordinator.core.live.progress import Progress
from broadside.coordinator.core.live.status import RunStatus
from broadside.coordinator.core.summary import Course, RunSummary, Verdict
from broadside.coordinator.refusals import RunNotOver
from broadside.coordinator.runs.launches import KEY_MAX_CHARS, launch_once
from broadside.coordinator.runs.launches import prune_runs as prune_all
from broadside.coordinator.runs.listing import (
    GROUPINGS,
    ListedState,
    RunFilter,
    RunGroups,
    aggregate_runs,
    labels_of,
)
from broadside.coordinator.runs.listing import list_runs as list_page
from broadside.coordinator.runs.raw_output import find_raw
from broadside.coordinator.runs.retention import Pruned, PruneRequest
from broadside.coordinator.views.answers import Recomputed
from broadside.coordinator.views.burst_answers import recomputed
from broadside.coordinator.views.groups import compare_stored
from broadside.coordinator.views.requests import CompareRequest, LaunchRequest
from broadside.coordinator.views.series_formats import FILE, chosen_format
from broadside.exchange.messages import Side, UtcDatetime
from broadside.exchange.records import RunHeader

router = routes("runs")

_TEXT_MAX_CHARS = 200


def _filter(
    scenario: Annotated[str | None, Query(max_length=_TEXT_MAX_CHARS)] = None,
    label: Annotated[
        list[Annotated[str, Field(pattern=":")]] | None,
        Query(max_length=20, description="`name:value`; repeated: all of them"),
    ] = None,
    state: ListedState | None = None,
    verdict: Verdict | None = None,
    by: Annotated[
        str | None, Query(max_length=_TEXT_MAX_CHARS, description="who launched it")
    ] = None,
    from_at: Annotated[
        UtcDatetime | None, Query(description="traffic begins at or after this instant")
    ] = None,
    before_at: Annotated[UtcDatetime | None, Query(description="traffic begins before it")] = None,
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


Wanted = Annotated[RunFilter, Depends(_filter)]


@router.post("/runs", status_code=202)
async def create_run(
    request: LaunchRequest,
    response: Response,
    coordinator: Service,
    caller: Caller,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=KEY_MAX_CHARS,
            description="the same key with the same body launches once, whatever happens between; "
            "with another body it is refused",
        ),
    ] = None,
) -> RunStatus:
    """Plan a run on the fleet that is there and queue its jobs."""
    spec, by = request.resolve(), caller.named(request.by)
    if idempotency_key is None:
        run_id = (await coordinator.launch(spec, by=by)).run_id
    else:
        run_id = await launch_once(
            coordinator,
            spec,
            by=by,
            key=idempotency_key,
            caller=caller.key,
            request=request.model_dump_json().encode(),
            now=coordinator.now(),
        )
    response.headers["Location"] = f"/v1/runs/{run_id}"
    return await coordinator.stored.status(run_id)


@router.get("/runs", responses=PAGED)
async def list_runs(
    request: Request,
    response: Response,
    coordinator: Service,
    wanted: Wanted,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: KeyCursor = None,
) -> Sequence[RunHeader]:
    """Runs, newest first, with how each ended.

    A page can be short and have a successor: follow `Next-Cursor` until there is none.
    """
    records = coordinator.fabric.records
    headers, following = await list_page(records, wanted, limit=limit, cursor=cursor)
    name_next(request, response, following)
    return headers


@router.get("/aggregate", openapi_extra=rows_in("groups"))
async def aggregate(
    coordinator: Service,
    wanted: Wanted,
    group_by: Annotated[
        str,
        Query(max_length=60, description=GROUPINGS),
    ] = "scenario",
    timezone: Annotated[
        str, Query(max_length=60, description="of hours, days, weeks and months: an IANA name")
    ] = "UTC",
) -> RunGroups:
    """Many runs by what they share: bursts, verdicts, rates, completeness, worst residual, cost.

    Rates are received payload at real scale, over runs that are over; those of inconclusive runs
    stand apart. Times are the traffic's.
    """
    return await aggregate_runs(coordinator.fabric.records, wanted, group_by, timezone)


@router.get("/runs/{run_id}", openapi_extra=rows_in("bursts"))
async def read_run(run_id: str, coordinator: Service) -> RunStatus:
    """Where a run stands."""
    return await coordinator.stored.status(run_id)


@router.post("/runs/{run_id}/abort", status_code=202)
@router.delete("/runs/{run_id}", status_code=202, deprecated=True, name="cancel_run")
async def abort_run(
    run_id: str, coordinator: Service, caller: Caller, request: OptionalCancel
) -> RunStatus:
    """Stop a run; agents stop traffic within seconds, what was measured is kept."""
    await coordinator.cancel(run_id, by=caller.named(request.by), reason=request.reason)
    return await coordinator.stored.status(run_id)


@router.get("/runs/{run_id}/course", openapi_extra=rows_in("disruptions"))
async def read_course(run_id: str, coordinator: Service) -> Course:
    """What broke, how much of the load was carried and what drifted, over the bursts so far."""
    return await coordinator.stored.course(run_id)


@router.get("/runs/{run_id}/progress", openapi_extra=rows_in("seconds"))
async def read_progress(run_id: str, coordinator: Service) -> Progress:
    """What the newest begun burst has sent so far, second by second."""
    return await coordinator.stored.progress(run_id)


@router.get("/runs/{run_id}/summary", openapi_extra=rows_in("bursts"))
async def read_summary(run_id: str, coordinator: Service) -> RunSummary:
    """The verdict with its figures, once the run is over."""
    summary = await coordinator.stored.summary(run_id)
    if summary is None:
        raise RunNotOver(run_id)
    return summary


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
async def read_raw(
    run_id: str,
    pair: str,
    coordinator: Service,
    burst_index: Annotated[int, Query(ge=0)] = 0,
    side: Side = Side.CLIENT,
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """An engine's own output, to the byte: one JSON document, or one a line."""
    plan, records = await coordinator.stored.read_plan(run_id), coordinator.fabric.records
    text = await find_raw(records, plan, pair, burst_index, side)
    lines = text.startswith(b'{"event"')
    media_type = f"application/{'x-ndjson' if lines else 'json'}"
    return Response(text, media_type=chosen_format(accept, (media_type, FILE)))


@router.post("/prune")
async def prune_runs(request: PruneRequest, coordinator: Service) -> Pruned:
    """Forget old runs; by default only say which would go."""
    return await prune_all(coordinator, request)


@router.get("/runs/{run_id}/recomputed")
async def recompute_summary(run_id: str, coordinator: Service) -> Recomputed:
    """The verdict from the stored rows alone, and whether it is the stored one to the byte."""
    return await recomputed(coordinator, run_id)


@router.post("/comparisons", openapi_extra=rows_in("metrics"))
async def compare_groups(request: CompareRequest, coordinator: Service) -> Comparison:
    """Two runs, or two groups of bursts, side by side. Nothing is stored."""
    return await compare_stored(coordinator, request)
