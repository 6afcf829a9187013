"""Known names, for shell completion and for errors that suggest the nearest names."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broadside.coordinator.cli.api_errors import ApiError, describe_unknown, require_known

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations

_UNKNOWN: Final = re.compile(r"(run|study|schedule|dead letter) (\S+): no such")
# Number of the newest runs to search for labels.
SEARCHED_RUNS_COUNT: Final = 1000
# Number of names to compare with an unknown one.
_COMPARED_COUNT: Final = 200


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
        return error
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
