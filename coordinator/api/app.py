"""The application: every router over one coordinator, which it may also keep ticking."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping

from fastapi import FastAPI

from coordinator import web
from coordinator.api import (
    audit,
    charts,
    deadletters,
    estimate,
    events,
    fleet,
    health,
    imports,
    me,
    reports,
    results,
    runs,
    schedules,
    studies,
)
from coordinator.api.door import Door, Guard
from coordinator.api.openapi import describe
from coordinator.api.problems import handle_errors
from coordinator.auth.audit import Audit
from coordinator.feeds import Feeds
from coordinator.metrics import Figures
from coordinator.schedules import Schedules
from coordinator.service import Coordinator
from coordinator.spending import Budgets
from coordinator.studies.shell import Studies
from coordinator.studies.switch import Switch


def create_app(
    coordinator: Coordinator,
    *,
    tick_s: float | None = 1.0,
    guard: Guard | None = None,
    switches: Mapping[str, Switch] | None = None,
) -> FastAPI:
    """The application; with ``tick_s`` it also looks after unfinished runs while it is up.

    Without a ``guard`` everybody may everything, as inside one process; writes are recorded.
    """

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
        docs_url=None,  # their pages come from elsewhere, and read no token
        redoc_url=None,
    )
    app.state.coordinator = coordinator
    app.state.feeds = Feeds(coordinator)
    app.state.studies = Studies(coordinator, coordinator.fabric.table, switches or {})
    coordinator.companions.append(app.state.studies)
    app.state.budgets = Budgets(coordinator)
    coordinator.companions.append(app.state.budgets)
    app.state.schedules = Schedules(coordinator.fabric.table, coordinator, now=coordinator.now)
    if tick_s is not None:  # a command that ends with its own run fires nobody else's
        coordinator.companions.append(app.state.schedules)
    app.state.ticks = tick_s is not None
    app.state.figures = Figures()
    app.state.audit = Audit(coordinator.fabric.table)
    guard = guard or Guard()
    app.state.needs_token = guard.sign_in is not None
    app.add_middleware(Door, guard=dataclasses.replace(guard, audit=guard.audit or app.state.audit))
    handle_errors(app)
    describe(app)

    for router in (
        health.router,
        runs.router,
        results.router,
        events.router,
        me.router,
        charts.router,
        reports.router,
        imports.router,
        deadletters.router,
        fleet.router,
        audit.router,
        studies.router,
        schedules.router,
        estimate.router,
        web.router,
    ):
        app.include_router(router)
    return app
