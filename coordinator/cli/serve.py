"""``broadside serve``: the coordinator with its API."""

import asyncio
from typing import Annotated

import typer

from coordinator.cli.exits import Exit, stop


def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on (loopback only)")] = None,
    port: Annotated[int | None, typer.Option(help="port; 0 picks a free one")] = None,
) -> None:
    """Look after runs and answer the REST API until interrupted."""
    from pydantic import ValidationError

    from coordinator.settings import CoordinatorSettings

    chosen = {"host": host, "port": port}
    try:
        settings = CoordinatorSettings(**{k: v for k, v in chosen.items() if v is not None})  # type: ignore[arg-type]  # values by name, checked by pydantic
    except ValidationError as error:
        fault = error.errors()[0]
        stop(f"{fault['loc'][0]}: {fault['msg']} (got {fault['input']!r})", Exit.USAGE)
    asyncio.run(_serve(settings.host, settings.port, settings.tick_s))


async def _serve(host: str, port: int, tick_s: float) -> None:
    import socket

    import uvicorn

    from coordinator.api import create_app, is_loopback
    from coordinator.ledgers import LedgerError, open_ledger
    from coordinator.service import Coordinator
    from coordinator.settings import CoordinatorSettings
    from exchange.fabric import FabricSettings, open_fabric
    from exchange.ports import ExchangeError

    if not is_loopback(host):
        stop(
            f"host {host}: without sign-in the API listens on loopback only; use 127.0.0.1 and "
            "reach it through an SSH tunnel",
            Exit.USAGE,
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        stop(
            f"port {port} on {host}: {error.strerror}; choose another with --port", Exit.CANNOT_RUN
        )
    try:
        fabric = open_fabric(FabricSettings())
        ledger = open_ledger(CoordinatorSettings())
    except (ExchangeError, LedgerError) as error:
        stop(str(error), Exit.CANNOT_RUN)
    app = create_app(Coordinator(fabric, ledger), tick_s=tick_s)
    typer.echo(f"listening on http://{host}:{listener.getsockname()[1]}", err=True)
    try:
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        await fabric.close()
