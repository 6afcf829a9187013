"""What a queue does, at instants of our choosing."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.lab.servicebus.queues import Message, Queue, QueueSettings, Sent, Settlement, State

SETTINGS = QueueSettings(lock_s=10.0, max_delivery_count=3)


def _sent(name: str = "m", **fields: Any) -> Sent:
    return Sent(content=name.encode(), message_id=name, **fields)


def _taken(queue: Queue, now: float) -> Message:
    message = queue.take(now)
    assert message is not None
    assert message.lock_token is not None
    return message


def _token(message: Message) -> UUID:
    assert message.lock_token is not None
    return message.lock_token


@pytest.fixture
def queue() -> Queue:
    return Queue("jobs", SETTINGS)


def _dead(queue: Queue) -> Queue:
    assert queue.dead is not None
    return queue.dead


def test_messages_come_oldest_first_and_to_one_taker_each(queue: Queue) -> None:
    for name in "abc":
        queue.send(_sent(name), 0.0)
    assert [_taken(queue, 1.0).sent.message_id for _ in range(3)] == ["a", "b", "c"]
    assert queue.take(1.0) is None


def test_a_message_taken_without_a_lock_is_gone_at_once(queue: Queue) -> None:
    queue.send(_sent(), 0.0)
    assert queue.take(1.0, lock=False) is not None
    assert not queue.messages


def test_a_lock_that_runs_out_gives_the_message_back_and_counts(queue: Queue) -> None:
    queue.send(_sent(), 0.0)
    first = _token(_taken(queue, 1.0))
    assert queue.next_due() == 11.0
    assert queue.take(10.999) is None
    again = _taken(queue, 11.0)
    assert again.delivery_count == 1
    assert queue.renew(first, 11.0) is None
    assert not queue.settle(first, Settlement.COMPLETE, 11.0)
    assert queue.settle(_token(again), Settlement.COMPLETE, 11.0)


def test_a_renewed_lock_lasts_its_full_time_from_then_and_a_lost_one_stays_lost(
    queue: Queue,
) -> None:
    queue.send(_sent(), 0.0)
    token = _token(_taken(queue, 0.0))
    assert queue.renew(token, 9.0) == 19.0
    assert queue.take(18.0) is None
    assert queue.settle(token, Settlement.COMPLETE, 18.9)
    assert queue.renew(token, 18.9) is None


def test_failed_deliveries_lead_to_the_dead_letters(queue: Queue) -> None:
    number = queue.send(_sent(), 0.0)
    for _ in range(3):
        queue.settle(_token(_taken(queue, 1.0)), Settlement.ABANDON, 1.0)
    assert queue.take(1.0) is None
    dead = _taken(_dead(queue), 1.0)
    assert dead.sequence_number == number
    assert dead.sent.application["DeadLetterReason"] == "MaxDeliveryCountExceeded"


def test_a_released_delivery_does_not_count(queue: Queue) -> None:
    queue.send(_sent(), 0.0)
    for _ in range(5):
        queue.settle(_token(_taken(queue, 1.0)), Settlement.RELEASE, 1.0)
    assert _taken(queue, 1.0).delivery_count == 0


def test_a_dead_letter_keeps_its_properties_and_says_why(queue: Queue) -> None:
    queue.send(_sent(application={"k": "v"}, ttl_s=5.0), 0.0)
    token = _token(_taken(queue, 1.0))
    queue.settle(token, Settlement.DEAD_LETTER, 1.0, "poison", "It did not parse.")
    dead = _taken(_dead(queue), 1_000.0)  # its end no longer counts
    assert dead.sent.application == {
        "k": "v",
        "DeadLetterReason": "poison",
        "DeadLetterErrorDescription": "It did not parse.",
    }


def test_nothing_dies_among_the_dead(queue: Queue) -> None:
    queue.send(_sent(), 0.0)
    queue.settle(_token(_taken(queue, 0.0)), Settlement.DEAD_LETTER, 0.0)
    dead = _dead(queue)
    for at in range(20):
        dead.settle(_token(_taken(dead, float(at))), Settlement.ABANDON, float(at))
    dead.settle(_token(_taken(dead, 20.0)), Settlement.DEAD_LETTER, 20.0)
    token = _token(_taken(dead, 20.0))
    assert _taken(dead, 30.0).lock_token != token  # a lock runs out there, too


def test_an_expired_message_vanishes(queue: Queue) -> None:
    queue.send(_sent(ttl_s=5.0), 0.0)
    assert queue.take(5.0) is None
    assert queue.counts() == {"active": 0, "locked": 0, "scheduled": 0, "dead": 0}


def test_an_expired_message_is_dead_lettered_where_the_queue_says_so() -> None:
    queue = Queue("jobs", replace(SETTINGS, dead_letter_expired=True))
    queue.send(_sent(ttl_s=5.0), 0.0)
    queue.advance(5.0)
    assert _taken(_dead(queue), 5.0).sent.application["DeadLetterReason"] == "TTLExpiredException"


def test_a_locked_message_outlives_its_end_until_it_is_given_back(queue: Queue) -> None:
    queue.send(_sent(ttl_s=5.0), 0.0)
    token = _token(_taken(queue, 4.0))
    queue.advance(6.0)
    assert queue.counts()["locked"] == 1
    queue.settle(token, Settlement.ABANDON, 6.0)
    assert queue.take(6.0) is None
    assert not queue.messages


def test_the_queue_may_shorten_a_life_but_not_lengthen_it() -> None:
    queue = Queue("jobs", replace(SETTINGS, default_ttl_s=3.0))
    for name, ttl_s in (("none", None), ("long", 9.0), ("short", 1.0)):
        queue.send(_sent(name, ttl_s=ttl_s), 0.0)
    ends = {message.sent.message_id: message.expires_at_s for message in queue.messages.values()}
    assert ends == {"none": 3.0, "long": 3.0, "short": 1.0}


def test_a_scheduled_message_shows_at_its_instant_and_lives_from_then(queue: Queue) -> None:
    early = queue.send(_sent("later", enqueue_at_s=100.0, ttl_s=5.0), 0.0)
    queue.send(_sent("now"), 50.0)
    assert queue.counts()["scheduled"] == 1
    assert _taken(queue, 99.9).sent.message_id == "now"
    assert queue.take(99.9) is None
    message = _taken(queue, 104.0)  # however late the queue looks
    assert message.enqueued_at_s == 100.0
    assert message.expires_at_s == 105.0
    assert message.sequence_number > early


def test_a_scheduled_message_can_be_cancelled_until_it_shows(queue: Queue) -> None:
    numbers = [queue.send(_sent(name, enqueue_at_s=100.0), 0.0) for name in "abc"]
    assert queue.cancel(numbers[:1], 50.0)
    assert not queue.cancel(numbers[:2], 50.0)  # one is gone, so none is cancelled
    assert queue.counts()["scheduled"] == 2
    assert not queue.cancel(numbers[1:], 100.0)
    assert queue.counts()["active"] == 2


def test_a_duplicate_is_dropped_within_the_window_even_after_completion(queue: Queue) -> None:
    number = queue.send(_sent(), 0.0)
    assert queue.send(_sent(), 1.0) == number
    queue.settle(_token(_taken(queue, 1.0)), Settlement.COMPLETE, 1.0)
    assert queue.send(_sent(), 599.0) == number
    assert not queue.messages
    assert queue.send(_sent(), 600.0) != number


def test_duplicates_are_kept_where_nobody_looks_for_them() -> None:
    queue = Queue("jobs", replace(SETTINGS, duplicate_window_s=0.0))
    assert queue.send(_sent(), 0.0) != queue.send(_sent(), 0.0)
    assert queue.counts()["active"] == 2


def test_messages_without_an_id_are_no_duplicates(queue: Queue) -> None:
    for _ in range(2):
        queue.send(Sent(content=b"x"), 0.0)
    assert queue.counts()["active"] == 2


def test_peeking_sees_every_state_and_changes_none(queue: Queue) -> None:
    for name in "abc":
        queue.send(_sent(name), 0.0)
    queue.send(_sent("later", enqueue_at_s=100.0), 0.0)
    _taken(queue, 0.0)
    seen = queue.peek(2, 2)
    assert [message.sent.message_id for message in seen] == ["b", "c"]
    assert queue.peek(4, 10)[0].state is State.SCHEDULED
    assert queue.counts()["locked"] == 1


def test_the_doubling_fault_delivers_each_message_two_times(queue: Queue) -> None:
    queue.double(True, 0.0)
    queue.send(_sent("now"), 0.0)
    number = queue.send(_sent("later", enqueue_at_s=5.0), 0.0)
    queue.send(_sent("cancelled", enqueue_at_s=5.0), 0.0)
    assert queue.cancel([number + 1], 1.0)
    names = [_taken(queue, 6.0).sent.message_id for _ in range(4)]
    assert sorted(str(name) for name in names) == ["later", "later", "now", "now"]
    assert queue.take(6.0) is None


# Invariants ---------------------------------------------------------------------------------

_STEP = st.tuples(
    st.sampled_from(
        ["send", "schedule", "take", "complete", "abandon", "dead_letter", "cancel", "renew"]
    ),
    st.integers(0, 30),  # which message, or which lock
    st.floats(0.0, 8.0),  # s until then
)


def _walk(
    queue: Queue, steps: list[tuple[str, int, float]]
) -> Iterator[tuple[str, str | None, bool]]:
    """Carry the steps out; yield each with the message id that it left for good."""
    now, tokens, scheduled = 0.0, list[tuple[UUID, str]](), list[tuple[int, str]]()
    for number, (what, which, after_s) in zip(count(), steps, strict=False):
        now += after_s
        name = f"m{number}"
        if what == "send":
            queue.send(_sent(name), now)
            yield what, name, True
        elif what == "schedule":
            scheduled.append((queue.send(_sent(name, enqueue_at_s=now + which), now), name))
            yield what, name, True
        elif what == "take":
            message = queue.take(now)
            if message is not None:
                assert _token(message) not in [token for token, _ in tokens]
                tokens.append((_token(message), str(message.sent.message_id)))
        elif what == "cancel" and scheduled:
            sequence_number, name = scheduled[which % len(scheduled)]
            yield what, name, queue.cancel([sequence_number], now)
        elif what == "renew" and tokens:
            queue.renew(tokens[which % len(tokens)][0], now)
        elif tokens and what in ("complete", "abandon", "dead_letter"):
            token, name = tokens[which % len(tokens)]
            yield what, name, queue.settle(token, Settlement(what), now)


@given(st.lists(_STEP, max_size=60))
def test_every_message_is_in_exactly_one_place(steps: list[tuple[str, int, float]]) -> None:
    queue = Queue("jobs", SETTINGS)
    sent, gone = set(), set()
    for what, name, done in _walk(queue, steps):
        if what in ("send", "schedule"):
            sent.add(name)
        elif what in ("complete", "cancel") and done:
            assert name not in gone
            gone.add(name)
    stored = [*queue.messages.values(), *_dead(queue).messages.values()]
    assert sorted(str(message.sent.message_id) for message in stored) == sorted(
        str(name) for name in sent - gone
    )
    assert queue.counts()["locked"] <= queue.counts()["active"]


@given(st.lists(_STEP, max_size=60))
def test_the_log_replays_to_the_same_queue(steps: list[tuple[str, int, float]]) -> None:
    logged: list[tuple[str, str, float, dict[str, Any]]] = []
    queue = Queue(
        "jobs",
        SETTINGS,
        log=lambda item: lambda *entry: logged.append((item.path, *entry)),
    )
    list(_walk(queue, steps))
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
