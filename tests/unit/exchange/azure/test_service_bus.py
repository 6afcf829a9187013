"""Tests for the Service Bus adapter's batches, message lifetimes, errors and settings."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from ssl import SSLCertVerificationError
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from hypothesis import given
from hypothesis import strategies as st

from broadside.exchange.azure.service_bus import (
    ServiceBusAddress,
    _batches,
    _explain,
    _seal,
    open_queue,
)
from broadside.exchange.fabric import FabricSettings
from broadside.exchange.ports import (
    MESSAGE_MAX_BYTES,
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeRefused,
    ExchangeUnavailable,
    LockLost,
    Outgoing,
)

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ADDRESS = ServiceBusAddress(queue="jobs", namespace="x.servicebus.windows.net", client_id="42")
ROLE = "Azure Service Bus Data Sender"


def _outgoing(size: int = 10, enqueue_s: float | None = None, ends_s: float = 600.0) -> Outgoing:
    return Outgoing(
        body=b"x" * size,
        message_id="m",
        expires_at=NOW + timedelta(seconds=ends_s),
        enqueue_at=None if enqueue_s is None else NOW + timedelta(seconds=enqueue_s),
    )


_MESSAGES = st.lists(
    st.builds(
        _outgoing,
        st.sampled_from([10, 1_000, 100_000, 261_000]),
        st.sampled_from([None, -5.0, 0.0, 10.0, 20.0]),
        st.sampled_from([-1.0, 0.0, 600.0]),
    ),
    max_size=250,
)


@given(_MESSAGES)
def test_every_valid_message_is_in_one_batch_of_its_instant(messages: Sequence[Outgoing]) -> None:
    batches = list(_batches(messages, NOW))
    valid = [at for at, message in enumerate(messages) if message.expires_at > NOW]
    assert sorted(at for _, batch in batches for at in batch) == valid
    for enqueue_at, batch in batches:
        assert 1 <= len(batch) <= 100
        assert batch == sorted(batch)
        assert sum(len(messages[at].body) for at in batch) <= MESSAGE_MAX_BYTES
        for at in batch:
            requested = messages[at].enqueue_at
            assert enqueue_at == (requested if requested and requested > NOW else None)


@pytest.mark.parametrize(
    ("lifetime_s", "lifetime_ms"),
    [(0.0001, 1), (0.3, 300), (1.9, 1_900), (60.0, 60_000), (1e9, 0xFFFF_FFFF)],
)
def test_lifetime_is_sent_in_milliseconds(lifetime_s: float, lifetime_ms: int) -> None:
    header = _seal(_outgoing(ends_s=lifetime_s), NOW).raw_amqp_message.header
    assert header is not None
    assert header.time_to_live == lifetime_ms


def test_lifetime_of_a_scheduled_message_starts_at_enqueue() -> None:
    message = _outgoing(enqueue_s=500.0, ends_s=530.0)
    assert message.enqueue_at is not None
    header = _seal(message, message.enqueue_at).raw_amqp_message.header
    assert header is not None
    assert header.time_to_live == 30_000


class _RejectedLogin(Exception):
    """Represent a 401 on $cbs as pyamqp reports it."""

    status_code = 401


NO_CREDENTIAL = ClientAuthenticationError(
    "None worked.\nEnvironmentCredential: not set.\n\tManagedIdentityCredential: no answer.\nOther"
)


@pytest.mark.parametrize(
    ("error", "kind", "parts"),
    [
        (MessageLockLostError(), LockLost, ["lock"]),
        (MessageAlreadySettled(action="complete"), LockLost, ["settled"]),
        (MessagingEntityNotFoundError(), ExchangeMisconfigured, ["BROADSIDE_SERVICEBUS_QUEUE"]),
        (ServiceBusAuthenticationError(), ExchangeRefused, [ROLE, "identity 42"]),
        (ServiceBusAuthorizationError(), ExchangeRefused, [ROLE, "identity 42"]),
        (
            ServiceBusConnectionError(
                error=_RejectedLogin("Status code: 401\nDescription: Expired")
            ),
            ExchangeRefused,
            [ROLE, "Description: Expired"],
        ),
        (
            ServiceBusConnectionError(error=_RejectedLogin("ExpiredToken: The token is expired.")),
            ExchangeRefused,
            [ROLE, "ExpiredToken"],
        ),
        (
            ServiceBusError("Handler failed", error=NO_CREDENTIAL),
            ExchangeMisconfigured,
            ["ManagedIdentityCredential: no answer", "no token for identity 42"],
        ),
        (
            ServiceBusConnectionError(error=SSLCertVerificationError("self-signed")),
            ExchangeMisconfigured,
            ["BROADSIDE_SERVICEBUS_CA_FILE", "self-signed"],
        ),
        (OperationTimeoutError(), ExchangeUnavailable, ["timed out"]),
        (ServiceBusServerBusyError(message="wait 4 s"), ExchangeUnavailable, ["wait 4 s"]),
        (ConnectionResetError("reset"), ExchangeUnavailable, ["reset"]),
        (TimeoutError(), ExchangeUnavailable, ["TimeoutError"]),
        (AttributeError("sdk bug"), ExchangeUnavailable, ["sdk bug"]),
    ],
)
def test_error_is_mapped_to_one_line(
    error: Exception, kind: type[ExchangeError], parts: list[str]
) -> None:
    explained = _explain(error, ADDRESS, ROLE)
    assert isinstance(explained, kind)
    assert isinstance(explained, ExchangeMisconfigured) is issubclass(kind, ExchangeMisconfigured)
    text = str(explained)
    assert "\n" not in text
    for part in parts if kind is LockLost else ["'jobs' of x.servicebus.windows.net", *parts]:
        assert part in text


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FabricSettings.model_fields:
        monkeypatch.delenv(f"BROADSIDE_{name.upper()}", raising=False)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({}, "SERVICEBUS_NAMESPACE.*SERVICEBUS_CONNECTION_STRING: both missing; set one"),
        ({"servicebus_namespace": ""}, "both missing"),
        (
            {"servicebus_namespace": "x", "servicebus_connection_string": "secret"},
            "both set; drop one",
        ),
        ({"servicebus_namespace": "x", "servicebus_queue": ""}, "BROADSIDE_SERVICEBUS_QUEUE"),
        (
            {"servicebus_connection_string": "secret", "servicebus_endpoint": "sb://h:1"},
            "SERVICEBUS_ENDPOINT needs BROADSIDE_SERVICEBUS_NAMESPACE",
        ),
        (
            {"servicebus_connection_string": "secret", "servicebus_ca_file": Path("ca.pem")},
            "SERVICEBUS_CA_FILE needs BROADSIDE_SERVICEBUS_NAMESPACE",
        ),
    ],
)
def test_incomplete_settings_raise_one_line_with_the_missing_one(
    settings: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ExchangeMisconfigured, match=wrong) as caught:
        open_queue(FabricSettings(fabric="azure", **settings))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_complete_settings_open_without_a_connection() -> None:
    for settings in (
        {"servicebus_namespace": "x.servicebus.windows.net"},
        {"servicebus_connection_string": "not parsed before the first call"},
    ):
        queue = open_queue(FabricSettings(fabric="azure", **settings))  # type: ignore[arg-type] # pydantic makes the secret
        assert await queue.send([]) == []
        await queue.close()


def test_connection_string_is_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "BROADSIDE_SERVICEBUS_CONNECTION_STRING", "Endpoint=x;SharedAccessKey=s3cret"
    )
    settings = FabricSettings(fabric="azure")
    queue = open_queue(settings)
    address = ServiceBusAddress(queue="jobs", connection_string="s3cret")
    assert "s3cret" not in f"{settings!r} {settings} {queue!r} {address!r} {address}"
    assert "s3cret" not in settings.model_dump_json()
