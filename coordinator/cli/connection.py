"""Connection to a coordinator, over HTTP or in this process using the local fabric."""

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
# Time to wait for shell completion.
_COMPLETION_S: Final = 2.0

T = TypeVar("T")


def operator_name() -> str:
    """Return the user name for the audit log. In a container the user can have only a number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


@contextlib.asynccontextmanager
async def coordinator_client(api: str | None, *, drive: bool = False) -> AsyncIterator["Verbs"]:
    """Open a client of the coordinator at ``api``, or of the local fabric.

    Args:
        api: Coordinator address. If None, the local fabric will be used.
        drive: Set to True to process unfinished runs while the client is open. Can only be used
            without ``api``.
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
    """Run ``work`` on the local fabric's private table, for tasks that the API does not offer."""
    from broadside.exchange.fabric import FabricSettings, open_fabric

    async def with_table() -> T:
        fabric = open_fabric(FabricSettings())
        try:
            return await work(fabric.private)
        finally:
            await fabric.close()

    return asyncio.run(with_table())


def run(api: str | None, work: Callable[["Verbs"], Awaitable[T]], *, drive: bool = False) -> T:
    """Run ``work`` with a client. An expected error prints one line and exits.

    Args:
        api: Coordinator address. If None, the local fabric will be used.
        work: Coroutine function that receives the client.
        drive: Set to True to process unfinished runs meanwhile. Can only be used without ``api``.
    """

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
    """Return the newest run ids and `last` for shell completion.

    When the coordinator does not respond fast enough, there are no run ids.
    """

    async def newest() -> list[str]:
        async with coordinator_client(context.params.get("api")) as client:
            return [header.run_id for header in await client.runs(_RUNS_COMPLETED)]

    found: list[str] = []
    # Shell completion must never print a traceback.
    with contextlib.suppress(Exception):
        found = asyncio.run(asyncio.wait_for(newest(), _COMPLETION_S))
    return [word for word in (LAST, PREVIOUS, *found) if word.startswith(incomplete)]


RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="run id, `last` or `previous`", autocompletion=complete_run),
]


async def resolve_run(client: "Verbs", run_id: str) -> str:
    """Return the run id to use.

    Args:
        client: The client to use.
        run_id: An id, `last` for the newest run, or `previous` for the run before it of the same
            scenario.
    """
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
    """Return the study id to use.

    Args:
        client: The client to use.
        study_id: An id, or `last` for the newest study.
    """
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
    """Run ``work`` with a client and the resolved run id. See ``run``."""

    async def found(client: "Verbs") -> T:
        return await work(client, await resolve_run(client, run_id))

    return run(api, found, drive=drive)


def study_of(api: str | None, study_id: str, work: Callable[["Verbs", str], Awaitable[T]]) -> T:
    """Run ``work`` with a client and the resolved study id. See ``run``."""

    async def found(client: "Verbs") -> T:
        return await work(client, await resolve_study(client, study_id))

    return run(api, found)
