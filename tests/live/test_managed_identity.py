"""Test a managed identity if the metadata service (IMDS) fails or is slow.

The faults occur before and during a run. Tokens expire within seconds here instead of an hour. The
tests use the SDK's ``DefaultAzureCredential``, with its environment variable for the address of the
metadata service. See exchange/azure/identity.py for the meaning of the statuses as documented by
Microsoft.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.resource_manager import (
    ResourceRefused,
    ResourceUnavailable,
    token_source,
)
from broadside.coordinator.device.telemetry.azure_monitor import AzureEntry, AzureMonitorSource
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.exchange.azure import identity
from broadside.exchange.azure.service_bus import ServiceBusAddress, ServiceBusQueue
from broadside.exchange.azure.table_storage import AzureTable, TableAddress
from broadside.exchange.azure.wire import Bounds
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import ExchangeError, ExchangeMisconfigured, ExchangeUnavailable
from broadside.lab.servicebus.access_tokens import issue_jwt
from tests.live.http_service import Answer, Asked, serving
from tests.live.tls_queue import JWT_KEY, TlsQueue, outgoing, tls_queue
from tests.unit.coordinator.device.test_capacity import FIREWALL

pytestmark = pytest.mark.live

# The adapter uses 8 s.
TOKEN_S = 2.0
CLIENT = "1234-abcd"
UNIT = Path(__file__).parents[2] / "deploy/azure/modules/boot/files/broadside-agent.service"
# Use this value instead of a status to send no response.
SLOW = 0
OK = 200
# The bodies have the wording of IMDS.
BODIES = {
    400: {"error": "invalid_request", "error_description": "Identity not found"},
    404: {"error": "not_found"},
    410: {"error": "gone"},
    429: {"error": "too_many_requests"},
    500: {"error": "unknown", "error_description": "Failed to retrieve token"},
}


@dataclass
class Metadata:
    """Metadata service stub.

    Attributes:
        status: Status of the next responses.
        ttl_s: Lifetime of the tokens.
    """

    status: int = OK
    ttl_s: float = 3600.0
    calls_count: int = 0
    over: Event = field(default_factory=Event)

    def answer(self, query: Mapping[str, list[str]]) -> tuple[int, dict[str, Any]]:
        self.calls_count += 1
        if self.status == SLOW:
            self.over.wait(60)
            return 503, {}
        if self.status != OK:
            return self.status, BODIES[self.status]
        resource, now = query["resource"][0], time.time()
        token = issue_jwt(JWT_KEY, now=now, ttl_s=self.ttl_s, audience=resource.rstrip("/"))
        fields = {"access_token": token, "expires_on": str(int(now + self.ttl_s))}
        return OK, fields | {"resource": resource, "token_type": "Bearer"}


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    reported = Metadata()

    def answer(request: Asked) -> Answer:
        # A probe has no such header.
        if request.headers["Metadata"] != "true":
            return Answer(status=400, body={"error": "bad_request_102"})
        status, body = reported.answer(request.query)
        return Answer(status=status, body=body)

    with serving(answer) as url:
        for name in ("IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_CLIENT_ID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
        # A VM has no az command for the SDK to try next.
        monkeypatch.setenv("PATH", "/nonexistent")
        yield reported
        reported.over.set()


@pytest.fixture(scope="module")
def tls_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsQueue]:
    with tls_queue(tmp_path_factory.mktemp("identity"), lock_s=120.0) as standing:
        yield standing


@pytest.fixture
def address(tls_service: TlsQueue) -> ServiceBusAddress:
    return tls_service.address(CLIENT)


@asynccontextmanager
async def opened(
    address: ServiceBusAddress, troubles: OutageLog | None = None
) -> AsyncIterator[ServiceBusQueue]:
    queue = ServiceBusQueue(address, bounds=Bounds(backoff_s=0.1), troubles=troubles)
    try:
        yield queue
    finally:
        await queue.close()


EXPECTED: list[tuple[int, type[ExchangeError], str]] = [
    (400, ExchangeMisconfigured, f"the identity {CLIENT} is not assigned to this VM"),
    (404, ExchangeUnavailable, r"metadata service \(IMDS\) is being updated \(404"),
    (410, ExchangeUnavailable, "is being updated, which takes up to 70 s"),
    (429, ExchangeUnavailable, r"throttles this host \(429"),
    (500, ExchangeUnavailable, r"metadata service \(IMDS\) fails \(500: Failed to retrieve"),
    (SLOW, ExchangeUnavailable, r"metadata service \(IMDS\) did not answer within 2 s"),
]


@pytest.mark.parametrize(("status", "kind", "expected"), EXPECTED)
async def test_reports_soon_why_there_is_no_token(
    address: ServiceBusAddress,
    metadata: Metadata,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    kind: type[ExchangeError],
    expected: str,
) -> None:
    """Test a receive with two attempts.

    It should wait for only one token and send few requests to the metadata service.
    """
    monkeypatch.setattr(identity, "TOKEN_S", TOKEN_S)
    monkeypatch.setattr(identity, "REMEMBERED_S", 60.0)
    metadata.status = status
    async with opened(address) as queue:
        with pytest.raises(kind, match=expected) as caught:
            await queue.receive(1)
    assert type(caught.value) is kind
    # There would be 36 requests if the SDK's timeout of 120 s were used.
    assert metadata.calls_count <= 6


async def test_table_reports_why_there_is_no_token(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "TOKEN_S", TOKEN_S)
    table = AzureTable(
        TableAddress(table="results", endpoint="https://127.0.0.1:1", client_id=CLIENT)
    )
    for status, kind, parts in (EXPECTED[0], EXPECTED[4]):
        metadata.status = status
        with pytest.raises(kind, match=parts):
            await table.get("a", "b")
        monkeypatch.setattr(identity, "REMEMBERED_S", 0.0)
    await table.close()


@pytest.mark.parametrize(("status", "kind", "expected"), (EXPECTED[0], *EXPECTED[-2:]))
def test_device_access_reports_why_there_is_no_token(
    metadata: Metadata,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    kind: type[ExchangeError],
    expected: str,
) -> None:
    """Test metrics and changes of the firewall without a token.

    There should be only one wait for a token, and the error should contain the reason.
    """
    monkeypatch.setattr(identity, "TOKEN_S", TOKEN_S)
    monkeypatch.setattr(identity, "REMEMBERED_S", 60.0)
    metadata.status = status
    settings = CoordinatorSettings(managed_identity_client_id=CLIENT)
    refused = ResourceUnavailable if kind is ExchangeUnavailable else ResourceRefused
    with pytest.raises(refused, match=expected):
        token_source(settings)()
    now = datetime.now(UTC)
    fields = {"type": "azure-monitor", "device": "fw", "resource_id": FIREWALL}
    source = AzureMonitorSource(AzureEntry.model_validate({**fields, "client_id": CLIENT}))
    with pytest.raises(TelemetryError, match=f"no token for identity {CLIENT}: .*{expected}"):
        asyncio.run(source.query_bytes(now - timedelta(minutes=5), now, Direction.FORWARD))
    assert metadata.calls_count <= 12


async def test_reports_missing_identity(address: ServiceBusAddress, metadata: Metadata) -> None:
    metadata.status = 400
    async with opened(replace(address, client_id=None)) as queue:
        with pytest.raises(ExchangeMisconfigured, match="no identity is assigned to this VM"):
            await queue.receive(0)


async def test_renews_tokens_while_receiving(
    address: ServiceBusAddress, metadata: Metadata, tls_service: TlsQueue
) -> None:
    """Test token renewal, using 20 s instead of an hour.

    The service detaches a link when the token expires, so it is necessary to renew tokens in
    time. The SDK would wait for the last tenth of a token's lifetime. A host may pause that long,
    so the adapter needs to request another token.
    """
    metadata.ttl_s = 20.0
    troubles = OutageLog()
    async with opened(address, troubles) as queue, opened(address) as sender:
        before = tls_service.broker.ask("asked").get("token", 0)

        async def after_a_message() -> int:
            """Send another message, to return how many tokens the broker has received."""
            await sender.send([outgoing()])
            while (delivery := await queue.receive(4)) is None:
                # The link is being opened.
                pass
            await queue.complete(delivery)
            tokens_count: int = tls_service.broker.ask("asked")["token"] - before
            return tokens_count

        async with asyncio.timeout(10 * metadata.ttl_s):
            opened_with = await after_a_message()
            # All tokens have been renewed twice.
            while await after_a_message() < 3 * opened_with:
                assert await queue.receive(1) is None


async def test_recovers_after_failed_token_renewal(
    address: ServiceBusAddress, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a removed identity is an outage if there was a token before."""
    monkeypatch.setattr(identity, "TOKEN_S", TOKEN_S)
    monkeypatch.setattr(identity, "REMEMBERED_S", 0.5)
    metadata.ttl_s = 6.0
    async with opened(address) as queue:
        await queue.send([outgoing()])
        for status, parts in (
            (500, "fails"),
            (400, "is not assigned to this VM"),
            (SLOW, "did not answer"),
        ):
            metadata.status = status
            with pytest.raises(ExchangeUnavailable, match=parts):
                async with asyncio.timeout(60):
                    while True:
                        await queue.receive(1)
            metadata.over.set()
            metadata.status = OK
            metadata.over.clear()
            await asyncio.sleep(0.6)
            await queue.send([outgoing()])
            delivery = await queue.receive(10)
            assert delivery is not None
            await queue.complete(delivery)


