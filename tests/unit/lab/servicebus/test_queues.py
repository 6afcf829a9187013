"""Tests for the queue of the Service Bus broker, using a simulated time."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.lab.servicebus.queues import (
    MessageState,
    Queue,
    QueuedMessage,
    QueueSettings,
    Sent,
    Settlement,
)

SETTINGS = QueueSettings(lock_s=10.0, max_delivery_count=3)


def _sent(name: str = "m", **fields: Any) -> Sent:
    return Sent(content=name.encode(), message_id=name, **fields)


def _take(queue: Queue, now: float) -> QueuedMessage:
    message = queue.take(now)
    assert message is not None
    assert message.lock_token is not None
    return message


def _token(message: QueuedMessage) -> UUID:
    assert message.lock_token is not None
    return message.lock_token


@pytest.fixture
def queue() -> Queue:
    return Queue("jobs", SETTINGS)


def _dead(queue: Queue) -> Queue:
    assert queue.dead is not None
    return queue.dead


def test_messages_are_delivered_in_order_and_once(queue: Queue) -> None:
    for name in "abc":
        queue.send(_sent(name), 0.0)
    assert [_take(queue, 1.0).sent.message_id for _ in range(3)] == ["a", "b", "c"]
    assert queue.take(1.0) is None


def test_message_taken_without_lock_is_removed(queue: Queue) -> None:
    queue.send(_sent(), 0.0)
    assert queue.take(1.0, lock=False) is not None
    assert not queue.messages


def test_expired_lock_returns_message_and_counts_delivery(queue: Queue) -> None:
    queue.send(_sent(), 0.0)
    first = _token(_take(queue, 1.0))
    assert queue.next_due() == 11.0
    assert queue.take(10.999) is None
    again = _take(queue, 11.0)
    assert again.delivery_count == 1
    assert queue.renew(first, 11.0) is None
    assert not queue.settle(first, Settlement.COMPLETE, 11.0)
    assert queue.settle(_token(again), Settlement.COMPLETE, 11.0)


def test_renewed_lock_has_full_duration(
    queue: Queue,
) -> None:
    queue.send(_sent(), 0.0)
    token = _token(_take(queue, 0.0))
    assert queue.renew(token, 9.0) == 19.0
    assert queue.take(18.0) is None
    assert queue.settle(token, Settlement.COMPLETE, 18.9)
    assert queue.renew(token, 18.9) is None


def test_failed_deliveries_dead_letter_the_message(queue: Queue) -> None:
    number = queue.send(_sent(), 0.0)
    for _ in range(3):
        queue.settle(_token(_take(queue, 1.0)), Settlement.ABANDON, 1.0)
    assert queue.take(1.0) is None
    dead = _take(_dead(queue), 1.0)
    assert dead.sequence_number == number
    assert dead.sent.application["DeadLetterReason"] == "MaxDeliveryCountExceeded"


def test_released_delivery_is_not_counted(queue: Queue) -> None:
    queue.send(_sent(), 0.0)
    for _ in range(5):
        queue.settle(_token(_take(queue, 1.0)), Settlement.RELEASE, 1.0)
    assert _take(queue, 1.0).delivery_count == 0


def test_dead_letter_has_properties_and_reason(queue: Queue) -> None:
    queue.send(_sent(application={"k": "v"}, ttl_s=5.0), 0.0)
    token = _token(_take(queue, 1.0))
    queue.settle(token, Settlement.DEAD_LETTER, 1.0, "poison", "Invalid JSON.")
    # Dead letters never expire.
    dead = _take(_dead(queue), 1_000.0)
    assert dead.sent.application == {
        "k": "v",
        "DeadLetterReason": "poison",
        "DeadLetterErrorDescription": "Invalid JSON.",
    }


def test_dead_letters_are_not_dead_lettered_again(queue: Queue) -> None:
    queue.send(_sent(), 0.0)
    queue.settle(_token(_take(queue, 0.0)), Settlement.DEAD_LETTER, 0.0)
    dead = _dead(queue)
    for at in range(20):
        dead.settle(_token(_take(dead, float(at))), Settlement.ABANDON, float(at))
    dead.settle(_token(_take(dead, 20.0)), Settlement.DEAD_LETTER, 20.0)
    token = _token(_take(dead, 20.0))
    # The lock on a dead letter can expire too.
    assert _take(dead, 30.0).lock_token != token


def test_expired_message_is_removed(queue: Queue) -> None:
    queue.send(_sent(ttl_s=5.0), 0.0)
    assert queue.take(5.0) is None
    assert queue.counts() == {"active": 0, "locked": 0, "scheduled": 0, "dead": 0}


def test_expired_message_is_dead_lettered_if_configured() -> None:
    queue = Queue("jobs", replace(SETTINGS, dead_letter_expired=True))
    queue.send(_sent(ttl_s=5.0), 0.0)
    queue.advance(5.0)
    assert _take(_dead(queue), 5.0).sent.application["DeadLetterReason"] == "TTLExpiredException"


def test_locked_message_expires_after_its_release(queue: Queue) -> None:
    queue.send(_sent(ttl_s=5.0), 0.0)
    token = _token(_take(queue, 4.0))
    queue.advance(6.0)
    assert queue.counts()["locked"] == 1
    queue.settle(token, Settlement.ABANDON, 6.0)
    assert queue.take(6.0) is None
    assert not queue.messages


def test_queue_default_can_only_shorten_the_ttl() -> None:
    queue = Queue("jobs", replace(SETTINGS, default_ttl_s=3.0))
    for name, ttl_s in (("none", None), ("long", 9.0), ("short", 1.0)):
        queue.send(_sent(name, ttl_s=ttl_s), 0.0)
    ends = {message.sent.message_id: message.expires_at_s for message in queue.messages.values()}
    assert ends == {"none": 3.0, "long": 3.0, "short": 1.0}


def test_scheduled_message_is_active_at_its_time(queue: Queue) -> None:
    early = queue.send(_sent("later", enqueue_at_s=100.0, ttl_s=5.0), 0.0)
    queue.send(_sent("now"), 50.0)
    assert queue.counts()["scheduled"] == 1
    assert _take(queue, 99.9).sent.message_id == "now"
    assert queue.take(99.9) is None
    # The time of the call does not matter.
    message = _take(queue, 104.0)
    assert message.enqueued_at_s == 100.0
    assert message.expires_at_s == 105.0
    assert message.sequence_number > early


def test_scheduled_message_can_be_cancelled_before_its_time(queue: Queue) -> None:
    numbers = [queue.send(_sent(name, enqueue_at_s=100.0), 0.0) for name in "abc"]
    assert queue.cancel(numbers[:1], 50.0)
    # If a message is not available, no message is cancelled.
    assert not queue.cancel(numbers[:2], 50.0)
    assert queue.counts()["scheduled"] == 2
    assert not queue.cancel(numbers[1:], 100.0)
    assert queue.counts()["active"] == 2


def test_duplicate_within_the_window_is_dropped(queue: Queue) -> None:
    number = queue.send(_sent(), 0.0)
    assert queue.send(_sent(), 1.0) == number
    queue.settle(_token(_take(queue, 1.0)), Settlement.COMPLETE, 1.0)
    assert queue.send(_sent(), 599.0) == number
    assert not queue.messages
    assert queue.send(_sent(), 600.0) != number


def test_duplicates_are_accepted_without_detection() -> None:
    queue = Queue("jobs", replace(SETTINGS, duplicate_window_s=0.0))
    assert queue.send(_sent(), 0.0) != queue.send(_sent(), 0.0)
    assert queue.counts()["active"] == 2


def test_messages_without_id_are_not_duplicates(queue: Queue) -> None:
    for _ in range(2):
        queue.send(Sent(content=b"x"), 0.0)
    assert queue.counts()["active"] == 2


def test_peek_returns_all_states_without_a_change(queue: Queue) -> None:
    for name in "abc":
        queue.send(_sent(name), 0.0)
    queue.send(_sent("later", enqueue_at_s=100.0), 0.0)
    _take(queue, 0.0)
    seen = queue.peek(2, 2)
    assert [message.sent.message_id for message in seen] == ["b", "c"]
    assert queue.peek(4, 10)[0].state is MessageState.SCHEDULED
    assert queue.counts()["locked"] == 1


def test_duplicate_fault_delivers_messages_twice(queue: Queue) -> None:
    queue.double(True, 0.0)
    queue.send(_sent("now"), 0.0)
    number = queue.send(_sent("later", enqueue_at_s=5.0), 0.0)
    queue.send(_sent("cancelled", enqueue_at_s=5.0), 0.0)
    assert queue.cancel([number + 1], 1.0)
    names = [_take(queue, 6.0).sent.message_id for _ in range(4)]
    assert sorted(str(name) for name in names) == ["later", "later", "now", "now"]
    assert queue.take(6.0) is None


# Invariants ---------------------------------------------------------------------------------

_STEP = st.tuples(
    st.sampled_from(
        ["send", "schedule", "take", "complete", "abandon", "dead_letter", "cancel", "renew"]
    ),
    # This is used to select a message or lock.
    st.integers(0, 30),
    # This is the delay in seconds.
    st.floats(0.0, 8.0),
)


def _run_steps(
    queue: Queue, steps: list[tuple[str, int, float]]
) -> Iterator[tuple[str, str | None, bool]]:
    """Run the steps. Yield the operation, the message id and if it was successful."""
    now, tokens, scheduled = 0.0, list[tuple[UUID, str]](), list[tuple[int, str]]()
    for number, (operation, index, after_s) in zip(count(), steps, strict=False):
        now += after_s
        name = f"m{number}"
        if operation == "send":
            queue.send(_sent(name), now)
            yield operation, name, True
        elif operation == "schedule":
            scheduled.append((queue.send(_sent(name, enqueue_at_s=now + index), now), name))
            yield operation, name, True
        elif operation == "take":
            message = queue.take(now)
            if message is not None:
                assert _token(message) not in [token for token, _ in tokens]
                tokens.append((_token(message), str(message.sent.message_id)))
        elif operation == "cancel" and scheduled:
            sequence_number, name = scheduled[index % len(scheduled)]
            yield operation, name, queue.cancel([sequence_number], now)
        elif operation == "renew" and tokens:
            queue.renew(tokens[index % len(tokens)][0], now)
        elif tokens and operation in ("complete", "abandon", "dead_letter"):
            token, name = tokens[index % len(tokens)]
            yield operation, name, queue.settle(token, Settlement(operation), now)


@given(st.lists(_STEP, max_size=60))
def test_messages_are_neither_lost_nor_duplicated(steps: list[tuple[str, int, float]]) -> None:
    queue = Queue("jobs", SETTINGS)
    sent, removed = set(), set()
    for operation, name, done in _run_steps(queue, steps):
        if operation in ("send", "schedule"):
            sent.add(name)
        elif operation in ("complete", "cancel") and done:
            assert name not in removed
            removed.add(name)
    stored = [*queue.messages.values(), *_dead(queue).messages.values()]
    assert sorted(str(message.sent.message_id) for message in stored) == sorted(
        str(name) for name in sent - removed
    )
    assert queue.counts()["locked"] <= queue.counts()["active"]


@given(st.lists(_STEP, max_size=60))
def test_log_replay_restores_the_queue(steps: list[tuple[str, int, float]]) -> None:
    logged: list[tuple[str, str, float, dict[str, Any]]] = []
    queue = Queue(
        "jobs",
        SETTINGS,
        log=lambda item: lambda *entry: logged.append((item.path, *entry)),
    )
    list(_run_steps(queue, steps))
    again = Queue("jobs", SETTINGS)
    for path, command, now, arguments in logged:
        target = again if path == again.path else _dead(again)
        getattr(target, command)(now=now, **arguments)
    end_s = 8.0 * len(steps)
    for item in (queue, _dead(queue), again, _dead(again)):
        item.advance(end_s)
    assert again.messages == queue.messages
    assert _dead(again).messages == _dead(queue).messages
    assert again.next_due() == queue.next_due()
    assert again.send(_sent("next"), end_s) == queue.send(_sent("next"), end_s)
