"""How a command reaches a coordinator: over HTTP, or in this process on the settings' fabric."""

import asyncio
import contextlib
import getpass
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Final, TypeVar

import httpx
import typer

from coordinator.cli.client import ApiError, Client, connect
from coordinator.cli.exits import Exit, stop
from coordinator.cli.suggest import with_suggestion
from coordinator.cli.token_option import given_token
from coordinator.device.ledgers.source import LedgerError
from coordinator.prices import BadPrices
from coordinator.studies.switch import SwitchError
from exchange.ports import ExchangeError

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
async def coordinator_client(api: str | None, *, drive: bool = False) -> AsyncIterator[Client]:
    """A client of the coordinator at ``api``, or of one inside this process.

    With ``drive`` the one inside this process also looks after unfinished runs meanwhile.
    """
    if api is not None:
        async with connect(api, given_token()) as client:
            yield client
        return
    # Commands that ask a coordinator over the network do without all that one imports.
    from coordinator.cli.in_process import local_coordinator

    async with local_coordinator(operator_name(), drive=drive) as http:
        yield Client(http)


def run(api: str | None, work: Callable[[Client], Awaitable[T]], *, drive: bool = False) -> T:
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
        usage = error.status in (httpx.codes.NOT_FOUND, httpx.codes.UNPROCESSABLE_ENTITY)
        stop(str(error), Exit.USAGE if usage else Exit.CANNOT_RUN)
    except (ExchangeError, LedgerError, SwitchError, BadPrices) as error:
        stop(str(error), Exit.CANNOT_RUN)


def complete_run(context: typer.Context, incomplete: str) -> Sequence[str]:
    """The newest runs, and `last`; nothing where the coordinator does not answer at once."""

    async def newest() -> list[str]:
        async with coordinator_client(context.params.get("api")) as client:
            return [header.run_id for header in await client.runs(_RUNS_COMPLETED)]

    found: list[str] = []
    # A shell that asks for words must not be answered with a traceback, whatever is wrong.
    with contextlib.suppress(Exception):
        found = asyncio.run(asyncio.wait_for(newest(), _COMPLETION_S))
    return [word for word in ("last", *found) if word.startswith(incomplete)]


RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="run id, or `last`", autocompletion=complete_run),
]


async def resolve_run(client: Client, run_id: str) -> str:
    """The id that a person means: `last` is the newest run's."""
    if run_id != "last":
        return run_id
    newest = await client.runs(1)
    if not newest:
        stop("no run yet; launch one with `broadside launch smoke`", Exit.CANNOT_RUN)
    return newest[0].run_id
