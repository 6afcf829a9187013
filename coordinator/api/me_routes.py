"""Who is asking: what the page needs to know before it offers anything."""

from broadside.coordinator.api.dependencies import Caller, routes
from broadside.exchange.messages import Message

router = routes("service")


class Me(Message):
    """Who asks, as the door knows."""

    name: str
    role: str  # viewer or operator
    signed_in: bool  # False: this API has no sign-in, and listens on loopback only


@router.get("/me")
async def read_me(caller: Caller) -> Me:
    """The name and the role of the token that came with the request."""
    return Me(name=caller.name, role=caller.access.value, signed_in=caller.signed_in)
