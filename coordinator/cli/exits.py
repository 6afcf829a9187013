"""The exit codes of every command, and how an expected error becomes one line and a code."""

from enum import IntEnum
from typing import Final, NoReturn

import typer

INTERRUPTED: Final = 130  # left by Ctrl-C or q, as shells say it


class Exit(IntEnum):
    """What a command's exit code says."""

    PASS = 0  # done; for a verdict: pass
    FAIL = 1  # the verdict is fail
    INCONCLUSIVE = 2  # the verdict is inconclusive: the data cannot say
    USAGE = 3  # the command, a field or a value is wrong; nothing was done
    CANNOT_RUN = 4  # the command is right, but something it needs is missing or refused


def stop(message: str, code: Exit) -> NoReturn:
    """End the command with one line on standard error."""
    typer.echo(f"broadside: {message}", err=True)
    raise typer.Exit(code)
