"""Error of a coordinator operation, with suggestions for misspelt run ids."""

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from broadside.exchange.records import RunHeader

_UNKNOWN_RUN: Final = re.compile(r"run (\S+): no such run")
_SUGGESTED_RUNS_COUNT: Final = 200


class ApiError(Exception):
    """The coordinator rejected the request or did not respond. The message is one line.

    Attributes:
        status: HTTP status code. None if there was no response.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RunLister(Protocol):
    """Client that can list runs."""

    async def runs(self, limit: int) -> "list[RunHeader]": ...


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, or None.

    A single name that begins or ends with ``name`` has precedence.

    Args:
        name: The unknown name.
        known: All names that can be suggested.
    """
    names = list(known)
    partial = [one for one in names if one.startswith(name) or one.endswith(name)]
    if len(partial) == 1:
        return partial[0]
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.7)), None)


async def with_suggestion(client: RunLister, error: ApiError) -> ApiError:
    """Return the error with a suggestion if the run is unknown, otherwise the same error.

    Args:
        client: Client that lists the known runs.
        error: The error to return or replace.
    """
    unknown = _UNKNOWN_RUN.match(str(error))
    if error.status != 404 or unknown is None:
        return error
    try:
        known = [header.run_id for header in await client.runs(_SUGGESTED_RUNS_COUNT)]
    except ApiError:
        known = []
    match = closest_match(unknown[1], known)
    hint = f"did you mean {match}?" if match else "list the runs with `broadside runs`"
    return ApiError(f"run {unknown[1]}: no such run; {hint}", error.status)
