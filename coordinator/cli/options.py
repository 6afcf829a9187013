"""Options that several commands share, and the output of ``--json``."""

import json
import os
from datetime import tzinfo
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.suggest import complete_field, complete_scenario
from broadside.coordinator.imports.time_text import parse_zone
from broadside.exchange.messages import Message

Api = Annotated[
    str | None,
    typer.Option(
        "--api",
        metavar="URL",
        envvar="BROADSIDE_API",
        help="a coordinator's address; without it the command works on the fabric itself",
    ),
]


Json = Annotated[bool, typer.Option("--json", help="print JSON on standard output, nothing else")]


Scenario = Annotated[
    str,
    typer.Argument(
        help="a scenario's name or a .toml file's path", autocompletion=complete_scenario
    ),
]


Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="override any field; repeatable",
        autocompletion=complete_field,
    ),
]


Detach = Annotated[
    bool, typer.Option("--detach", help="return at once; a `broadside serve` must be running")
]


Plain = Annotated[bool, typer.Option("--plain", help="plain lines, also on a terminal")]


def _writable(path: Path | None) -> Path | None:
    """Reject a path that is not writable before a run is launched."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        why = "a folder" if path.is_dir() else f"{path.parent} is no folder that can be written to"
        stop(f"--junit {path}: {why}; name a file that can be written", Exit.USAGE)
    return path


Junit = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        metavar="FILE",
        callback=_writable,
        help="also write the verdict as JUnit XML, a case a burst",
    ),
]


class Format(StrEnum):
    """Format to use for a command result."""

    TEXT = "text"
    MD = "md"


FormatOption = Annotated[
    Format, typer.Option("--format", help="md: Markdown, as a pipeline's summary shows it")
]


def print_json(value: Message | Any) -> None:
    """Print one JSON document on standard output."""
    if isinstance(value, Message):
        typer.echo(value.model_dump_json(indent=2))
    else:
        typer.echo(json.dumps(value, indent=2))


def zone_of(text: str) -> tzinfo:
    """Return the time zone of ``--timezone``. An invalid name exits."""
    try:
        return parse_zone(text)
    except ValueError as error:
        stop(f"--timezone {text!r}: {error}", Exit.USAGE)
