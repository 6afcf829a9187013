"""Parsers of times and numbers in table cells."""

import contextlib
import difflib
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

_OFFSET: Final = re.compile(r"UTC([+-])(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE)


def parse_zone(text: str) -> tzinfo:
    """Parse a time zone.

    The text is a name (``America/New_York``), ``UTC``, or an offset (``UTC-05:00``).

    Raises:
        ValueError: The zone is unknown. The message is one line.
    """
    if text.upper() in ("UTC", "Z"):
        return UTC
    if match := _OFFSET.fullmatch(text):
        minutes = int(match[2]) * 60 + int(match[3] or 0)
        if minutes <= 14 * 60:
            return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))
    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        matches = difflib.get_close_matches(text, available_timezones(), n=1)
        hint = f"did you mean {matches[0]}?" if matches else "give a name such as America/New_York"
        raise ValueError(f"no such time zone; {hint} or an offset such as UTC-05:00") from None


def parse_time(text: str, time_format: str | None = None) -> datetime:
    """Parse an epoch time or a time in ISO 8601.

    The unit of an epoch time follows from its number of digits. Grafana, Azure and Java write
    milliseconds, InfluxDB writes nanoseconds. If the text has no offset, the result is a local time
    without zone.

    Args:
        text: Text to parse.
        time_format: Another accepted format, as for ``strptime``, or None.

    Returns:
        The time with its offset, or a local time without ``tzinfo``.

    Raises:
        ValueError: The text is not a time.
    """
    if time_format is not None:
        with contextlib.suppress(ValueError):
            return datetime.strptime(text, time_format)  # noqa: DTZ007 - the caller adds the zone
    if epoch := _EPOCH.fullmatch(text):
        finer = (len(epoch[1]) - 10) // 3
        return datetime.fromtimestamp(float(text) / 1000**finer, UTC)
    # Python 3.11 would parse 20220104 and 2022W01 as dates.
    if "T" not in text and ":" not in text:
        examples = [f"{_EXAMPLE:{time_format}}"] if time_format else []
        raise ValueError("not a time such as " + " or ".join([*examples, _EXAMPLE.isoformat()]))
    return datetime.fromisoformat(text)


def to_utc(at: datetime, zone: tzinfo) -> datetime:
    """Convert a local time to UTC. A time with an offset is converted by its own offset.

    Args:
        at: Time to convert.
        zone: Zone of times without an offset.

    Returns:
        The time in UTC.

    Raises:
        ValueError: The zone's clocks showed this time twice or never, or the year is wrong.
    """
    if not 2000 <= at.year <= 2100:
        raise ValueError("the year is not between 2000 and 2100")
    if at.tzinfo is not None:
        return at.astimezone(UTC)
    first, second = (at.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first == second:
        return first
    if first.astimezone(zone).replace(tzinfo=None) != at:
        raise ValueError(f"{zone} skipped this time when its clocks went forward; correct it")
    offsets = " or ".join(_offset(at - instant.replace(tzinfo=None)) for instant in (first, second))
    raise ValueError(
        f"{zone} had this time twice, at {first:%H:%M} and at {second:%H:%M} UTC, when its clocks "
        f"went back; give the offset as the zone: {offsets}"
    )


def _offset(ahead: timedelta) -> str:
    minutes = round(ahead.total_seconds() / 60)
    return f"UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


_EXAMPLE: Final = datetime(2022, 1, 4, 11, 25)  # noqa: DTZ001 - a local time
# Epoch seconds, milliseconds, microseconds or nanoseconds.
_EPOCH: Final = re.compile(r"(\d{10}|\d{13}|\d{16}|\d{19})(?:\.\d+)?", re.ASCII)
_GROUPED: Final = re.compile(r"\d{1,3}([,' \u00a0\u202f])\d{3}(?:\1\d{3})*(?:\.\d+)?")
_PLAIN: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


def parse_number(text: str) -> float | None:
    """Parse a number with optional thousands separators. Return None for ``null`` and empty text.

    Raises:
        ValueError: The text is not a number.
    """
    if not text or text.lower() in ("null", "none"):
        return None
    if _GROUPED.fullmatch(text):
        text = re.sub(r"[,' \u00a0\u202f]", "", text)
    # float() would also accept 1_0, nan and inf.
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"not a number: {text[:40]!r}")
    return float(text)
