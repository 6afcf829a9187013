"""``--token-file``: every command that takes ``--api`` takes it as well.

There is no ``--token``: everybody on a host may read the arguments of its processes.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Final

import typer

from coordinator.cli.exits import Exit, stop

TOKEN: Final = "BROADSIDE_TOKEN"  # noqa: S105 - the variable's name
STANDARD_INPUT: Final = Path("-")
_MAX_CHARS: Final = 16_384

TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="BROADSIDE_TOKEN_FILE",
        help=f"file whose first line is the bearer token for --api, - for standard input; default: "
        f"what {TOKEN} holds",
    ),
]

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


def offer_token(app: typer.Typer) -> None:
    """Give every command that takes ``--api`` a ``--token-file`` as well, once."""
    for command in app.registered_commands:
        if command.callback is None:
            continue
        parameters = inspect.signature(command.callback).parameters
        if "api" in parameters and "token_file" not in parameters:
            command.callback = _with_token(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            offer_token(group.typer_instance)


def _with_token(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def with_token(*args: object, token_file: Path | None = None, **kwargs: object) -> None:
        _file.set(token_file)
        command(*args, **kwargs)

    signature = inspect.signature(command)
    extra = inspect.Parameter(
        "token_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TokenFile
    )
    parameters = [*signature.parameters.values(), extra]
    vars(with_token)["__signature__"] = signature.replace(parameters=parameters)
    with_token.__annotations__ = {**command.__annotations__, "token_file": TokenFile}
    return with_token
