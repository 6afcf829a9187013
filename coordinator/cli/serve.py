"""The ``broadside serve`` command, which runs the coordinator with its API."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from broadside.coordinator.auth.signin_settings import SignInSettings
from broadside.coordinator.cli.exits import Exit, shown_value, stop
from broadside.coordinator.coordinator_log import start_log
from broadside.coordinator.coordinator_settings import CoordinatorSettings


def serve(
    host: Annotated[
        str | None, typer.Option(help="address to listen on; beyond loopback with sign-in only")
    ] = None,
    port: Annotated[int | None, typer.Option(help="port; 0 picks a free one")] = None,
) -> None:
    """Look after runs and answer the REST API until interrupted."""
    from pydantic import ValidationError

    chosen = {"host": host, "port": port}
    try:
        settings = CoordinatorSettings(**{k: v for k, v in chosen.items() if v is not None})  # type: ignore[arg-type]  # pydantic checks the values
    except ValidationError as error:
        fault = error.errors()[0]
        field = str(fault["loc"][0])
        stop(f"{field}: {fault['msg']} (got {shown_value(field, fault['input'])})", Exit.USAGE)
    start_log(settings.log_level)
    asyncio.run(_serve(settings, SignInSettings()))


def _remove_leftovers(data_dir: Path, backup_dir: Path | None) -> None:
    """Remove the temporary files that killed backups and restores have left."""
    from broadside.exchange.embedded.backup import remove_leftovers

    for folder in (data_dir.absolute().parent, backup_dir):
        if folder is not None:
            remove_leftovers(folder)


async def _serve(settings: CoordinatorSettings, door: SignInSettings) -> None:
    import socket

    import uvicorn

    from broadside.coordinator.agent_gateway.gateway_server import (
        check_authority,
        open_gateway_server,
    )
    from broadside.coordinator.api.app import create_app
    from broadside.coordinator.api.auth_middleware import AuthConfig, is_loopback
    from broadside.coordinator.auth.signin import open_sign_in
    from broadside.coordinator.backups import ScheduledBackups
    from broadside.coordinator.bounded_listener import BACKLOG_COUNT, Listener
    from broadside.coordinator.device.telemetry.config import open_telemetry
    from broadside.coordinator.notices.places import open_places
    from broadside.coordinator.prices import load as load_prices
    from broadside.coordinator.process_memory import collect_rarely, keep_one_heap
    from broadside.coordinator.runs.coordinator import Coordinator
    from broadside.coordinator.runs.storage_watch import storage_gone
    from broadside.coordinator.studies.switch import read_switches
    from broadside.exchange.fabric import FabricSettings, open_fabric
    from broadside.exchange.outage_log import utc_now
    from broadside.exchange.ports import StorageGone

    host, port = settings.host, settings.port
    if door.sign_in == "off" and not is_loopback(host):
        stop(
            f"host {host}: without sign-in the API listens on loopback only; set "
            "BROADSIDE_SIGN_IN=on, or use 127.0.0.1 and reach it through an SSH tunnel",
            Exit.USAGE,
        )
    if (door.tls_certificate_file is None) != (door.tls_key_file is None):
        stop("BROADSIDE_TLS_CERTIFICATE_FILE, BROADSIDE_TLS_KEY_FILE: set both", Exit.USAGE)
    try:
        listener = Listener(host, port)
    except OSError as error:
        stop(
            f"port {port} on {host}: {error.strerror}; choose another with --port", Exit.CANNOT_RUN
        )
    fabric = open_fabric(FabricSettings())
    backups = None
    if fabric.in_files:
        _remove_leftovers(FabricSettings().data_dir, settings.backup_dir)
        if settings.backup_dir is not None:
            backups = ScheduledBackups(fabric.private, settings, utc_now)
    sources = open_telemetry(settings.telemetry_file)
    prices = load_prices(settings.prices)
    switches = read_switches(settings.switches_file)
    sign_in = open_sign_in(door, fabric.private)
    places = list(open_places(settings))
    guard = AuthConfig(
        sign_in=sign_in,
        writes_per_minute=door.writes_per_minute,
        request_max_bytes=door.request_max_bytes,
        import_max_bytes=door.import_max_bytes,
        requests_at_once=settings.requests_at_once,
        loopback_only=sign_in is None,
    )
    app = create_app(
        Coordinator(fabric, sources, prices=prices),
        tick_s=settings.tick_s,
        guard=guard,
        switches=switches,
        places=places,
        backups=backups,
    )
    if settings.hosts_listen is not None:
        await check_authority(settings, fabric.private, FabricSettings().data_dir, utc_now())
    hosts = open_gateway_server(settings, fabric, FabricSettings().data_dir, app.state.audit)
    scheme = "http" if door.tls_certificate_file is None else "https"
    if scheme == "http" and not is_loopback(host):
        typer.echo(
            "warning: tokens travel in clear text; set BROADSIDE_TLS_CERTIFICATE_FILE and "
            "BROADSIDE_TLS_KEY_FILE, or put a proxy that speaks TLS in front",
            err=True,
        )
    at = f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if hosts is not None:
                typer.echo(f"agents of other hosts join at {hosts.url}", err=True)
            if self.started:
                # A client can connect as soon as it reads this line.
                typer.echo(f"listening on {at} (open {at}/ in a browser)", err=True)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Without this, shutdown would wait until all pages are closed.
            await app.state.feeds.close()
            await super().shutdown(sockets)

    gone: list[StorageGone] = []

    async def watch_storage(server: Server) -> None:
        gone.append(await storage_gone(fabric))
        server.should_exit = True

    try:
        config = uvicorn.Config(
            app,
            http=listener.protocol,
            ws="none",
            backlog=BACKLOG_COUNT,
            # Use the Broadside log, which removes secrets.
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=door.trusted_proxies is not None,
            forwarded_allow_ips=door.trusted_proxies,
            ssl_certfile=door.tls_certificate_file,
            ssl_keyfile=door.tls_key_file,
        )
        server = Server(config)
        keep_one_heap()
        collect_rarely()
        beside = [asyncio.create_task(watch_storage(server))]
        if hosts is not None:
            beside.append(asyncio.create_task(hosts.run_beside()))
        try:
            await server.serve(sockets=[listener])
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        if gone:
            raise gone[0]
        if not server.started:
            stop(f"{at} could not be served; the log above says why", Exit.CANNOT_RUN)
    finally:
        await fabric.close()
