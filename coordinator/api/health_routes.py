"""Routes of liveness, readiness and Prometheus metrics."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from broadside.coordinator.api.conditional import ConditionalRoute
from broadside.coordinator.api.dependencies import Service
from broadside.coordinator.api.problems import PROBLEMS
from broadside.coordinator.expected_errors import NotReady
from broadside.coordinator.views.prometheus_metrics import Figures, take_snapshot
from broadside.exchange.messages import Message, UtcDatetime
from broadside.exchange.ports import ExchangeError

router = APIRouter(tags=["service"], route_class=ConditionalRoute)

# The last tick must not be older. Closing a large run can delay a tick.
TICKED_WITHIN: Final = timedelta(seconds=60)


class Readiness(Message):
    """A coordinator that works."""

    status: Literal["ready"] = "ready"
    # Time when all runs were last processed. If None, this process only answers requests.
    ticked_at: UtcDatetime | None


@router.get("/healthz")
async def health() -> Mapping[str, str]:
    """Answers while the process lives."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: PROBLEMS[503]})
async def ready(coordinator: Service, request: Request) -> Readiness:
    """Whether queue and tables answer and take writes, and runs are looked after.

    Anybody may ask, so a refusal says what is wrong, and no more.
    """
    try:
        await coordinator.fabric.queue.ping()
        await anext(coordinator.fabric.records.private.list_runs(limit=1), None)
    except ExchangeError as error:
        raise NotReady("queue or table do not answer; see the log") from error
    if (problem := await request.app.state.write_probe.problem()) is not None:
        raise NotReady(f"{problem}; see the log")
    ticked_at = coordinator.ticked_at
    if request.app.state.ticks and (
        ticked_at is None or coordinator.now() - ticked_at > TICKED_WITHIN
    ):
        raise NotReady("runs are not looked after just now; see the log")
    return Readiness(ticked_at=ticked_at)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        503: PROBLEMS[503],
    },
)
async def read_metrics(coordinator: Service, request: Request) -> Response:
    """Prometheus text; docs/metrics.md lists the names."""
    figures: Figures = request.app.state.figures
    figures.show(await take_snapshot(coordinator, request.app.state.budgets))
    return Response(generate_latest(figures.registry), media_type=CONTENT_TYPE_LATEST)
