"""Tests for the messages and requests of Service Bus in miniature."""

from typing import Any

import pytest

from broadside.lab.servicebus import amqp
from broadside.lab.servicebus.amqp import AmqpSymbol, Code, Described, Timestamp, ULong
from broadside.lab.servicebus.dialect import manage, read_message, split_batch, write_message
from broadside.lab.servicebus.queues import Queue, QueueSettings

NOW = 1_000.0


def make_queue() -> Queue:
    return Queue("q", QueueSettings())


def data(text: bytes) -> bytes:
    return amqp.encode(Described(ULong(Code.DATA), text))


def test_batch_is_split_and_a_single_message_is_not() -> None:
    messages = [data(b"one"), data(b"two")]
    batch = b"".join(map(data, messages))
    assert split_batch(batch, amqp.BATCH_FORMAT) == messages
    assert split_batch(messages[0], 0) == messages[:1]


def test_scheduled_time_is_read_and_not_forwarded() -> None:
    annotations = {
        AmqpSymbol("x-opt-scheduled-enqueue-time"): Timestamp(5000),
        AmqpSymbol("x-mine"): 1,
    }
    sent = read_message(amqp.encode(Described(ULong(Code.ANNOTATIONS), annotations)) + data(b"x"))
    assert sent.enqueue_at_s == 5
    assert sent.annotations == {"x-mine": 1}
    assert sent.content == data(b"x")


def test_message_survives_write_and_read() -> None:
    queue = make_queue()
    queue.send(read_message(data(b"x")), NOW)
    queue.advance(NOW)
    [message] = queue.peek(0, 1)
    assert read_message(write_message(message)).content == data(b"x")


@pytest.mark.parametrize(
    ("operation", "body", "size_bytes", "status"),
    [
        ("com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 1}, 9, 204),
        ("com.microsoft:no-such-operation", {}, 9, 501),
        ("com.microsoft:peek-message", {}, 2**30, 400),
        ("com.microsoft:renew-lock", {"lock-tokens": ["unknown"]}, 9, 410),
        ("com.microsoft:cancel-scheduled-message", {"sequence-numbers": [7]}, 9, 404),
    ],
)
def test_request_that_cannot_be_met_has_a_status(
    operation: str, body: Any, size_bytes: int, status: int
) -> None:
    assert manage(make_queue(), operation, body, size_bytes, NOW).status == status
