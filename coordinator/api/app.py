"""FastAPI application with all routers of one coordinator."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import Depends, FastAPI
from starlette_compress import CompressMiddleware, add_compress_type, remove_compress_type

from broadside.coordinator.api import (
    chart_routes,
    dead_letter_routes,
    docs_site,
    estimate_routes,
    event_routes,
    fleet_routes,
    import_routes,
    page_files,
    report_routes,
    result_routes,
    run_routes,
    schedule_routes,
    service_routes,
    study_routes,
)
from broadside.coordinator.api.auth_middleware import AuthConfig, AuthMiddleware
from broadside.coordinator.api.head_middleware import HeadMethodMiddleware
from broadside.coordinator.api.openapi import describe
from broadside.coordinator.api.openapi import router as document_router
from broadside.coordinator.api.problems import handle_errors
from broadside.coordinator.api.problems import router as problems_router
from broadside.coordinator.api.query_validation import reject_unknown_parameters
from broadside.coordinator.api.request_id import RequestIdMiddleware
from broadside.coordinator.auth.audit import Audit
from broadside.coordinator.backups import ScheduledBackups
from broadside.coordinator.loop_lag import LoopLag
from broadside.coordinator.notices.announcer import Announcer, Receiver
from broadside.coordinator.runs.budgets import Budgets
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.early_stops import EarlyStops
from broadside.coordinator.runs.guard_service import Guards
from broadside.coordinator.runs.storage_watch import WriteProbe
from broadside.coordinator.schedules.firing import Schedules
from broadside.coordinator.studies.runner import Studies
from broadside.coordinator.studies.switch import Switch
from broadside.coordinator.views.feeds import Feeds
from broadside.coordinator.views.prometheus_metrics import MetricsCollector
from broadside.exchange.version import version_number

# For a smaller body, compression saves less than its header adds.
_COMPRESSED_FROM_BYTES: Final = 1024
# Media types to compress besides those that the library knows.
_COMPRESSED_TYPES: Final = (
    "application/problem+json",
    "application/vnd.apache.arrow.stream",
    "application/x-ndjson",
    "text/csv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """Optional parts of the application that settings configure.

    Attributes:
        switches: Commands that put the device into a state, by name.
        places: Receivers that are notified when a run ends.
        backups: Scheduled backups. None to take no backups.
    """

    switches: Mapping[str, Switch] = field(default_factory=dict)
    places: Sequence[Receiver] = ()
    backups: ScheduledBackups | None = None


def create_app(
    coordinator: Coordinator,
    *,
    tick_s: float | None = 1.0,
    guard: AuthConfig | None = None,
    extensions: Extensions = Extensions(),
) -> FastAPI:
    """Create the application.

    Args:
        coordinator: Coordinator that all routes use.
        tick_s: Interval in seconds at which unfinished runs are processed. None to only answer
            requests.
        guard: Middleware settings. None allows everything without sign-in. Writes are recorded in
            either case.
        extensions: Optional parts that settings configure.

    Returns:
        The application, with all routes and the middleware.
    """
    backups, places = extensions.backups, extensions.places

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        works = [loop_lag.watch()]
        if tick_s is not None:
            works.append(coordinator.run_forever(tick_s))
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    loop_lag = LoopLag()
    app = FastAPI(
        title="Broadside",
        summary="Distributed load test of firewalls with a verdict",
        version=version_number(),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
        # FastAPI's own pages load scripts from other sites and send no token.
        docs_url=None,
        redoc_url=None,
        # We use a separate route for the document, so that it can have an ETag.
        openapi_url=None,
        dependencies=[Depends(reject_unknown_parameters)],
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.coordinator = coordinator
    app.state.feeds = Feeds(coordinator)
    app.state.studies = Studies(
        coordinator, app.state.feeds, coordinator.fabric.private, extensions.switches
    )
    coordinator.companions.append(app.state.studies)
    app.state.budgets = Budgets(coordinator)
    coordinator.companions += [app.state.budgets, EarlyStops(coordinator), Guards(coordinator)]
    app.state.schedules = Schedules(coordinator.fabric.private, coordinator, now=coordinator.now)
    # If a command exits after a run, it should not launch scheduled runs.
    if tick_s is not None:
        coordinator.companions.append(app.state.schedules)
    announcer = Announcer(coordinator.fabric.records, places, coordinator.now)
    if places:
        coordinator.companions.append(announcer)
    if backups is not None:
        coordinator.companions.append(backups)
    app.state.announcer = announcer
    app.state.ticks = tick_s is not None
    app.state.figures = MetricsCollector(
        loop_lag, announcer, None if backups is None else backups.interval
    )
    app.state.write_probe = WriteProbe(coordinator.fabric)
    app.state.import_limiter = import_routes.ImportLimiter()
    app.state.audit = Audit(coordinator.fabric.private)
    app.state.sign_in = None if guard is None else guard.sign_in
    app.state.needs_token = app.state.sign_in is not None
    app.add_middleware(AuthMiddleware, config=guard or AuthConfig(), audit=app.state.audit)
    for media_type in _COMPRESSED_TYPES:
        add_compress_type(media_type)
    # Events are sent immediately and without compression.
    remove_compress_type("text/event-stream")
    app.add_middleware(CompressMiddleware, minimum_size=_COMPRESSED_FROM_BYTES)
    app.add_middleware(HeadMethodMiddleware)
    app.add_middleware(RequestIdMiddleware)
    handle_errors(app)
    describe(app)

    for router in (
        service_routes.router,
        run_routes.router,
        result_routes.router,
        event_routes.router,
        service_routes.account_router,
        chart_routes.router,
        report_routes.router,
        import_routes.router,
        dead_letter_routes.router,
        fleet_routes.router,
        service_routes.audit_router,
        study_routes.router,
        schedule_routes.router,
        estimate_routes.router,
        page_files.router,
        docs_site.router,
        problems_router,
        document_router,
    ):
        app.include_router(router)
    return app
