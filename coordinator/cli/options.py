"""Options and arguments that several commands share, with shell completion and time parsing."""

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Annotated, Final

import typer

from broadside.coordinator.cli.exit_codes import exit_usage
from broadside.coordinator.imports.time_text import parse_zone

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def complete_scenario(incomplete: str) -> Sequence[str]:
    """Return the names of scenarios that start with the given text."""
    from broadside.coordinator import scenarios

    return [name for name in scenarios.names() if name.startswith(incomplete)]


def complete_field(incomplete: str) -> Sequence[str]:
    """Return fields that ``--set`` accepts, with their values if only one field is possible."""
    from broadside.coordinator import scenarios

    name, equals, _ = incomplete.partition("=")
    fields = [name] if equals else [f for f in scenarios.settable_fields() if f.startswith(name)]
    values = scenarios.known_values(fields[0]) if len(fields) == 1 else []
    texts = [f"{fields[0]}={value}" for value in values] or [f"{field}=" for field in fields]
    return [text for text in texts if text.startswith(incomplete)]


def complete_chart(incomplete: str) -> Sequence[str]:
    """Return the names of charts that start with the given text."""
    from broadside.coordinator.views.charts import CHARTS

    return [name for name in CHARTS if name.startswith(incomplete)]


def _require_writable(path: Path | None) -> Path | None:
    """Reject a path that is not writable before a run is launched."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        reason = "it is a folder" if path.is_dir() else f"{path.parent} is not a writable folder"
        exit_usage(f"--junit {path}: {reason}; give a file that can be written")
    return path


ScenarioArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a scenario or path of a .toml file.", autocompletion=complete_scenario
    ),
]
BurstOption = Annotated[int, typer.Option("--burst", min=1, help="Number of the burst, from 1.")]
LimitOption = Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of rows.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="Return at once; requires a running `broadside serve`.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Print lines even on a terminal.")]
Junit = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        metavar="FILE",
        callback=_require_writable,
        help="Also write the result as JUnit XML.",
    ),
]


def parse_timezone(text: str) -> tzinfo:
    """Return the time zone of ``--timezone``. Exit if it is invalid."""
    try:
        return parse_zone(text)
    except ValueError as error:
        exit_usage(f"--timezone {text!r}: {error}")


def parse_time_option(option: str, text: str | None) -> datetime | None:
    """Parse a date or time in ISO 8601. Exit if it is invalid.

    Args:
        option: Option name to use in the error message.
        text: The text, or None.

    Returns:
        The time, without zone if the text has none. None for None.
    """
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        exit_usage(f"{option} {text!r}: not a time; write it like 2026-11-22T14:00Z")


def parse_duration_s(text: str) -> int | None:
    """Return the seconds of a duration such as ``90m``, ``26h`` or ``7d``, or None."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text.strip())
    return None if match is None else int(match[1]) * _UNITS_S[match[2]]


def parse_end_time(option: str, text: str, now: datetime, *, zone: tzinfo | None = UTC) -> datetime:
    """Parse a duration from now, or a time in the future. Exit if it is invalid.

    Args:
        option: Option name to use in error messages.
        text: A duration such as ``90d`` or ``12h``, a date, or a time.
        now: Current time to use.
        zone: Time zone of a time without offset. None to reject such a time.

    Returns:
        The time in UTC.
    """
    form = "write a duration such as 12h, or a future time such as 2026-11-23T06:00Z"
    duration_s = parse_duration_s(text)
    try:
        if duration_s is not None:
            return now + timedelta(seconds=duration_s)
        at = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        exit_usage(f"{option} {text}: not a duration or time; {form}")
    if at.tzinfo is None and zone is None:
        exit_usage(f"{option} {text}: the time has no offset; {form}")
    at = at.replace(tzinfo=at.tzinfo or zone).astimezone(UTC)
    if at <= now:
        exit_usage(f"{option} {text}: the time is in the past; {form}")
    return at
