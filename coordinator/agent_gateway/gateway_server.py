"""HTTPS server for agents on other hosts, separate from the API server."""

import asyncio
import contextlib
import ssl
from collections.abc import Generator
from datetime import datetime
from pathlib import Path
from typing import Final

import uvicorn

from broadside.coordinator.agent_gateway.agent_permissions import DeliveredJobs
from broadside.coordinator.agent_gateway.certificate_authority import (
    ServerCertificate,
    has_authority,
    load_authority,
)
from broadside.coordinator.agent_gateway.enrolment import Enrolment, Enrolments
from broadside.coordinator.agent_gateway.exchange_app import ExchangeApp
from broadside.coordinator.agent_gateway.exchange_service import ExchangeService
from broadside.coordinator.auth.audit import Audit
from broadside.coordinator.bounded_listener import BACKLOG_COUNT, Listener
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.embedded.backup import TLS_FOLDER
from broadside.exchange.fabric import Fabric
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Table

# Idle timeout of a connection, longer than the idle timeout of the agents.
IDLE_S: Final = 75
# Time for open requests to complete at shutdown. A stream will not end by itself, so we need to
# close it after this time.
END_S: Final = 1


class GatewayMisconfigured(Exception):
    """The server cannot be configured. The message contains the setting and the fix."""


class GatewayServer(uvicorn.Server):
    """Server that runs until :meth:`run_beside` is cancelled."""

    def __init__(self, config: uvicorn.Config, listener: Listener) -> None:
        super().__init__(config)
        self._listener = listener
        host, port = listener.getsockname()[:2]
        self.url: str = f"https://{f'[{host}]' if ':' in host else host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do not handle signals. The API server handles them and stops this server."""
        yield

    async def run_beside(self) -> None:
        """Run the server until this task is cancelled."""
        serving = asyncio.create_task(self.serve(sockets=[self._listener]))
        try:
            await asyncio.shield(serving)
        finally:
            self.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await serving


def open_gateway_server(
    settings: CoordinatorSettings, fabric: Fabric, data_dir: Path, audit: Audit
) -> GatewayServer | None:
    """Create the server for the given settings.

    Args:
        settings: The coordinator's settings.
        fabric: The coordinator's fabric.
        data_dir: Data folder with the certificate authority.
        audit: Audit log for rejected requests.

    Returns:
        The server, or None if it is not configured.

    Raises:
        GatewayMisconfigured: A setting is invalid, or the certificate cannot be loaded.
    """
    if settings.hosts_listen is None:
        return None
    shown = server_certificate(settings, data_dir)
    host, _, port = settings.hosts_listen.rpartition(":")
    host = host.strip("[]")
    try:
        listener = Listener(host, int(port))
    except (OSError, ValueError, OverflowError) as error:
        raise GatewayMisconfigured(
            f"BROADSIDE_HOSTS_LISTEN={settings.hosts_listen}: {error}; write address:port, such as "
            "[::]:8443"
        ) from error
    entry = Enrolment(fabric.private, DeliveredJobs(fabric.records), audit, shown.authority)
    service = ExchangeService(fabric, entry.refused)
    config = uvicorn.Config(
        ExchangeApp(fabric, entry, service, settings.requests_at_once),
        interface="asgi3",
        http=listener.protocol,
        ws="none",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=END_S,
        backlog=BACKLOG_COUNT,
        ssl_certfile=shown.certificate_file,
        ssl_keyfile=shown.key_file,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        listener.close()
        raise GatewayMisconfigured(f"{shown.certificate_file}: {error}") from error
    return GatewayServer(config, listener)


async def check_authority(
    settings: CoordinatorSettings, private: Table, data_dir: Path, now: datetime
) -> None:
    """Check that the certificate authority that agents trust is not lost.

    Without this check, the coordinator would create a new authority. All enrolled agents would
    reject it.

    Args:
        settings: The coordinator's settings.
        private: The private table with the enrolled agents.
        data_dir: The coordinator's data folder.
        now: Current time to use.

    Raises:
        GatewayMisconfigured: The authority was lost. The message contains the fix.
        ExchangeError: The enrolled agents cannot be read.
    """
    if settings.hosts_certificate_file is not None or has_authority(data_dir):
        return
    count = await Enrolments(private).count_trusting(now)
    if count:
        raise GatewayMisconfigured(
            f"{data_dir / TLS_FOLDER}: the certificate authority was lost, and {count} enrolled "
            "agents and open join codes depend on it: they would reject a new one. Copy tls/ back "
            "from a backup (`broadside restore FILE` with a new BROADSIDE_DATA_DIR); or run "
            "`broadside enroll new-authority` and enroll every agent again"
        )


def server_certificate(settings: CoordinatorSettings, data_dir: Path) -> ServerCertificate:
    """Return the site's certificate, or create one from the coordinator's authority.

    Args:
        settings: The coordinator's settings.
        data_dir: The coordinator's data folder.

    Raises:
        GatewayMisconfigured: A setting is missing, or the certificate cannot be created.
    """
    certificate, key = settings.hosts_certificate_file, settings.hosts_key_file
    if certificate is not None and key is not None:
        return ServerCertificate(authority=None, certificate_file=certificate, key_file=key)
    if certificate is not None or key is not None:
        raise GatewayMisconfigured(
            "BROADSIDE_HOSTS_CERTIFICATE_FILE, BROADSIDE_HOSTS_KEY_FILE: set both, or neither"
        )
    try:
        return load_authority(data_dir, utc_now())
    except (OSError, ValueError) as error:
        raise GatewayMisconfigured(f"{data_dir}: no certificate authority: {error}") from error
