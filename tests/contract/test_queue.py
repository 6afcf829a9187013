"""Test the contract for :class:`broadside.exchange.ports.JobQueue` on all adapters."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from broadside.exchange.ports import (
    MESSAGE_ID_MAX_CHARS,
    MESSAGE_MAX_BYTES,
    Delivery,
    JobQueue,
    LockLost,
    MessageTooLarge,
    Outgoing,
    QueueCounts,
)
from tests.contract.adapters import Place

# Generous limit for an immediate receive.
PROMPT_S = 10.0


@pytest.fixture
def place(queue_place: Place) -> Place:
    return queue_place


def now() -> datetime:
    return datetime.now(UTC)


def outgoing(
    message_id: str,
    *,
    after_s: float | None = None,
    lifetime_s: float = 60.0,
    body: bytes = b"body",
) -> Outgoing:
    enqueue_at = None if after_s is None else now() + timedelta(seconds=after_s)
    return Outgoing(
        body=body,
        message_id=message_id,
        expires_at=now() + timedelta(seconds=lifetime_s),
        enqueue_at=enqueue_at,
    )


async def receive_one(queue: JobQueue) -> Delivery:
    """Receive one message that is available now or will be very soon."""
    delivery = await queue.receive(PROMPT_S)
    assert delivery is not None, "nothing to receive"
    return delivery


async def receive_all(queue: JobQueue, count: int = 0) -> Sequence[str]:
    """Receive and complete ``count`` messages and all later ones, and return the ids in order."""
    ids: list[str] = []
    while (delivery := await queue.receive(PROMPT_S if len(ids) < count else 0.1)) is not None:
        await queue.complete(delivery)
        ids.append(delivery.message_id)
    return ids


async def open_connections(queue: JobQueue) -> None:
    """Open the adapter's connections before the parts of a test that depend on time."""
    await queue.send([outgoing("first")])
    await queue.complete(await receive_one(queue))
    await queue.cancel([10**12])


async def wait_for_lock_expiry(place: Place) -> None:
    await asyncio.sleep(place.lock_s * 1.1 + 0.05)


async def test_message_is_received_unchanged_and_once(queue: JobQueue, place: Place) -> None:
    body = bytes(range(256))
    await queue.send([outgoing("run.0.1", body=body)])
    before = now()
    delivery = await receive_one(queue)
    assert (delivery.body, delivery.message_id, delivery.delivery_count) == (body, "run.0.1", 1)
    assert before < delivery.locked_until_at <= now() + timedelta(seconds=place.lock_s)
    await queue.complete(delivery)
    await wait_for_lock_expiry(place)
    assert await queue.receive(0.1) is None


async def test_receive_waits_at_most_the_requested_time(queue: JobQueue) -> None:
    started_s = time.monotonic()
    assert await queue.receive(0.3) is None
    assert time.monotonic() - started_s >= 0.3
    waiting = asyncio.create_task(queue.receive(PROMPT_S))
    await asyncio.sleep(0.1)
    sent_s = time.monotonic()
    await queue.send([outgoing("a")])
    assert (await waiting) is not None
    assert time.monotonic() - sent_s < PROMPT_S / 2, "received only after the wait"


async def test_receive_locks_one_message(queue: JobQueue) -> None:
    await queue.send([outgoing("a"), outgoing("b")])
    first, second = await receive_one(queue), await receive_one(queue)
    assert {first.message_id, second.message_id} == {"a", "b"}
    assert await queue.receive(0.1) is None


async def test_two_receivers_never_get_the_same_message(queue: JobQueue, place: Place) -> None:
    ids: list[str] = []

    async def take_part(part: JobQueue) -> None:
        while len(ids) < 20:
            if (delivery := await part.receive(0.1)) is not None:
                await part.complete(delivery)
                ids.append(delivery.message_id)

    other = place.open_queue()
    try:
        await queue.send([outgoing(str(n)) for n in range(20)])
        async with asyncio.timeout(120):
            await asyncio.gather(take_part(queue), take_part(other))
        ids += await receive_all(other)
    finally:
        await other.close()
    assert sorted(ids) == sorted(str(n) for n in range(20))


