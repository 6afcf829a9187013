"""What every router needs: the coordinator behind the application that a request came to."""

from typing import Annotated

from fastapi import Depends, Request

from coordinator.service import Coordinator


def _coordinator(request: Request) -> Coordinator:
    coordinator: Coordinator = request.app.state.coordinator
    return coordinator


Service = Annotated[Coordinator, Depends(_coordinator)]
