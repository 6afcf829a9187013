"""Test Service Bus with TLS and tokens, as in Azure, with identities, roles and errors."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

from broadside.exchange.azure.service_bus import ServiceBusAddress, ServiceBusQueue
from broadside.exchange.azure.wire import Bounds
from broadside.exchange.ports import ExchangeMisconfigured
from broadside.lab.servicebus.access_tokens import issue_jwt
from tests.live.given_token import GivenToken
from tests.live.tls_queue import JWT_KEY, NAMESPACE, TlsQueue, outgoing, tls_queue

pytestmark = pytest.mark.live

HASTY = Bounds(retries_max_count=0)


def identity(key: str = JWT_KEY, *, age_s: float = 0.0, **claims: Any) -> GivenToken:
    """Return a credential to sign valid or invalid tokens."""
    return GivenToken(issue_jwt(key, now=time.time() - age_s, **claims))


@pytest.fixture(scope="module")
def tls_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsQueue]:
    with tls_queue(tmp_path_factory.mktemp("tls"), lock_s=30.0) as standing:
        yield standing


@pytest.fixture
def address(tls_service: TlsQueue) -> ServiceBusAddress:
    return tls_service.address()


async def _round_trip(queue: ServiceBusQueue) -> None:
    await queue.send([outgoing()])
    delivery = await queue.receive(10)
    assert delivery is not None
    await queue.complete(delivery)


async def test_valid_token_can_use_the_queue(address: ServiceBusAddress) -> None:
    good = identity()
    queue = ServiceBusQueue(address, credential=good)
    await _round_trip(queue)
    await queue.close()
    assert good.scopes == ("https://servicebus.azure.net//.default",)


def test_sync_sdk_connects_with_token(tls_service: TlsQueue) -> None:
    class Credential:
        def get_token(self, *_: str, **__: Any) -> AccessToken:
            return AccessToken(issue_jwt(JWT_KEY, now=time.time()), int(time.time()) + 3600)

    with (
        ServiceBusClient(
            NAMESPACE,
            Credential(),
            custom_endpoint_address=tls_service.address().endpoint,
            transport_type=TransportType.Amqp,
            connection_verify=str(tls_service.certificates.authority),
        ) as client,
        client.get_queue_sender("jobs") as sender,
        client.get_queue_receiver("jobs") as receiver,
    ):
        sender.send_messages(ServiceBusMessage(b"x"))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        receiver.complete_message(message)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        pytest.param(identity("another key, also long enough for HS256"), "InvalidSignature"),
        pytest.param(identity(age_s=7200), "ExpiredToken"),
        pytest.param(identity(audience="https://storage.azure.com"), "InvalidAudience"),
        pytest.param(identity(roles=["Reader"]), "'Send' claim"),
    ],
)
async def test_wrong_token_error_names_reason_and_role(
    address: ServiceBusAddress, wrong: GivenToken, reason: str
) -> None:
    queue = ServiceBusQueue(replace(address, client_id="0000-1111"), bounds=HASTY, credential=wrong)
    with pytest.raises(ExchangeMisconfigured) as caught:
        await queue.send([outgoing()])
    await queue.close()
    text = str(caught.value)
    for part in (f"'jobs' of {NAMESPACE}", "0000-1111", reason, "Azure Service Bus Data Sender"):
        assert part in text
    assert "\n" not in text
    assert "eyJ" not in text, "a token is a secret"


async def test_requests_new_token_after_expiry(address: ServiceBusAddress) -> None:
    class ExpiredFirstToken(GivenToken):
        """Credential with a first token that has already expired. Later tokens are valid."""

        async def get_token(self, *scopes: str, **_: object) -> AccessToken:
            given = await super().get_token(*scopes)
            self.token = issue_jwt(JWT_KEY, now=time.time())
            return given

    late = ExpiredFirstToken(issue_jwt(JWT_KEY, now=time.time() - 7200))
    queue = ServiceBusQueue(address, bounds=HASTY, credential=late)
    await _round_trip(queue)
    await queue.close()


async def test_roles_permit_only_sending_or_receiving(address: ServiceBusAddress) -> None:
    roles = [f"Azure Service Bus Data {role}" for role in ("Sender", "Receiver")]
    sender, receiver = (
        ServiceBusQueue(address, bounds=HASTY, credential=identity(roles=[role])) for role in roles
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
async def test_rejects_unknown_certificate_authority(
    address: ServiceBusAddress, ca_file: Path | None
) -> None:
    stranger = replace(address, ca_file=ca_file)
    queue = ServiceBusQueue(stranger, bounds=HASTY, credential=identity())
    with pytest.raises(ExchangeMisconfigured, match="BROADSIDE_SERVICEBUS_CA_FILE"):
        await queue.send([outgoing()])
    await queue.close()
