"""What `broadside doctor` finds, one line a thing; the agent package reports its own part."""

from broadside.exchange.messages import Message


class Check(Message):
    """One thing that was tried on this host."""

    name: str
    ok: bool
    detail: str  # what was found
    fix: str | None = None  # what to do when it is not ok, or would be better
    required: bool = True  # False: Broadside works without it, and says what it lacks
