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
from typing import Annotated, Any, Final, TypeVar

import typer

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
    return read_secret("--token-file", path)


def read_secret(option: str, path: Path) -> str:
    """Return a file's first line, `-` for standard input's; end the command where there is none.

    Args:
        option: The option by which the file was named, for the messages.
        path: The file.
    """
    try:
        if path == STANDARD_INPUT:
            line = sys.stdin.readline(_MAX_CHARS)
        else:
            with path.open(encoding="utf-8") as text:
                line = text.readline(_MAX_CHARS)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text"
        stop(f"{option} {path}: {why}", Exit.USAGE)
    secret = line.strip()
    if not secret:
        stop(f"{option} {path}: its first line is empty", Exit.USAGE)
    return secret


TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="BROADSIDE_TOKEN_FILE",
        help="file whose first line is the bearer token for --api, - for standard input; default: "
        f"what {TOKEN} holds",
    ),
]
_Command = TypeVar("_Command", bound=Callable[..., Any])


class CommandGroup(typer.Typer):
    """Group of commands, in which each that takes ``--api`` takes ``--token-file`` as well."""

    def command(self, *given: Any, **named: Any) -> Callable[[_Command], _Command]:
        """Register a function as Typer does, with the option added to its signature."""
        register = super().command(*given, **named)

        def add(function: _Command) -> _Command:
            register(_with_token_file(function))
            return function

        return add


def _with_token_file(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function, eval_str=True)
    if "api" not in signature.parameters:
        return function

    @functools.wraps(function)
    def run(*, token_file: Path | None, **given: Any) -> Any:
        _file.set(token_file)
        return function(**given)

    option = inspect.Parameter(
        "token_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TokenFile
    )
    # Typer reads options from the signature that `inspect` shows.
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    return run
