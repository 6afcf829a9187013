"""Schedule routes, which launch runs at given times."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Response

from broadside.coordinator.api.dependencies import (
    Caller,
    CurrentCoordinator,
    app_state,
    make_router,
)
from broadside.coordinator.api.pagination import PAGED, KeyCursor, Links, PageLimit
from broadside.coordinator.api.tabular_responses import rows_at
from broadside.coordinator.request_errors import OtherName
from broadside.coordinator.runs.requests import ScheduleRequest
from broadside.coordinator.schedules.firing import Schedules
from broadside.coordinator.views.responses import ScheduleView

router = make_router("schedules", "/v1/schedules")


AllSchedules = Annotated[Schedules, app_state("schedules")]


@router.post("", status_code=201)
async def create_schedule(
    request: ScheduleRequest,
    response: Response,
    schedules: AllSchedules,
    coordinator: CurrentCoordinator,
    caller: Caller,
) -> ScheduleView:
    """Create a schedule. A coordinator that processes runs launches its runs."""
    schedule = request.schedule(by=caller.named(request.by), now=coordinator.now())
    view = await schedules.add(schedule)
    response.headers["Location"] = f"/v1/schedules/{schedule.name}"
    return view


@router.get("", responses=PAGED)
async def list_schedules(
    links: Links,
    schedules: AllSchedules,
    state: Literal["active", "paused", "ended"] | None = None,
    limit: PageLimit = 200,
    cursor: KeyCursor = None,
) -> Sequence[ScheduleView]:
    """List schedules by name, each with at most five next times."""
    views = [
        view
        for view in await schedules.list()
        if view.schedule.name >= (cursor or "") and state in (None, view.state)
    ]
    following = views[limit].schedule.name if len(views) > limit else None
    links.name_next(following)
    return views[:limit]


@router.get("/{name}", openapi_extra=rows_at("history"))
async def read_schedule(name: str, schedules: AllSchedules) -> ScheduleView:
    """Return a schedule.

    It has at most five next times and the results of its last 50.
    """
    return await schedules.read(name)


@router.put("/{name}")
async def replace_schedule(
    name: str,
    request: ScheduleRequest,
    schedules: AllSchedules,
    coordinator: CurrentCoordinator,
    caller: Caller,
) -> ScheduleView:
    """Replace the times or the run of a schedule. History and pause are not changed."""
    if request.name != name:
        raise OtherName(f"name {request.name}: the address has {name}; the name cannot be changed")
    schedule = request.schedule(by=caller.named(request.by), now=coordinator.now())
    return await schedules.replace(schedule)


@router.post("/{name}/pause")
async def pause_schedule(name: str, schedules: AllSchedules) -> ScheduleView:
    """Pause a schedule. A run that is already running is not stopped."""
    return await schedules.pause(name)


@router.post("/{name}/resume")
async def resume_schedule(name: str, schedules: AllSchedules) -> ScheduleView:
    """Resume a schedule. Runs that were missed during the pause are not launched."""
    return await schedules.resume(name)


@router.delete("/{name}")
async def delete_schedule(name: str, schedules: AllSchedules) -> ScheduleView:
    """Delete a schedule and its history. Its runs are not deleted."""
    return await schedules.remove(name)