async def test_uses_valid_token_while_metadata_service_fails(
    address: ServiceBusAddress, metadata: Metadata
) -> None:
    """Test that failures of the metadata service are not reported if a token is valid."""
    # The SDK will request a new token from 300 s before the end.
    metadata.ttl_s = 200.0
    async with opened(address) as queue, opened(address):
        await queue.send([outgoing()])
        metadata.status = 500
        # The receiver uses a separate link and token.
        delivery = await queue.receive(10)
        assert delivery is not None
        await queue.complete(delivery)


@pytest.mark.parametrize("status", [SLOW, 410])
def test_agent_without_identity_stops_in_time(
    metadata: Metadata, tls_service: TlsQueue, tmp_path: Path, status: int
) -> None:
    metadata.status = status
    env = {k: v for k, v in os.environ.items() if not k.startswith("BROADSIDE_")}
    env |= tls_service.environment | {
        "BROADSIDE_TABLES_ENDPOINT": "https://127.0.0.1:1",
        "BROADSIDE_MANAGED_IDENTITY_CLIENT_ID": CLIENT,
        "BROADSIDE_AGENT_AGENT_ID": "client-1",
        "BROADSIDE_AGENT_ROLE": "client",
        "BROADSIDE_AGENT_ADDRESS": "127.0.0.1",
        "BROADSIDE_AGENT_SPOOL_DIR": str(tmp_path / "spool"),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    match = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert match is not None
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        agent = subprocess.Popen([sys.executable, "-m", "broadside.agent"], env=env, stderr=stderr)
    try:
        end_s = time.monotonic() + 60
        while metadata.calls_count < 2:
            assert agent.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.1)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(float(match[1])) == 0, log.read_text()
        assert f"no token for identity {CLIENT}" in log.read_text()
    finally:
        agent.kill()
        agent.wait()
