"""What every router needs: the coordinator behind the application, and who asks."""

from typing import Annotated

from fastapi import Depends, Request

from coordinator.auth.principal import Principal
from coordinator.runs.coordinator import Coordinator


def _coordinator(request: Request) -> Coordinator:
    coordinator: Coordinator = request.app.state.coordinator
    return coordinator


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


Service = Annotated[Coordinator, Depends(_coordinator)]
Caller = Annotated[Principal, Depends(_principal)]
"""Who asks, as the door knows; ``caller.named(said)`` is the name to keep."""
