"""``--token-file``: every command that takes ``--api`` takes it as well.

There is no ``--token``: everybody on a host may read the arguments of its processes.
"""

import os
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import typer
from typer.main import get_click_param
from typer.models import ParamMeta

from broadside.coordinator.cli.exits import Exit, stop

TOKEN: Final = "BROADSIDE_TOKEN"  # noqa: S105 - the variable's name
STANDARD_INPUT: Final = Path("-")
_MAX_CHARS: Final = 16_384

_file: ContextVar[Path | None] = ContextVar("token_file", default=None)


def given_token() -> str | None:
    """What the command under way was given; ends it where the file cannot be read."""
    path = _file.get()
    if path is None:
        return os.environ.get(TOKEN) or None
    try:
        if path == STANDARD_INPUT:
            line = sys.stdin.readline(_MAX_CHARS)
        else:
            with path.open(encoding="utf-8") as text:
                line = text.readline(_MAX_CHARS)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text"
        stop(f"--token-file {path}: {why}", Exit.USAGE)
    token = line.strip()
    if not token:
        stop(f"--token-file {path}: its first line is empty", Exit.USAGE)
    return token


def _take(path: Path | None) -> None:
    _file.set(path)


def offer_token(command: Any) -> None:
    """Give a command that takes ``--api``, or each of a group, a ``--token-file`` as well."""
    for inner in getattr(command, "commands", {}).values():
        offer_token(inner)
    if any(parameter.name == "api" for parameter in command.params):
        option, _ = get_click_param(_TOKEN_FILE)
        command.params.append(option)


_TOKEN_FILE: Final = ParamMeta(
    name="token_file",
    annotation=Path | None,
    default=typer.Option(
        None,
        "--token-file",
        metavar="FILE",
        envvar="BROADSIDE_TOKEN_FILE",
        callback=_take,
        expose_value=False,
        help="file whose first line is the bearer token for --api, - for standard input; default: "
        f"what {TOKEN} holds",
    ),
)
