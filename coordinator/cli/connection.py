"""How a command reaches a coordinator: over HTTP, or in this process on the settings' fabric."""

import asyncio
import contextlib
import getpass
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.refused import ApiError
from broadside.coordinator.cli.suggest import with_suggestion
from broadside.coordinator.cli.token_option import given_token

if TYPE_CHECKING:
    from broadside.coordinator.cli.verbs import Verbs
    from broadside.exchange.ports import Table

LAST: Final = "last"
PREVIOUS: Final = "previous"
_RUNS_COMPLETED: Final = 20
_COMPLETION_S: Final = 2.0  # s that a pressed Tab may take

T = TypeVar("T")


def operator_name() -> str:
    """Who asks, for the record; in a container a user may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


@contextlib.asynccontextmanager
async def coordinator_client(api: str | None, *, drive: bool = False) -> AsyncIterator["Verbs"]:
    """The verbs of the coordinator at ``api``, or on this host's own fabric.

    With ``drive`` and no ``api`` this process also looks after unfinished runs meanwhile.
    """
    if api is not None:
        from broadside.coordinator.cli.client import connect

        async with connect(api, given_token()) as client:
            yield client
        return
    from broadside.coordinator.cli.verbs import local_verbs

    async with local_verbs(operator_name(), drive=drive) as local:
        yield local


def run_on_private(work: Callable[["Table"], Awaitable[T]]) -> T:
    """Do ``work`` on the private table of this host's own fabric: what no API offers."""
    from broadside.exchange.fabric import FabricSettings, open_fabric

    async def with_table() -> T:
        fabric = open_fabric(FabricSettings())
        try:
            return await work(fabric.private)
        finally:
            await fabric.close()

    return asyncio.run(with_table())


def run(api: str | None, work: Callable[["Verbs"], Awaitable[T]], *, drive: bool = False) -> T:
    """Do ``work`` with a client; an expected error ends the command with one line."""

    async def with_client() -> T:
        async with coordinator_client(api, drive=drive) as client:
            try:
                return await work(client)
            except ApiError as error:
                raise await with_suggestion(client, error) from error

    try:
        return asyncio.run(with_client())
    except ApiError as error:
        usage = error.status in (404, 422)
        stop(str(error), Exit.USAGE if usage else Exit.CANNOT_RUN)


def complete_run(context: typer.Context, incomplete: str) -> Sequence[str]:
    """The newest runs, and `last`; nothing where the coordinator does not answer at once."""

    async def newest() -> list[str]:
        async with coordinator_client(context.params.get("api")) as client:
            return [header.run_id for header in await client.runs(_RUNS_COMPLETED)]

    found: list[str] = []
    # A shell that asks for words must not be answered with a traceback, whatever is wrong.
    with contextlib.suppress(Exception):
        found = asyncio.run(asyncio.wait_for(newest(), _COMPLETION_S))
    return [word for word in (LAST, PREVIOUS, *found) if word.startswith(incomplete)]


RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="run id, `last` or `previous`", autocompletion=complete_run),
]


async def resolve_run(client: "Verbs", run_id: str) -> str:
    """The id that a person means: `last` is the newest run's, `previous` that of the one before it
    of the same scenario."""
    if run_id not in (LAST, PREVIOUS):
        return run_id
    newest = await client.runs(1)
    if not newest:
        stop("no run yet; launch one with `broadside launch loopback`", Exit.CANNOT_RUN)
    if run_id == LAST:
        return newest[0].run_id
    scenario = newest[0].scenario
    both = await client.runs(2, scenario=scenario)
    if len(both) < 2:
        stop(f"previous: {newest[0].run_id} is the only run of {scenario}", Exit.CANNOT_RUN)
    return both[1].run_id


async def resolve_study(client: "Verbs", study_id: str) -> str:
    """The id that a person means: `last` is the newest study's."""
    if study_id != LAST:
        return study_id
    newest = await client.studies(1)
    if not newest:
        stop("no study yet; start one with `broadside study`", Exit.CANNOT_RUN)
    return newest[0].study_id


def run_of(
    api: str | None,
    run_id: str,
    work: Callable[["Verbs", str], Awaitable[T]],
    *,
    drive: bool = False,
) -> T:
    """:func:`run`, with the id of the run that a person means."""

    async def found(client: "Verbs") -> T:
        return await work(client, await resolve_run(client, run_id))

    return run(api, found, drive=drive)


def study_of(api: str | None, study_id: str, work: Callable[["Verbs", str], Awaitable[T]]) -> T:
    """:func:`run`, with the id of the study that a person means."""

    async def found(client: "Verbs") -> T:
        return await work(client, await resolve_study(client, study_id))

    return run(api, found)
