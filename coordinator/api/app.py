"""The application: every router over one coordinator, which it may also keep ticking."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Mapping

from fastapi import FastAPI

from coordinator.api import deadletters, fleet, imports, runs
from coordinator.api.problems import handle_errors
from coordinator.service import Coordinator


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
    app.state.coordinator = coordinator
    handle_errors(app)

    @app.get("/healthz", tags=["service"])
    async def health() -> Mapping[str, str]:
        """Answers while the process lives."""
        return {"status": "ok"}

    for router in (runs.router, imports.router, deadletters.router, fleet.router):
        app.include_router(router)
    return app
