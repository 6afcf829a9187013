"""The hard end of an unattended run, as a person writes it."""

import math
import re
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_until(text: str, now: datetime) -> int:
    """``26h``, ``90m`` or ``2026-11-23T06:00Z`` as seconds from ``now``, rounded up.

    Raises ``ValueError`` with one line; an instant without a zone is refused, not guessed.
    """
    if found := re.fullmatch(r"(\d+)([smhd])", text.strip()):
        return int(found[1]) * _UNITS[found[2]]
    wanted = f"unattended: {text!r} is no end; write a length (26h) or an instant with its zone"
    try:
        end_at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"{wanted} (2026-11-23T06:00Z)") from error
    if end_at.tzinfo is None:
        raise ValueError(f"{wanted} (2026-11-23T06:00Z)")
    left_s = math.ceil((end_at.astimezone(UTC) - now).total_seconds())
    if left_s <= 0:
        raise ValueError(f"unattended: {text} is past; write an end to come")
    return left_s
