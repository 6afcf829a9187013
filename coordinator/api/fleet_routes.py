"""Routes of scenarios and agents."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import Query, Request, Response

from broadside.coordinator import scenarios
from broadside.coordinator.api.dependencies import Service, routes
from broadside.coordinator.api.pages import PAGED, KeyCursor, name_next
from broadside.coordinator.api.row_answers import rows_in
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.messages import Presence

router = routes("fleet")


@router.get("/scenarios", openapi_extra=rows_in(""))
async def list_scenarios() -> Mapping[str, RunSpec]:
    """The scenarios that come with Broadside, by name."""
    return {name: scenarios.load(name) for name in scenarios.names()}


@router.get("/presences", responses=PAGED)
async def list_presences(
    request: Request,
    response: Response,
    coordinator: Service,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
    cursor: KeyCursor = None,
) -> Sequence[Presence]:
    """Every agent that was ever heard of and did not say goodbye, by role and name."""
    known = await coordinator.fabric.records.fleet.read_presences()
    found = {f"{p.role.value}.{p.agent_id}": p for p in known}
    keys = [key for key in sorted(found) if key >= (cursor or "")]
    name_next(request, response, keys[limit] if len(keys) > limit else None)
    return [found[key] for key in keys[:limit]]
