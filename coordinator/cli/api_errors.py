"""Errors of a coordinator operation and of unknown names, which suggest the nearest names."""

import difflib
from collections.abc import Iterable
from typing import Final

from broadside.coordinator.cli.exit_codes import exit_usage

# Limit for responses that read many rows.
REQUEST_TIMEOUT_S: Final = 600.0
_NEAREST_COUNT: Final = 3


class ApiError(Exception):
    """The coordinator rejected the request or did not respond. The message is one line.

    Attributes:
        status: HTTP status code. None if there was no response.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the most similar known names, at most three.

    A single name that begins or ends with ``name`` has precedence.

    Args:
        name: The unknown name.
        known: All names that can be suggested.
    """
    names = list(dict.fromkeys(known))
    partial = [one for one in names if one.startswith(name) or one.endswith(name)]
    if len(partial) == 1:
        return partial
    return difflib.get_close_matches(name, names, n=_NEAREST_COUNT)


def describe_unknown(kind: str, name: str, known: Iterable[str], command: str | None = None) -> str:
    """Return an error for an unknown name, with the nearest known names.

    Args:
        kind: Kind of the name, such as ``run``.
        name: The unknown name.
        known: All known names, in the order in which to print some of them if none is similar.
        command: Command that lists the names. None if there is no such command.
    """
    names = list(dict.fromkeys(known))
    text = f"{kind} {name}: no such {kind}; "
    if nearest := nearest_names(name, names):
        return text + f"did you mean {' or '.join(nearest)}?"
    if len(names) <= _NEAREST_COUNT or command is None:
        return text + (f"there are: {', '.join(names)}" if names else f"there is no {kind} yet")
    some = ", ".join(names[:_NEAREST_COUNT])
    return text + f"there are {some} and more; list them with `{command}`"


def require_known(kind: str, name: str, known: Iterable[str], command: str | None = None) -> None:
    """Exit with an error for an unknown name. The arguments are those of ``describe_unknown``.

    Args:
        kind: Kind of the name, such as ``run``.
        name: Name that the user gave.
        known: All known names.
        command: Command that lists the names. None if there is no such command.

    Raises:
        typer.Exit: The name is unknown.
    """
    names = list(known)
    if name not in names:
        exit_usage(describe_unknown(kind, name, names, command))
