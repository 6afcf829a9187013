"""Route that returns the caller, so that the page offers only allowed actions."""

from broadside.coordinator.api.dependencies import Caller, routes
from broadside.exchange.messages import Message

router = routes("service")


class Me(Message):
    """Who asks, as the door knows."""

    name: str
    # viewer or operator
    role: str
    # False: this API has no sign-in and listens on loopback only.
    signed_in: bool


@router.get("/me")
async def read_me(caller: Caller) -> Me:
    """The name and the role of the token that came with the request."""
    return Me(name=caller.name, role=caller.access.value, signed_in=caller.signed_in)
