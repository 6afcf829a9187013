"""How a command reaches a coordinator: over HTTP, or in this process on the settings' fabric."""

import asyncio
import contextlib
import getpass
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, TypeVar

import httpx
import typer

from coordinator.cli.exits import Exit, stop
from coordinator.client import ApiError, Client, connect
from coordinator.ledgers import LedgerError, open_ledger
from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings
from exchange.fabric import FabricSettings, open_fabric
from exchange.ports import ExchangeError

Api = Annotated[
    str | None,
    typer.Option(
        "--api",
        metavar="URL",
        envvar="BROADSIDE_API",
        help="a coordinator's address; without it the command works on the fabric itself",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON on standard output, nothing else")]

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
        async with connect(api) as client:
            yield client
        return
    from coordinator.api import create_app  # a second of imports that remote commands do without

    settings = CoordinatorSettings()
    fabric = open_fabric(FabricSettings())
    coordinator = Coordinator(fabric, open_ledger(settings))
    app = create_app(coordinator, tick_s=None)
    loop = asyncio.create_task(coordinator.run_forever(settings.tick_s)) if drive else None
    transport = httpx.ASGITransport(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://in-process") as http:
            yield Client(http)
    finally:
        if loop is not None:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop
        await fabric.close()


def run(api: str | None, work: Callable[[Client], Awaitable[T]], *, drive: bool = False) -> T:
    """Do ``work`` with a client; an expected error ends the command with one line."""

    async def with_client() -> T:
        async with coordinator_client(api, drive=drive) as client:
            return await work(client)

    try:
        return asyncio.run(with_client())
    except ApiError as error:
        usage = error.status in (httpx.codes.NOT_FOUND, httpx.codes.UNPROCESSABLE_ENTITY)
        stop(str(error), Exit.USAGE if usage else Exit.CANNOT_RUN)
    except (ExchangeError, LedgerError) as error:
        stop(str(error), Exit.CANNOT_RUN)
