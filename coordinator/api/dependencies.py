"""What every router needs: itself, what the application keeps in its state, and who asks."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request

from broadside.coordinator.api.conditional import ConditionalRoute
from broadside.coordinator.api.problems import PROBLEMS
from broadside.coordinator.auth.principal import Principal
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views.requests import CancelRequest


def routes(tag: str, prefix: str = "/v1") -> APIRouter:
    """A router whose answers have forms, tags and problem documents as all others have."""
    return APIRouter(prefix=prefix, responses=PROBLEMS, tags=[tag], route_class=ConditionalRoute)


def kept(name: str) -> Any:
    """A dependency: what the application keeps under that name."""

    def found(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(found)


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


Service = Annotated[Coordinator, kept("coordinator")]
Caller = Annotated[Principal, Depends(_principal)]
"""Who asks, as the door knows; ``caller.named(said)`` is the name to keep."""

OptionalCancel = Annotated[CancelRequest, Body(default_factory=CancelRequest)]
"""A body that may be left out. Its schema has no ``null``: generated clients cannot send a body
that is either of a type, null or absent."""
