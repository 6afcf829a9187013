"""Parser for the time when an unattended run should end."""

import re
from datetime import UTC, datetime
from typing import Any, Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def read_end(text: str, now: datetime) -> dict[str, Any]:
    """Parse the time when an unattended run should end.

    Args:
        text: A duration (``26h``, ``90m``) or a time with offset (``2026-11-23T06:00Z``).
        now: The current time.

    Returns:
        The fields ``unattended_s`` and ``unattended_until_at`` to set in a run specification.

    Raises:
        ValueError: The text is invalid, without an offset, or in the past.
    """
    if found := re.fullmatch(r"(\d+)([smhd])", text.strip()):
        left_s = int(found[1]) * _UNITS[found[2]]
        return {"unattended_s": left_s, "unattended_until_at": None}
    wanted = f"unattended: {text!r} is no end; write a length (26h) or an instant with its zone"
    try:
        end_at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"{wanted} (2026-11-23T06:00Z)") from error
    if end_at.tzinfo is None:
        raise ValueError(f"{wanted} (2026-11-23T06:00Z)")
    if end_at <= now:
        raise ValueError(f"unattended: {text} is past; write an end to come")
    return {"unattended_s": None, "unattended_until_at": end_at.astimezone(UTC)}
