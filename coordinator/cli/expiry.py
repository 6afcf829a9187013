"""Parser for expiry times."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1)}


def parse_expiry(text: str, now: datetime) -> datetime:
    """Parse an expiry time.

    Args:
        text: ``90d``, ``12h``, a date or a time. Without an offset it is UTC.
        now: The current time.

    Raises:
        ValueError: The text is invalid or the time is in the past.
    """
    if (span := re.fullmatch(r"([0-9]{1,6})([hd])", text)) is not None:
        return now + int(span[1]) * _UNITS[span[2]]
    at = datetime.fromisoformat(text)
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    if at <= now:
        raise ValueError("it is past")
    return at
