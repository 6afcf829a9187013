"""Commands that run the coordinator and the agent, and check them in containers and units."""

import asyncio
import os
import socket
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broadside.coordinator.cli.command_group import read_secret
from broadside.coordinator.cli.exit_codes import ExitCode, exit_usage, exit_with_error, masked_value
from broadside.exchange.messages import Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.programs import module_command

if TYPE_CHECKING:
    from fastapi import FastAPI

    from broadside.coordinator.auth.signin_settings import SignInSettings
    from broadside.coordinator.coordinator_settings import CoordinatorSettings
    from broadside.exchange.fabric import Fabric

HEARTBEAT_AGE_MAX_S: Final = 30.0
READY_WITHIN_S: Final = 180.0
_RESPONSE_TIMEOUT_S: Final = 4.0


class Service(StrEnum):
    """Service that can run in a container or a systemd unit."""

    COORDINATOR = "coordinator"
    AGENT = "agent"


def serve(
    host: str | None = None,
    port: int | None = None,
) -> None:
    """Run the coordinator with its REST API.

    It processes runs and answers requests until it is interrupted.

    Args:
        host: Address to listen on; other than loopback only with sign-in.
        port: Port to listen on; 0 selects a free one.
    """
    from pydantic import ValidationError

    from broadside.coordinator.auth.signin_settings import SignInSettings
    from broadside.coordinator.coordinator_log import start_log
    from broadside.coordinator.coordinator_settings import CoordinatorSettings

    options = {"host": host, "port": port}
    try:
        settings = CoordinatorSettings(**{k: v for k, v in options.items() if v is not None})  # type: ignore[arg-type]  # pydantic checks the values
    except ValidationError as error:
        problem = error.errors()[0]
        field = str(problem["loc"][0])
        value = masked_value(field, problem["input"])
        exit_usage(f"{field}: {problem['msg']} (got {value})")
    start_log(settings.log_level)
    asyncio.run(_serve(settings, SignInSettings()))


def _remove_leftovers(data_dir: Path, backup_dir: Path | None) -> None:
    """Remove the temporary files that killed backups and restores have left."""
    from broadside.exchange.embedded.backup import remove_leftovers

    for folder in (data_dir.absolute().parent, backup_dir):
        if folder is not None:
            remove_leftovers(folder)


def _check_listener(settings: "CoordinatorSettings", security: "SignInSettings") -> None:
    """Exit if the API would be reachable from other hosts without sign-in or with half of TLS."""
    from broadside.exchange.http.bounded import is_loopback

    is_local = is_loopback(settings.host)
    if security.sign_in == "off" and not is_local:
        exit_usage(
            f"host {settings.host}: without sign-in the API listens on loopback only; set "
            "BROADSIDE_SIGN_IN=on, or use 127.0.0.1 and an SSH tunnel"
        )
    if (security.tls_certificate_file is None) != (security.tls_key_file is None):
        exit_usage(
            "BROADSIDE_TLS_CERTIFICATE_FILE, BROADSIDE_TLS_KEY_FILE: only one is set; set both"
        )
    if security.tls_certificate_file is None and not is_local:
        typer.echo(
            "warning: tokens are sent unencrypted; set BROADSIDE_TLS_CERTIFICATE_FILE and "
            "BROADSIDE_TLS_KEY_FILE, or use a proxy with TLS",
            err=True,
        )


def _create_app(
    fabric: "Fabric", settings: "CoordinatorSettings", security: "SignInSettings"
) -> "FastAPI":
    """Create the application of the coordinator from its settings."""
    from broadside.coordinator.api.app import Extensions, create_app
    from broadside.coordinator.api.auth_middleware import AuthConfig
    from broadside.coordinator.auth.signin import open_sign_in
    from broadside.coordinator.backups import ScheduledBackups
    from broadside.coordinator.cli.operations import open_coordinator
    from broadside.coordinator.notices.places import open_receivers
    from broadside.coordinator.studies.switch import read_switches
    from broadside.exchange.fabric import FabricSettings
    from broadside.exchange.outage_log import utc_now

    backups = None
    if fabric.in_files:
        _remove_leftovers(FabricSettings().data_dir, settings.backup_dir)
        if settings.backup_dir is not None:
            backups = ScheduledBackups(fabric.private, settings, utc_now)
    sign_in = open_sign_in(security, fabric.private)
    guard = AuthConfig(
        sign_in=sign_in,
        writes_per_minute=security.writes_per_minute,
        request_max_bytes=security.request_max_bytes,
        import_max_bytes=security.import_max_bytes,
        requests_at_once=settings.requests_at_once,
        loopback_only=sign_in is None,
    )
    return create_app(
        open_coordinator(fabric),
        tick_s=settings.tick_s,
        guard=guard,
        extensions=Extensions(
            switches=read_switches(settings.switches_file),
            places=list(open_receivers(settings)),
            backups=backups,
        ),
    )


