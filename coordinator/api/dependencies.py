"""Dependencies that all routers share."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request

from broadside.coordinator.api.conditional import ConditionalRoute
from broadside.coordinator.api.problems import PROBLEMS
from broadside.coordinator.auth.principal import Principal
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.requests import CancelRequest


def make_router(tag: str, prefix: str = "/v1") -> APIRouter:
    """Create a router with the response formats, tags and problem documents that all routes share.

    Args:
        tag: Tag of the routes in the OpenAPI document.
        prefix: Prefix of all paths.

    Returns:
        A router without routes.
    """
    return APIRouter(prefix=prefix, responses=PROBLEMS, tags=[tag], route_class=ConditionalRoute)


def app_state(name: str) -> Any:
    """Return a dependency that reads an attribute of the application state."""

    def read(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(read)


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


CurrentCoordinator = Annotated[Coordinator, app_state("coordinator")]
Caller = Annotated[Principal, Depends(_principal)]
"""Authenticated client. ``caller.named(name)`` is the name to store."""

OptionalCancel = Annotated[CancelRequest, Body(default_factory=CancelRequest)]
"""Optional body.

The schema has no ``null``, because generated clients cannot send a body that is either a type, null
or absent.
"""
