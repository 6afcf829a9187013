"""Result of one `broadside doctor` check, shared by coordinator and agent."""

from broadside.exchange.messages import Message


class HostCheck(Message):
    """Result of one check on this host.

    Attributes:
        name: The check name.
        ok: True if the check passed.
        detail: The result of the check, as text.
        fix: Action to take if the check failed or can be improved.
        required: False if Broadside works without this item, with the limits given in ``detail``.
    """

    name: str
    ok: bool
    detail: str
    fix: str | None = None
    required: bool = True
