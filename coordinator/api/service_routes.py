"""Routes about the coordinator itself: health, metrics, caller, notices and audit log."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from broadside.coordinator.api.conditional import ConditionalRoute
from broadside.coordinator.api.dependencies import (
    Caller,
    CurrentCoordinator,
    app_state,
    make_router,
)
from broadside.coordinator.api.pagination import PAGED, AuditCursor, Links, Page, PageLimit
from broadside.coordinator.api.problems import PROBLEMS
from broadside.coordinator.auth.audit import Audit, AuditRow
from broadside.coordinator.auth.principal import Access
from broadside.coordinator.notices.announcer import ReceiverState
from broadside.coordinator.request_errors import NotReady
from broadside.coordinator.views.burst_responses import span_of
from broadside.coordinator.views.prometheus_metrics import MetricsCollector, take_snapshot
from broadside.exchange.messages import Message, UtcDatetime
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import ExchangeError

router = APIRouter(tags=["service"], route_class=ConditionalRoute)
account_router = make_router("service")
audit_router = make_router("audit")

# The last tick should not be older. A tick can be delayed when we need to close a large run.
TICKED_WITHIN: Final = timedelta(seconds=60)


class Health(Message):
    """Status of a process that runs.

    Attributes:
        status: Always ok.
    """

    status: Literal["ok"] = "ok"


class Readiness(Message):
    """Status of a coordinator that works.

    Attributes:
        status: Always ready.
        ticked_at: Time when all runs were last processed. If None, this process only answers
            requests.
    """

    status: Literal["ready"] = "ready"
    ticked_at: UtcDatetime | None


@router.get("/healthz")
async def read_health() -> Health:
    """Return 200 while the process runs."""
    return Health()


@router.get("/readyz", responses={503: PROBLEMS[503]})
async def read_readiness(coordinator: CurrentCoordinator, request: Request) -> Readiness:
    """Check if the coordinator works.

    The status is 200 if queue and tables respond and accept writes, and runs are processed. The
    route requires no token, so an error names the cause without details.
    """
    try:
        await coordinator.fabric.queue.ping()
        await anext(coordinator.fabric.records.private.list_runs(limit=1), None)
    except ExchangeError as error:
        raise NotReady("the queue or a table does not respond; see the log") from error
    if (problem := await request.app.state.write_probe.problem()) is not None:
        raise NotReady(f"{problem}; see the log")
    ticked_at = coordinator.ticked_at
    if request.app.state.ticks and (
        ticked_at is None or coordinator.now() - ticked_at > TICKED_WITHIN
    ):
        raise NotReady("runs are not processed at the moment; see the log")
    return Readiness(ticked_at=ticked_at)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        503: PROBLEMS[503],
    },
)
async def read_metrics(coordinator: CurrentCoordinator, request: Request) -> Response:
    """Return the metrics in Prometheus format. /docs/metrics.html of the coordinator lists them."""
    figures: MetricsCollector = request.app.state.figures
    figures.show(await take_snapshot(coordinator, request.app.state.budgets))
    return Response(generate_latest(figures.registry), media_type=CONTENT_TYPE_LATEST)


class CallerInfo(Message):
    """The authenticated caller.

    Attributes:
        name: Name of the caller.
        role: Role of the caller.
        signed_in: False if the API has no sign-in and listens on loopback only.
    """

    name: str
    role: Access
    signed_in: bool


@account_router.get("/me")
async def read_me(caller: Caller) -> CallerInfo:
    """Return the name and role of the token in the request."""
    return CallerInfo(name=caller.name, role=caller.access, signed_in=caller.signed_in)


class DeliveryState(StrEnum):
    """State of the deliveries to a receiver.

    Attributes:
        IDLE: All ended runs have been delivered.
        WAITING: A notice is being delivered.
        FAILING: The last attempt failed. It is repeated.
    """

    IDLE = "idle"
    WAITING = "waiting"
    FAILING = "failing"


class PlaceReport(Message):
    """Receiver of notices, with its queue and its last error.

    Attributes:
        place: Kind of the receiver: webhook or otlp.
        state: State of the deliveries.
        waiting_count: Number of ended runs that are not delivered yet.
        failures_count: Number of failed attempts since the last delivery.
        last_error: Error of the last failed attempt. It is cleared by the next successful delivery.
        last_error_at: Time of the last failed attempt. None if there was none.
        last_delivered_at: Time of the last delivery by this process.
    """

    place: str
    state: DeliveryState
    waiting_count: int
    failures_count: int
    last_error: str | None
    last_error_at: UtcDatetime | None
    last_delivered_at: UtcDatetime | None

    @classmethod
    def of(cls, place: ReceiverState) -> "PlaceReport":
        state = DeliveryState.WAITING if place.waiting_count else DeliveryState.IDLE
        return cls(
            place=place.name,
            state=DeliveryState.FAILING if place.failures_count else state,
            waiting_count=place.waiting_count,
            failures_count=place.failures_count,
            last_error=place.last_error,
            last_error_at=place.last_error_at,
            last_delivered_at=place.last_delivered_at,
        )


@account_router.get("/notices", responses=PAGED)
async def list_notices(request: Request, page: Page) -> Sequence[PlaceReport]:
    """List the receivers of notices, each with its last error."""
    states = request.app.state.announcer.states
    span = span_of(page.cursor, page.limit, len(states))
    page.name_next(span.following(len(states)))
    return [PlaceReport.of(state) for state in states[span.first : span.before]]


def _audit_filter(
    by: Annotated[
        str | None, Query(max_length=200, description="name of who made the change")
    ] = None,
    run_id: Annotated[str | None, Query(max_length=63, description="id of a run")] = None,
) -> Callable[[AuditRow], bool]:
    return lambda row: by in (None, row.by) and run_id in (None, row.run_id)


@audit_router.get("/audit", responses=PAGED)
async def list_audit(
    links: Links,
    audit: Annotated[Audit, app_state("audit")],
    fits: Annotated[Callable[[AuditRow], bool], Depends(_audit_filter)],
    limit: PageLimit = 100,
    cursor: AuditCursor = None,
) -> Sequence[AuditRow]:
    """List the writes of the last two years, newest first."""
    rows, following = await audit.read(utc_now(), limit=limit, cursor=cursor, fits=fits)
    links.name_next(following)
    return rows
