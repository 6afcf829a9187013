"""Service Bus over TLS with tokens, as in Azure: identities, roles, refusals, authorities."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

from exchange.azure.service_bus import Bounds, ServiceBusAddress, ServiceBusQueue
from exchange.ports import ExchangeMisconfigured
from lab.servicebus.access_tokens import issue_jwt
from tests.live.tls_queue import JWT_KEY, NAMESPACE, TlsQueue, outgoing, tls_queue

pytestmark = pytest.mark.live

HASTY = Bounds(retries_max_count=0)


class Identity:
    """A token credential that signs its own tokens, right or wrong."""

    def __init__(self, key: str = JWT_KEY, *, age_s: float = 0.0, **claims: Any) -> None:
        self._token = issue_jwt(key, now=time.time() - age_s, **claims)
        self.scopes: tuple[str, ...] = ()

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.scopes = scopes
        return AccessToken(self._token, int(time.time()) + 3600)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> "Identity":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        pass


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsQueue]:
    with tls_queue(tmp_path_factory.mktemp("tls"), lock_s=30.0) as standing:
        yield standing


@pytest.fixture
def address(bed: TlsQueue) -> ServiceBusAddress:
    return bed.address()


async def _round_trip(queue: ServiceBusQueue) -> None:
    await queue.send([outgoing()])
    delivery = await queue.receive(10)
    assert delivery is not None
    await queue.complete(delivery)


async def test_a_token_opens_the_queue(address: ServiceBusAddress) -> None:
    identity = Identity()
    queue = ServiceBusQueue(address, credential=identity)
    await _round_trip(queue)
    await queue.close()
    assert identity.scopes == ("https://servicebus.azure.net//.default",)


def test_the_sync_sdk_comes_in_too(bed: TlsQueue) -> None:
    class Credential:
        def get_token(self, *_: str, **__: Any) -> AccessToken:
            return AccessToken(issue_jwt(JWT_KEY, now=time.time()), int(time.time()) + 3600)

    with (
        ServiceBusClient(
            NAMESPACE,
            Credential(),
            custom_endpoint_address=bed.address().endpoint,
            transport_type=TransportType.Amqp,
            connection_verify=str(bed.certificates.authority),
        ) as client,
        client.get_queue_sender("jobs") as sender,
        client.get_queue_receiver("jobs") as receiver,
    ):
        sender.send_messages(ServiceBusMessage(b"x"))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        receiver.complete_message(message)


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        pytest.param(Identity("another key, also long enough for HS256"), "InvalidSignature"),
        pytest.param(Identity(age_s=7200), "ExpiredToken"),
        pytest.param(Identity(audience="https://storage.azure.com"), "InvalidAudience"),
        pytest.param(Identity(roles=["Reader"]), "'Send' claim"),
    ],
)
async def test_a_wrong_token_is_refused_with_its_reason_and_the_role(
    address: ServiceBusAddress, identity: Identity, reason: str
) -> None:
    queue = ServiceBusQueue(
        replace(address, client_id="0000-1111"), bounds=HASTY, credential=identity
    )
    with pytest.raises(ExchangeMisconfigured) as caught:
        await queue.send([outgoing()])
    await queue.close()
    said = str(caught.value)
    for part in (f"'jobs' of {NAMESPACE}", "0000-1111", reason, "Azure Service Bus Data Sender"):
        assert part in said
    assert "\n" not in said
    assert "eyJ" not in said, "a token is a secret"


async def test_a_token_that_ended_on_its_way_is_asked_for_anew(address: ServiceBusAddress) -> None:
    class StoodStill(Identity):
        """Its first token is over when it comes; those after it are good."""

        async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
            given = await super().get_token(*scopes)
            self._token = issue_jwt(JWT_KEY, now=time.time())
            return given

    queue = ServiceBusQueue(address, bounds=HASTY, credential=StoodStill(age_s=7200))
    await _round_trip(queue)
    await queue.close()


async def test_each_role_opens_its_half(address: ServiceBusAddress) -> None:
    roles = [f"Azure Service Bus Data {role}" for role in ("Sender", "Receiver")]
    sender, receiver = (
        ServiceBusQueue(address, bounds=HASTY, credential=Identity(roles=[role])) for role in roles
    )
    await sender.send([outgoing()])
    delivery = await receiver.receive(10)
    assert delivery is not None
    await receiver.complete(delivery)
    with pytest.raises(ExchangeMisconfigured, match=roles[0]):
        await receiver.send([outgoing()])
    with pytest.raises(ExchangeMisconfigured, match=roles[1]):
        await sender.receive(1)
    for queue in (sender, receiver):
        await queue.close()


@pytest.mark.parametrize("ca_file", [None, Path("no-such-file.pem")])
async def test_an_authority_that_nobody_vouches_for_is_refused(
    address: ServiceBusAddress, ca_file: Path | None
) -> None:
    stranger = replace(address, ca_file=ca_file)
    queue = ServiceBusQueue(stranger, bounds=HASTY, credential=Identity())
    with pytest.raises(ExchangeMisconfigured, match="BROADSIDE_SERVICEBUS_CA_FILE"):
        await queue.send([outgoing()])
    await queue.close()


# A managed identity -------------------------------------------------------------------------


@pytest.fixture
async def identity_requests(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[dict[str, Any]]]:
    """The endpoint where Azure gives a host its tokens, as App Service has it."""
    requests: list[dict[str, Any]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
            requests.append(query | {"secret": self.headers["X-IDENTITY-HEADER"]})
            audience = query["resource"].rstrip("/")
            token = issue_jwt(JWT_KEY, now=time.time(), audience=audience)
            expires_on = str(int(time.time()) + 3600)
            answer = {"access_token": token, "expires_on": expires_on, "token_type": "Bearer"}
            raw = json.dumps(answer | {"resource": query["resource"]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{port}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "header-secret")
        yield requests
        server.shutdown()
        thread.join()


async def test_a_managed_identity_opens_the_queue_by_its_client_id(
    address: ServiceBusAddress, identity_requests: list[dict[str, Any]]
) -> None:
    """``DefaultAzureCredential`` itself, with nothing configured but the client id."""
    queue = ServiceBusQueue(replace(address, client_id="1234-abcd"))
    await _round_trip(queue)
    await queue.close()
    assert {request["client_id"] for request in identity_requests} == {"1234-abcd"}
    assert {request["resource"] for request in identity_requests} == {
        "https://servicebus.azure.net/"
    }
