"""Who is asking: what the page needs to know before it offers anything."""

from fastapi import APIRouter

from coordinator.api.conditional import ConditionalRoute
from coordinator.api.dependencies import Caller
from coordinator.api.problems import PROBLEMS
from exchange.messages import Message

router = APIRouter(prefix="/v1", responses=PROBLEMS, tags=["service"], route_class=ConditionalRoute)


class Me(Message):
    """Who asks, as the door knows."""

    name: str
    role: str  # viewer or operator
    signed_in: bool  # False: this API has no sign-in, and listens on loopback only


@router.get("/me")
async def read_me(caller: Caller) -> Me:
    """The name and the role of the token that came with the request."""
    return Me(name=caller.name, role=caller.access.value, signed_in=caller.signed_in)
