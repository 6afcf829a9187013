"""Routes of scenarios and agents."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import Query, Request, Response

from broadside.coordinator import scenarios
from broadside.coordinator.api.dependencies import Service, make_router
from broadside.coordinator.api.pagination import PAGED, KeyCursor, name_next
from broadside.coordinator.api.tabular_responses import rows_at
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.messages import Presence

router = make_router("fleet")


@router.get("/scenarios", openapi_extra=rows_at(""))
async def list_scenarios() -> Mapping[str, RunSpec]:
    """Return the built-in scenarios by name."""
    return {name: scenarios.load(name) for name in scenarios.names()}


@router.get("/presences", responses=PAGED)
async def list_presences(
    request: Request,
    response: Response,
    coordinator: Service,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
    cursor: KeyCursor = None,
) -> Sequence[Presence]:
    """List all agents that sent a heartbeat and did not sign off, sorted by role and name."""
    known = await coordinator.fabric.records.fleet.read_presences()
    by_key = {f"{p.role.value}.{p.agent_id}": p for p in known}
    keys = [key for key in sorted(by_key) if key >= (cursor or "")]
    name_next(request, response, keys[limit] if len(keys) > limit else None)
    return [by_key[key] for key in keys[:limit]]
