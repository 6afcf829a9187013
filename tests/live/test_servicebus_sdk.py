"""Test calls of the official SDK's sync client that Broadside does not use.

See tests/contract/test_queue.py for the calls of the adapter, which uses the async client, and
test_servicebus_js.py for another SDK.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from broadside.lab.broker_process import BrokerProcess
from tests.live.started import started

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("sb")
    with started(BrokerProcess(folder, {}, sas_key="the lab's own key")) as broker:
        yield broker


@pytest.fixture
def name(broker: BrokerProcess) -> str:
    name = f"q{uuid4().hex[:8]}"
    broker.ask("create", queue=name, lock_s=60)
    return name


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        yield client


def _body(message: ServiceBusReceivedMessage) -> bytes:
    return b"".join(message.body)


def test_receives_complete_batches_and_properties(
    broker: BrokerProcess, client: ServiceBusClient, name: str
) -> None:
    properties: dict[str | bytes, Any] = {"a": 1, "b": "x", "f": 1.5, "t": True}
    fields = {"message_id": "m1", "correlation_id": "c", "subject": "s", "content_type": "text/x"}
    received: list[ServiceBusReceivedMessage] = []
    with client.get_queue_sender(name) as sender, client.get_queue_receiver(name) as receiver:
        sender.send_messages(
            # The SDK's union of value types is invariant.
            ServiceBusMessage(b"one", application_properties=properties, **fields)  # type: ignore[arg-type]
        )
        batch = sender.create_message_batch()
        assert batch.max_size_in_bytes == 262_144
        for number in range(50):
            batch.add_message(ServiceBusMessage(b"%d" % number))
        sender.send_messages(batch)
        # This needs many frames.
        sender.send_messages([ServiceBusMessage(b"x" * 30_000) for _ in range(7)])
        while len(received) < 58:
            some = receiver.receive_messages(max_message_count=20, max_wait_time=30)
            assert some
            for message in some:
                receiver.complete_message(message)
            received += some
        soon_at = datetime.now(UTC) + timedelta(seconds=0.5)
        sender.send_messages(ServiceBusMessage(b"z", scheduled_enqueue_time_utc=soon_at))
        [scheduled] = receiver.receive_messages(max_wait_time=30)
        assert _body(scheduled) == b"z"
        receiver.complete_message(scheduled)
    first = received[0]
    assert _body(first) == b"one"
    assert {name: getattr(first, name) for name in fields} == fields
    assert first.application_properties == {b"a": 1, b"b": b"x", b"f": 1.5, b"t": True}
    assert first.delivery_count == 0
    assert first.enqueued_time_utc is not None
    assert [_body(message) for message in received[1:51]] == [b"%d" % n for n in range(50)]
    assert sum(len(_body(message)) for message in received[51:]) == 210_000
    assert broker.ask("counts", queue=name)["active"] == 0


def test_closed_receiver_returns_prefetched_messages(client: ServiceBusClient, name: str) -> None:
    with client.get_queue_sender(name) as sender:
        sender.send_messages([ServiceBusMessage(b"%d" % number) for number in range(60)])
    with client.get_queue_receiver(name, prefetch_count=40, max_wait_time=30) as first:
        for taken, message in enumerate(first, start=1):
            first.complete_message(message)
            if taken == 20:
                break
    received = 0
    with client.get_queue_receiver(name) as second:
        while received < 40:
            some = second.receive_messages(100, max_wait_time=30)
            assert some
            for message in some:
                assert message.delivery_count == 0
                second.complete_message(message)
            received += len(some)
