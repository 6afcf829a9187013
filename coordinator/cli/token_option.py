"""The ``--token-file`` option, which every command with ``--api`` has.

There is no ``--token``, because every user on a host can read the process arguments.
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

TOKEN: Final = "BROADSIDE_TOKEN"  # noqa: S105 - name of a variable
STANDARD_INPUT: Final = Path("-")
_MAX_CHARS: Final = 16_384

_file: ContextVar[Path | None] = ContextVar("token_file", default=None)


def given_token() -> str | None:
    """Return the token to use for this command, or None. Exit if the file cannot be read."""
    path = _file.get()
    if path is None:
        return os.environ.get(TOKEN) or None
    return read_secret("--token-file", path)


def read_secret(option: str, path: Path) -> str:
    """Return the first line of a file, or exit if there is none.

    Args:
        option: Option name to use in error messages.
        path: The file to read, or `-` for standard input.
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
    """Command group that adds ``--token-file`` to each command with ``--api``."""

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
    # Typer uses the signature from `inspect` to get the options.
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    return run
