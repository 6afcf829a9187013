"""Suggestions for misspelt names, and shell completion."""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from broadside.coordinator.cli.refused import ApiError

if TYPE_CHECKING:
    from broadside.exchange.records import RunHeader

_UNKNOWN_RUN: Final = re.compile(r"run (\S+): no such run")
_RUNS_LOOKED_AT: Final = 200


class ListsRuns(Protocol):
    """Client that can list runs."""

    async def runs(self, limit: int) -> "list[RunHeader]": ...


def near(wanted: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, or None.

    A single name that begins or ends with ``wanted`` has precedence.

    Args:
        wanted: The unknown name to compare.
        known: All names that can be suggested.
    """
    names = list(known)
    begun = [name for name in names if name.startswith(wanted) or name.endswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    return next(iter(difflib.get_close_matches(wanted, names, n=1, cutoff=0.7)), None)


async def with_suggestion(client: ListsRuns, error: ApiError) -> ApiError:
    """Return the error with a suggestion if the run is unknown, otherwise the same error.

    Args:
        client: Client that lists the known runs.
        error: The error to return or replace.
    """
    unknown = _UNKNOWN_RUN.match(str(error))
    if error.status != 404 or unknown is None:
        return error
    try:
        known = [header.run_id for header in await client.runs(_RUNS_LOOKED_AT)]
    except ApiError:
        known = []
    meant = near(unknown[1], known)
    hint = f"did you mean {meant}?" if meant else "list them with `broadside runs`"
    return ApiError(f"run {unknown[1]}: no such run; {hint}", error.status)


def complete_scenario(incomplete: str) -> Sequence[str]:
    from broadside.coordinator import scenarios

    return [name for name in scenarios.names() if name.startswith(incomplete)]


def complete_field(incomplete: str) -> Sequence[str]:
    """Return the run specification fields that can be used to complete ``--set``."""
    from broadside.coordinator import scenarios

    return [f"{name}=" for name in scenarios.fields() if name.startswith(incomplete)]


def complete_chart(incomplete: str) -> Sequence[str]:
    from broadside.coordinator.views.charts import CHARTS

    return [name for name in CHARTS if name.startswith(incomplete)]