async def _serve(settings: "CoordinatorSettings", security: "SignInSettings") -> None:
    import uvicorn

    from broadside.coordinator.agent_gateway.gateway_server import (
        check_authority,
        open_gateway_server,
    )
    from broadside.coordinator.bounded_listener import BACKLOG_COUNT, Listener
    from broadside.coordinator.process_memory import collect_rarely, keep_one_heap
    from broadside.coordinator.runs.storage_watch import storage_gone
    from broadside.exchange.fabric import FabricSettings, open_fabric
    from broadside.exchange.outage_log import utc_now

    _check_listener(settings, security)
    host, data_dir = settings.host, FabricSettings().data_dir
    try:
        listener = Listener(host, settings.port)
    except OSError as error:
        exit_with_error(
            f"port {settings.port} on {host}: {error.strerror}; choose another with --port"
        )
    fabric = open_fabric(FabricSettings())
    app = _create_app(fabric, settings, security)
    if settings.hosts_listen is not None:
        await check_authority(settings, fabric.private, data_dir, utc_now())
    hosts = open_gateway_server(settings, fabric, data_dir, app.state.audit)
    scheme = "http" if security.tls_certificate_file is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if hosts is not None:
                typer.echo(f"agents on other hosts enroll at {hosts.url}", err=True)
            if self.started:
                # A client can connect as soon as it reads this line.
                typer.echo(f"listening on {url} (open {url}/ in a browser)", err=True)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Without this, shutdown would wait until all pages are closed.
            await app.state.feeds.close()
            await super().shutdown(sockets)

        async def stop_without_storage(self) -> None:
            try:
                raise await storage_gone(fabric)
            finally:
                self.should_exit = True

    config = uvicorn.Config(
        app,
        http=listener.protocol,
        ws="none",
        backlog=BACKLOG_COUNT,
        # Use the Broadside log, which removes secrets.
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=security.trusted_proxies is not None,
        forwarded_allow_ips=security.trusted_proxies,
        ssl_certfile=security.tls_certificate_file,
        ssl_keyfile=security.tls_key_file,
    )
    server = Server(config)
    keep_one_heap()
    collect_rarely()
    watcher = asyncio.create_task(server.stop_without_storage())
    tasks = [watcher, *([asyncio.create_task(hosts.run_beside())] if hosts is not None else [])]
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await fabric.close()
    if not watcher.cancelled() and (gone := watcher.exception()) is not None:
        raise gone
    if not server.started:
        exit_with_error(f"cannot listen on {url}; see the log above")


