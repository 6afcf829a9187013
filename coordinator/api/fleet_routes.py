"""Routes of scenarios and agents."""

from collections.abc import Mapping, Sequence

from broadside.coordinator import scenarios
from broadside.coordinator.api.dependencies import CurrentCoordinator, make_router
from broadside.coordinator.api.pagination import PAGED, KeyCursor, Links, PageLimit
from broadside.coordinator.api.tabular_responses import rows_at
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.request_errors import UnknownAgent, UnknownScenario
from broadside.exchange.messages import Presence, Role

router = make_router("fleet")


@router.get("/scenarios", openapi_extra=rows_at(""))
async def list_scenarios() -> Mapping[str, RunSpec]:
    """List the built-in scenarios by name."""
    return {name: scenarios.load(name) for name in scenarios.names()}


@router.get("/scenarios/{name}")
async def read_scenario(name: str) -> RunSpec:
    """Return a built-in scenario."""
    if name not in scenarios.names():
        raise UnknownScenario(name)
    return scenarios.load(name)


@router.get("/agents/{agent_id}")
async def read_agent(agent_id: str, coordinator: CurrentCoordinator) -> Presence:
    """Return an agent with its last heartbeat."""
    for presence in await coordinator.fabric.records.fleet.read_presences():
        if presence.agent_id == agent_id:
            return presence
    raise UnknownAgent(agent_id)


@router.get("/agents", responses=PAGED)
async def list_agents(
    links: Links,
    coordinator: CurrentCoordinator,
    role: Role | None = None,
    limit: PageLimit = 1000,
    cursor: KeyCursor = None,
) -> Sequence[Presence]:
    """List the agents, sorted by role and name.

    They are all agents that sent a heartbeat and did not sign off.
    """
    known = await coordinator.fabric.records.fleet.read_presences()
    by_key = {f"{p.role.value}.{p.agent_id}": p for p in known if role in (None, p.role)}
    keys = [key for key in sorted(by_key) if key >= (cursor or "")]
    links.name_next(keys[limit] if len(keys) > limit else None)
    return [by_key[key] for key in keys[:limit]]
