"""Known names, for shell completion and for errors that suggest the nearest names."""

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.cli.exit_codes import exit_usage

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations

_UNKNOWN: Final = re.compile(r"(run|study|schedule|dead letter) (\S+): no such")
# Number of the newest runs to search for labels.
SEARCHED_RUNS_COUNT: Final = 1000
# Number of names to compare with an unknown one.
_COMPARED_COUNT: Final = 200
_NEAREST_COUNT: Final = 3


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
    """Exit with an error for an unknown name. The arguments are those of ``describe_unknown``."""
    names = list(known)
    if name not in names:
        exit_usage(describe_unknown(kind, name, names, command))


async def with_suggestion(client: "Operations", error: ApiError) -> ApiError:
    """Return the error with the nearest known names if a name is unknown, else the same error.

    Args:
        client: Client that lists the known names.
        error: The error to return or replace.
    """
    unknown = _UNKNOWN.match(str(error))
    if error.status != 404 or unknown is None:
        return error
    list_names, command = _LISTS[unknown[1]]
    try:
        known = await list_names(client)
    except ApiError:
        known = []
    return ApiError(describe_unknown(unknown[1], unknown[2], known, command), error.status)


async def require_known_filters(client: "Operations", filters: Mapping[str, Any]) -> None:
    """Exit with an error if no run has a scenario, an operator or a label of the filters.

    Args:
        client: Client that lists the runs.
        filters: Filters that match no run.
    """
    from broadside.coordinator import scenarios

    headers = await client.runs(SEARCHED_RUNS_COUNT)
    if "scenario" in filters:
        known = [*scenarios.names(), *(header.scenario for header in headers)]
        require_known("scenario", filters["scenario"], known, "broadside scenarios")
    if not headers:
        return
    if "by" in filters:
        require_known("operator", filters["by"], [header.created_by for header in headers])
    for label in filters.get("label", ()):
        known = [name for header in headers for name in header.labels]
        require_known("label", label.partition("=")[0], known)


async def run_ids(client: "Operations") -> list[str]:
    """Return the ids of the newest runs."""
    return [header.run_id for header in await client.runs(_COMPARED_COUNT)]


async def study_ids(client: "Operations") -> list[str]:
    """Return the ids of the newest studies."""
    return [study.study_id for study in await client.studies(_COMPARED_COUNT)]


async def schedule_names(client: "Operations") -> list[str]:
    """Return the names of all schedules."""
    return [view.schedule.name for view in await client.schedules()]


async def dead_letter_numbers(client: "Operations") -> list[str]:
    """Return the numbers of the oldest dead letters."""
    return [str(dead.sequence_number) for dead in await client.dead_letters(_COMPARED_COUNT)]


async def labels(client: "Operations") -> list[str]:
    """Return the labels of the newest runs, as ``NAME=VALUE``."""
    headers = await client.runs(SEARCHED_RUNS_COUNT)
    pairs = (f"{name}={value}" for header in headers for name, value in header.labels.items())
    return list(dict.fromkeys(pairs))


NameLister = Callable[["Operations"], Awaitable[list[str]]]
# Function and command that list the known names, by kind.
_LISTS: Final[Mapping[str, tuple[NameLister, str]]] = {
    "run": (run_ids, "broadside runs"),
    "study": (study_ids, "broadside study list"),
    "schedule": (schedule_names, "broadside schedule list"),
    "dead letter": (dead_letter_numbers, "broadside deadletters list"),
}