def agent(  # noqa: PLR0913 - options
    role: Annotated[Role, typer.Option(envvar="BROADSIDE_AGENT_ROLE")],
    agent_id: str | None = None,
    address: str | None = None,
    ports: str | None = None,
    coordinator: str | None = None,
    join_file: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="BROADSIDE_AGENT_JOIN_FILE")
    ] = None,
    check: Annotated[bool, typer.Option("--check")] = False,
    engines: Annotated[list[str] | None, typer.Option("--engine")] = None,
    rights: Annotated[bool, typer.Option("--check-permissions")] = False,
    remove_tunnels: Annotated[bool, typer.Option("--remove-tunnels")] = False,
) -> None:
    """Run an agent on this host.

    It runs until it is stopped. The variables BROADSIDE_AGENT_... set everything else.

    Args:
        role: Client executes jobs; server offers iperf3 ports.
        agent_id: Name of the agent; default: the host name.
        address: Address of this host for the traffic.
        ports: Ports of a server, such as 5201 or 5201-5204.
        coordinator: Address of a coordinator on another host, such as https://host:8443.
        join_file: File with the join code in its first line, - for standard input; default: the
            variable BROADSIDE_AGENT_JOIN.
        check: Only check this host: print what is missing for the role and how to fix it; exit with
            4 if anything is missing.
        engines: Engine to check with --check; default: all.
        rights: Only check the permissions of this host on queue and tables, and print them as JSON;
            exit with 4 if one is missing or unexpected.
        remove_tunnels: Only remove the tunnels that a killed process of this agent has left.
    """
    options = {
        "role": role.value,
        "agent_id": agent_id,
        "address": address,
        "ports": ports,
        "join": None if join_file is None else read_secret("--join-file", join_file),
    }
    if coordinator is not None:
        os.environ |= {"BROADSIDE_FABRIC": "http", "BROADSIDE_COORDINATOR": coordinator}
    for name, value in options.items():
        if value is not None:
            os.environ[f"BROADSIDE_AGENT_{name.upper()}"] = value
    module = ["broadside.agent"]
    if check:
        module = ["broadside.agent.check", "--ready", *(engines or ())]
    elif rights:
        module = ["broadside.agent.check", "--check-permissions"]
    elif remove_tunnels:
        module = ["broadside.agent", "--remove-tunnels"]
    command = module_command(*module)
    # An agent is a small process, without the modules of the coordinator.
    os.execv(command[0], command)  # noqa: S606 - no shell wanted


def healthy(
    service: Service,
) -> None:
    """Check the coordinator or agent on this host.

    If it does not work, print the reason and exit with 1.

    Args:
        service: Service of this container or unit.
    """
    match service:
        case Service.COORDINATOR:
            port = os.environ.get("BROADSIDE_PORT") or "8080"
            problem = _http_problem(f"http://127.0.0.1:{port}/healthz")
        case Service.AGENT:
            agent_id = os.environ.get("BROADSIDE_AGENT_AGENT_ID") or socket.gethostname()
            problem = asyncio.run(agent_problem(agent_id))
    if problem is not None:
        exit_with_error(f"{service}: {problem}", ExitCode.FAIL)


def _http_problem(url: str) -> str | None:
    """Return the reason why an address does not respond with success, or None if it does."""
    import httpx

    from broadside.exchange.http.bounded import ask_now

    try:
        response = ask_now(url, None, _RESPONSE_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return f"{url}: {error or type(error).__name__}"
    return None if response.is_success else f"{url}: HTTP {response.status_code}"


async def agent_problem(agent_id: str) -> str | None:
    """Return the agent problem in its newest heartbeat, or None.

    Raises:
        ExchangeError: Queue and tables cannot be opened or read.
    """
    from broadside.exchange.fabric import environment_settings, open_fabric

    fabric = open_fabric(environment_settings())
    try:
        presences = await fabric.records.fleet.read_presences()
    finally:
        await fabric.close()
    heartbeats = [presence for presence in presences if presence.agent_id == agent_id]
    if not heartbeats:
        return f"agent {agent_id} has never stored a heartbeat; see the log of the agent"
    newest = max(heartbeats, key=lambda presence: presence.beat_at)
    age_s = (utc_now() - newest.beat_at).total_seconds()
    if age_s >= HEARTBEAT_AGE_MAX_S:
        return f"the last heartbeat of {agent_id} is {age_s:.0f} s old; see the log of the agent"
    return newest.problem


def emulators_ready(
    url: str,
) -> None:
    """Wait for the Service Bus emulator.

    Afterwards, create the tables in Azurite.

    Args:
        url: Health address of the Service Bus emulator.
    """
    from broadside.coordinator.cli.progress_display import show_progress
    from broadside.exchange.azure.emulator_tables import create_tables
    from broadside.exchange.fabric import environment_settings

    with show_progress("waiting for the emulator", limit_s=READY_WITHIN_S):
        wait_for_answer(url)
    create_tables(environment_settings())


def wait_for_answer(url: str) -> None:
    """Wait until ``url`` responds with success. Exit if the time limit is reached."""
    if not url.startswith(("http://", "https://")):
        exit_usage(f"{url}: not an HTTP address; write http://HOST:PORT/PATH")
    end_s = time.monotonic() + READY_WITHIN_S
    while True:
        if (problem := _http_problem(url)) is None:
            return
        if time.monotonic() > end_s:
            exit_with_error(f"{problem}; not ready within {READY_WITHIN_S:g} s")
        time.sleep(1)
