"""Timestamps as text or as epoch time in seconds, milliseconds, microseconds or nanoseconds."""

from datetime import UTC, datetime, tzinfo
from typing import Final

# 1e11 is the year 5138 in seconds and the year 1973 in milliseconds. The same gap exists between
# the finer units, so no realistic time is ambiguous.
_FINER_FROM: Final = 1e11
_STEP: Final = 1e3
# The year 5138 in epoch nanoseconds.
_TIME_MAX: Final = 1e20


def parse_timestamp(text: str, zone: tzinfo = UTC) -> float:
    """Return epoch seconds of an epoch time or an ISO 8601 time.

    The unit of an epoch time is detected from its size. Grafana, Azure and Java write milliseconds.
    InfluxDB writes nanoseconds.

    Args:
        text: The time.
        zone: Time zone for times without an offset.

    Raises:
        ValueError: The text is not a time, or it is ambiguous in this zone.
    """
    try:
        number = float(text)
    except ValueError:
        return _parse_iso(text, zone)
    if not 0 <= number < _TIME_MAX:
        raise ValueError(f"{text!r} is not a time")
    for _ in range(3):
        number /= _STEP if number >= _FINER_FROM else 1
    return number


def _parse_iso(text: str, zone: tzinfo) -> float:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write ISO 8601 such as 2026-11-20T12:00:00Z, or epoch seconds"
        ) from None
    if at.tzinfo is not None:
        return at.timestamp()
    early, late = (at.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if early.utcoffset() != late.utcoffset():
        raise ValueError(
            f"{text!r} occurs twice or never in {zone}, because its clocks change; add the UTC "
            "offset"
        )
    return early.timestamp()