async def test_message_is_redelivered_after_the_lock_expires(queue: JobQueue, place: Place) -> None:
    await queue.send([outgoing("a")])
    first = await receive_one(queue)
    assert await queue.receive(0) is None
    await wait_for_lock_expiry(place)
    second = await receive_one(queue)
    assert (second.message_id, second.delivery_count) == ("a", 2)
    with pytest.raises(LockLost, match="a"):
        await queue.complete(first)
    await queue.complete(second)
    assert await receive_all(queue) == []


async def test_settlement_after_the_lock_expired_is_rejected(queue: JobQueue, place: Place) -> None:
    await queue.send([outgoing("a")])
    delivery = await receive_one(queue)
    await wait_for_lock_expiry(place)
    with pytest.raises(LockLost):
        await queue.renew(delivery)
    with pytest.raises(LockLost):
        await queue.abandon(delivery)
    with pytest.raises(LockLost):
        await queue.dead_letter(delivery, "Poison", "not a job")
    with pytest.raises(LockLost):
        await queue.complete(delivery)
    assert await receive_all(queue, 1) == ["a"], "a rejected settlement must not change the message"


async def test_a_settled_message_cannot_be_settled_again(queue: JobQueue) -> None:
    await queue.send([outgoing("a")])
    delivery = await receive_one(queue)
    await queue.complete(delivery)
    with pytest.raises(LockLost):
        await queue.complete(delivery)


async def test_renewal_extends_the_lock(queue: JobQueue, place: Place) -> None:
    await queue.send([outgoing("a")])
    delivery = await receive_one(queue)
    for _ in range(3):
        await asyncio.sleep(place.lock_s * 0.4)
        renewed = await queue.renew(delivery)
        assert renewed.locked_until_at > delivery.locked_until_at
        assert await queue.receive(0) is None
        delivery = renewed
    await queue.complete(delivery)


async def test_abandoned_message_is_redelivered_immediately(queue: JobQueue) -> None:
    await queue.send([outgoing("a")])
    first = await receive_one(queue)
    await queue.abandon(first)
    again = await receive_one(queue)
    assert now() < first.locked_until_at, "received only after the lock expired"
    assert again.delivery_count == 2


@pytest.mark.parametrize("by_abandoning", [True, False])
async def test_message_is_dead_lettered_after_too_many_deliveries(
    queue: JobQueue, place: Place, by_abandoning: bool
) -> None:
    await queue.send([outgoing("poison", body=b"\0")])
    for count in range(1, place.deliveries_max_count + 1):
        delivery = await receive_one(queue)
        assert delivery.delivery_count == count
        if by_abandoning:
            await queue.abandon(delivery)
        else:
            await wait_for_lock_expiry(place)
    assert await queue.receive(0.2) is None
    [dead] = await queue.dead_letters()
    assert (dead.message_id, dead.body) == ("poison", b"\0")
    assert dead.reason == "MaxDeliveryCountExceeded"


async def test_dead_letter_has_its_reason_and_can_be_resent(queue: JobQueue) -> None:
    await queue.send([outgoing("a"), outgoing("b", body=b"good")])
    for _ in range(2):
        delivery = await receive_one(queue)
        await queue.dead_letter(delivery, "TargetRefused", f"{delivery.message_id}: not allowed")
    letters = {letter.message_id: letter for letter in await queue.dead_letters()}
    assert letters.keys() == {"a", "b"}
    assert (letters["b"].reason, letters["b"].description) == ("TargetRefused", "b: not allowed")
    assert len(await queue.dead_letters()) == 2, "listing must not remove"
    assert len(await queue.dead_letters(limit=1)) == 1
    assert await queue.receive(0.1) is None

    number = letters["b"].sequence_number
    assert await queue.resend(number, now() + timedelta(minutes=1))
    assert not await queue.resend(number, now() + timedelta(minutes=1))
    again = await receive_one(queue)
    assert (again.body, again.delivery_count) == (b"good", 1)
    await queue.complete(again)
    assert [letter.message_id for letter in await queue.dead_letters()] == ["a"]


