"""Routes of what is there to run, and on what: scenarios and presences."""

from collections.abc import Mapping, Sequence

from fastapi import APIRouter

from coordinator import scenarios
from coordinator.api.problems import PROBLEMS
from coordinator.api.service import Service
from coordinator.core.runs import RunSpec
from exchange.messages import Presence

router = APIRouter(prefix="/v1", responses=PROBLEMS, tags=["fleet"])


@router.get("/scenarios")
async def list_scenarios() -> Mapping[str, RunSpec]:
    """The scenarios that come with Broadside, by name."""
    return {name: scenarios.load(name) for name in scenarios.names()}


@router.get("/presences")
async def list_presences(coordinator: Service) -> Sequence[Presence]:
    """Every agent that was ever heard of and did not say goodbye."""
    return await coordinator.presences()
