"""Schedule routes, which launch runs at given times."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Request, Response

from broadside.coordinator.api.dependencies import Caller, Service, kept, routes
from broadside.coordinator.api.pages import PAGED, KeyCursor, name_next
from broadside.coordinator.api.row_answers import rows_in
from broadside.coordinator.refusals import OtherName
from broadside.coordinator.schedules.firing import Schedules
from broadside.coordinator.views.answers import ScheduleView
from broadside.coordinator.views.requests import ScheduleRequest

router = routes("schedules", "/v1/schedules")


There = Annotated[Schedules, kept("schedules")]


@router.post("", status_code=201)
async def add_schedule(
    request: ScheduleRequest,
    response: Response,
    schedules: There,
    coordinator: Service,
    caller: Caller,
) -> ScheduleView:
    """Store a schedule; a coordinator that looks after runs fires it."""
    schedule = request.schedule(by=caller.named(request.by), now=coordinator.now())
    view = await schedules.add(schedule)
    response.headers["Location"] = f"/v1/schedules/{schedule.name}"
    return view


@router.get("", responses=PAGED)
async def list_schedules(
    request: Request,
    response: Response,
    schedules: There,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: KeyCursor = None,
) -> Sequence[ScheduleView]:
    """Schedules by name, each with its next instants, at most five."""
    found = [view for view in await schedules.list() if view.schedule.name >= (cursor or "")]
    following = found[limit].schedule.name if len(found) > limit else None
    name_next(request, response, following)
    return found[:limit]


@router.get("/{name}", openapi_extra=rows_in("history"))
async def read_schedule(name: str, schedules: There) -> ScheduleView:
    """One schedule with its next instants, at most five, and what became of the newest fifty."""
    return await schedules.read(name)


@router.put("/{name}")
async def change_schedule(
    name: str, request: ScheduleRequest, schedules: There, coordinator: Service, caller: Caller
) -> ScheduleView:
    """Other instants, or something else to run, from now on; history and pause stay."""
    if request.name != name:
        raise OtherName(f"name {request.name}: it is {name} in the address, and stays so")
    schedule = request.schedule(by=caller.named(request.by), now=coordinator.now())
    return await schedules.replace(schedule)


@router.post("/{name}/pause")
async def pause_schedule(name: str, schedules: There) -> ScheduleView:
    """Fire nothing until it is resumed; a run that goes on goes on."""
    return await schedules.pause(name)


@router.post("/{name}/resume")
async def resume_schedule(name: str, schedules: There) -> ScheduleView:
    """Fire again from now on; what the pause left out is not made up for."""
    return await schedules.resume(name)


@router.delete("/{name}")
async def remove_schedule(name: str, schedules: There) -> ScheduleView:
    """Forget a schedule and its history; its runs stay."""
    return await schedules.remove(name)