async def test_one_or_all_dead_letters_can_be_purged(queue: JobQueue) -> None:
    await queue.send([outgoing(name) for name in "abcd"])
    for _ in range(4):
        await queue.dead_letter(await receive_one(queue), "Test", "test")
    await queue.send([outgoing("alive")])
    letters = await queue.dead_letters()
    number = letters[2].sequence_number
    assert await queue.purge(number) == 1
    assert await queue.purge(number) == 0, "it was already purged"
    left = [letter.message_id for letter in letters if letter.sequence_number != number]
    assert [letter.message_id for letter in await queue.dead_letters()] == left
    assert await queue.purge(limit=1) == 1
    assert await queue.purge() == 2
    assert await queue.purge() == 0
    assert await queue.dead_letters() == []
    assert await receive_all(queue, 1) == ["alive"], "an active message must not be purged"


async def test_expired_message_is_removed(queue: JobQueue) -> None:
    await queue.send([outgoing("short", lifetime_s=0.3), outgoing("long")])
    await asyncio.sleep(0.5)
    assert await receive_all(queue, 1) == ["long"]
    assert await queue.dead_letters() == []


async def test_expired_resend_is_removed(queue: JobQueue) -> None:
    await queue.send([outgoing("a")])
    await queue.dead_letter(await receive_one(queue), "Test", "test")
    [letter] = await queue.dead_letters()
    assert await queue.resend(letter.sequence_number, now() + timedelta(seconds=1))
    await asyncio.sleep(1.2)
    assert await receive_all(queue) == []


async def test_locked_message_can_be_settled_after_its_expiry(
    queue: JobQueue, place: Place
) -> None:
    await open_connections(queue)
    lifetime_s = place.lock_s / 2
    await queue.send([outgoing("a", lifetime_s=lifetime_s), outgoing("b", lifetime_s=lifetime_s)])
    deliveries = [await receive_one(queue), await receive_one(queue)]
    await asyncio.sleep(lifetime_s + 0.1)
    await queue.complete(deliveries[0])
    await queue.abandon(deliveries[1])
    assert await receive_all(queue) == [], "an expired message must not be returned"


async def test_scheduled_message_is_received_at_its_time(queue: JobQueue) -> None:
    await open_connections(queue)
    later = outgoing("later", after_s=2.5)
    await queue.send([later, outgoing("now")])
    assert await receive_all(queue, 1) == ["now"]
    delivery = await receive_one(queue)
    assert delivery.message_id == "later"
    assert later.enqueue_at is not None
    assert now() >= later.enqueue_at - timedelta(seconds=0.05), "received before its time"


async def test_a_scheduled_message_can_be_cancelled(queue: JobQueue) -> None:
    await open_connections(queue)
    numbers = await queue.send([outgoing(str(n), after_s=2.5) for n in range(4)])
    assert len(set(numbers)) == 4
    assert await queue.cancel(numbers[:2]) == 2
    assert await queue.cancel(numbers[:2]) == 0, "they were already cancelled"
    assert await queue.cancel([]) == 0
    assert sorted(await receive_all(queue, 2)) == ["2", "3"]


async def test_many_messages_can_be_cancelled_with_unknown_numbers(
    queue: JobQueue,
) -> None:
    await open_connections(queue)
    soon = await queue.send([outgoing("a"), outgoing("b", after_s=0.3)])
    later = await queue.send([outgoing(str(n), after_s=60) for n in range(1_500)])
    remaining = later[700:710]
    # A single request cannot be used for all these numbers.
    never = range(10**12, 10**12 + 40_000)
    await asyncio.sleep(0.4)
    assert await queue.cancel(later[500:600:2]) == 50
    requested = [*never, *soon, *later[:700], *later[710:], *later[:10]]
    assert await queue.cancel(requested) == 1_500 - 50 - len(remaining)
    assert sorted(await receive_all(queue, 2)) == ["a", "b"]
    assert await queue.cancel(remaining) == len(remaining)


