"""Routes of runs: launch, list, read, cancel, compare, prune."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response

from coordinator.answers import Recomputed
from coordinator.api.problems import PROBLEMS
from coordinator.api.service import Caller, Service
from coordinator.core.compare import Comparison
from coordinator.core.progress import Progress
from coordinator.core.status import RunStatus
from coordinator.core.summary import RunSummary
from coordinator.groups import CompareRequest
from coordinator.requests import CancelRequest, LaunchRequest
from coordinator.retention import Pruned, PruneRequest
from coordinator.service import RunNotOver
from exchange.messages import Side
from exchange.records import RunHeader

router = APIRouter(prefix="/v1", responses=PROBLEMS, tags=["runs"])


@router.post("/runs", status_code=202)
async def create_run(
    request: LaunchRequest, response: Response, coordinator: Service, caller: Caller
) -> RunStatus:
    """Plan a run on the fleet that is there and queue its jobs."""
    plan = await coordinator.launch(request.resolve(), by=caller.named(request.by))
    response.headers["Location"] = f"/v1/runs/{plan.run_id}"
    return await coordinator.status(plan.run_id)


@router.get("/runs")
async def list_runs(
    coordinator: Service,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    before_at: datetime | None = None,
) -> Sequence[RunHeader]:
    """Runs, newest first."""
    return await coordinator.runs(limit=limit, before_at=before_at)


@router.get("/runs/{run_id}")
async def read_run(run_id: str, coordinator: Service) -> RunStatus:
    """Where a run stands."""
    return await coordinator.status(run_id)


@router.delete("/runs/{run_id}", status_code=202)
async def cancel_run(
    run_id: str, coordinator: Service, caller: Caller, request: CancelRequest | None = None
) -> RunStatus:
    """Stop a run; agents stop traffic within seconds, what was measured is kept."""
    asked = request or CancelRequest()
    await coordinator.cancel(run_id, by=caller.named(asked.by), reason=asked.reason)
    return await coordinator.status(run_id)


@router.get("/runs/{run_id}/progress")
async def read_progress(run_id: str, coordinator: Service) -> Progress:
    """What the newest begun burst has sent so far, second by second."""
    return await coordinator.progress(run_id)


@router.get("/runs/{run_id}/summary")
async def read_summary(run_id: str, coordinator: Service) -> RunSummary:
    """The verdict with its figures, once the run is over."""
    summary = await coordinator.summary(run_id)
    if summary is None:
        raise RunNotOver(run_id)
    return summary


@router.get(
    "/runs/{run_id}/raw/{pair}",
    responses={200: {"content": {"application/json": {}}}},
    response_class=Response,
)
async def read_raw(
    run_id: str,
    pair: str,
    coordinator: Service,
    burst_index: Annotated[int, Query(ge=0)] = 0,
    side: Side = Side.CLIENT,
) -> Response:
    """An engine's own output, to the byte: one JSON document, or one a line."""
    text = await coordinator.raw(run_id, pair, burst_index, side)
    lines = text.startswith(b'{"event"')
    return Response(text, media_type=f"application/{'x-ndjson' if lines else 'json'}")


@router.post("/prune")
async def prune_runs(request: PruneRequest, coordinator: Service) -> Pruned:
    """Forget old runs; by default only say which would go."""
    return await coordinator.prune(request)


@router.get("/runs/{run_id}/recomputed")
async def recompute_summary(run_id: str, coordinator: Service) -> Recomputed:
    """The verdict from the stored rows alone, and whether it is the stored one to the byte."""
    return await coordinator.recomputed(run_id)


@router.post("/comparisons")
async def compare_groups(request: CompareRequest, coordinator: Service) -> Comparison:
    """Two runs, or two groups of bursts, side by side. Nothing is stored."""
    return await coordinator.compare(request)