async def test_cancel_ignores_messages_that_are_not_scheduled(
    queue: JobQueue,
) -> None:
    [number] = await queue.send([outgoing("a", after_s=0.2)])
    delivery = await receive_one(queue)
    assert await queue.cancel([number]) == 0
    await queue.complete(delivery)


async def test_duplicate_ids_are_one_message(queue: JobQueue) -> None:
    await queue.send([outgoing("a"), outgoing("a")])
    await queue.send([outgoing("a"), outgoing("b")])
    assert sorted(await receive_all(queue, 2)) == ["a", "b"]
    await queue.send([outgoing("a")])
    assert await receive_all(queue) == [], "a duplicate was accepted after the first was settled"


async def test_duplicate_scheduled_ids_are_one_message(queue: JobQueue) -> None:
    [number] = await queue.send([outgoing("a", after_s=30)])
    await queue.send([outgoing("a", after_s=30)])
    assert (await queue.counts()).scheduled_count in (1, None)
    assert await queue.cancel([number]) == 1
    await queue.send([outgoing("a")])
    assert await receive_all(queue) == [], "a duplicate was accepted after the first was cancelled"


async def test_large_send_arrives_completely(queue: JobQueue) -> None:
    messages = [outgoing(f"run.0.{n}", body=b"%05d" % n * 800, lifetime_s=240) for n in range(150)]
    assert len(await queue.send(messages)) == 150
    assert await queue.send([]) == []
    assert sorted(await receive_all(queue, 150)) == sorted(m.message_id for m in messages)


async def test_message_above_the_size_limit_stops_the_send(
    queue: JobQueue,
) -> None:
    with pytest.raises(MessageTooLarge, match=r"huge.*262144"):
        await queue.send([outgoing("a"), outgoing("huge", body=b"x" * MESSAGE_MAX_BYTES)])
    assert await receive_all(queue) == [], "nothing may be sent before the check"
    big = outgoing("x" * MESSAGE_ID_MAX_CHARS, body=b"x" * (MESSAGE_MAX_BYTES - 1024))
    await queue.send([big])
    delivery = await receive_one(queue)
    assert (delivery.body, delivery.message_id) == (big.body, big.message_id)


@pytest.mark.parametrize("message_id", ["", "x" * (MESSAGE_ID_MAX_CHARS + 1)])
async def test_invalid_id_is_rejected(queue: JobQueue, message_id: str) -> None:
    with pytest.raises(ValueError, match="message_id"):
        await queue.send([outgoing(message_id)])


async def test_ping_does_not_change_messages(queue: JobQueue) -> None:
    await queue.send([outgoing("a")])
    await queue.ping()
    delivery = await queue.receive(5)
    assert delivery is not None
    assert delivery.delivery_count == 1
    await queue.ping()
    await queue.complete(delivery)


async def test_counts_by_message_state(queue: JobQueue) -> None:
    await queue.send([outgoing("scheduled", after_s=30), outgoing("expired", lifetime_s=0.1)])
    await asyncio.sleep(0.2)
    await queue.send([outgoing("dead"), outgoing("locked"), outgoing("waiting")])
    for _ in range(3):
        delivery = await receive_one(queue)
        if delivery.message_id == "dead":
            await queue.dead_letter(delivery, "Test", "test")
        elif delivery.message_id == "waiting":
            await queue.abandon(delivery)
            break
    counts = await queue.counts()
    reported = QueueCounts(active_count=2, scheduled_count=1, dead_count=1)
    for name in ("active_count", "scheduled_count", "dead_count"):
        assert getattr(counts, name) in (getattr(reported, name), None), name


async def test_messages_remain_after_the_connection_is_closed(place: Place) -> None:
    sender = place.open_queue()
    await sender.send([outgoing("a"), outgoing("b", after_s=0.2)])
    await sender.close()
    receiver = place.open_queue()
    try:
        ids = [(await receive_one(receiver)).message_id for _ in range(2)]
    finally:
        await receiver.close()
    assert sorted(ids) == ["a", "b"]
