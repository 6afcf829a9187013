"""The official SDK, unmodified, sync and aio, against the lab's broker in a process of its own.

Every scenario has its own queue and starts as soon as the module does, several at a time: most of
their time is the SDK waiting for its sockets. A test then only asks for its scenario's outcome.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)
from azure.servicebus import aio as sb_aio
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
)

from lab.servicebus.broker_process import BrokerProcess

pytestmark = [pytest.mark.live]

LOCK_S = 1.5
RENEWED_LOCK_S = 10.0  # a renewal must come in half of it, also on a host that stalls for seconds
KEY = "the lab's own key"
JWT_KEY = "a key that is long enough for HS256, as it should be"


def _body(message: ServiceBusReceivedMessage) -> bytes:
    return b"".join(message.body)


def _now() -> datetime:
    return datetime.now(UTC)


class Stage:
    """One scenario's queue with a sender and a receiver."""

    def __init__(self, broker: BrokerProcess, stack: ExitStack, **settings: Any) -> None:
        self.broker = broker
        self.name = f"q{uuid4().hex[:8]}"
        broker.ask("create", queue=self.name, **{"lock_s": LOCK_S, **settings})
        self._stack = stack
        self.client = stack.enter_context(self.open_client())

    def open_client(self, **options: Any) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.broker.connection_string, **options)

    def sender(self, **options: Any) -> ServiceBusSender:
        sender: ServiceBusSender = self._stack.enter_context(
            self.client.get_queue_sender(self.name, **options)
        )
        return sender

    def receiver(self, **options: Any) -> ServiceBusReceiver:
        receiver: ServiceBusReceiver = self._stack.enter_context(
            self.client.get_queue_receiver(self.name, **options)
        )
        return receiver

    def counts(self) -> Counter[str]:
        return Counter(self.broker.ask("counts", queue=self.name))

    def settles(self, **wanted: int) -> bool:
        """Whether the counts become these within a few seconds."""
        end_s = time.monotonic() + 5
        while time.monotonic() < end_s:
            if self.counts().items() >= wanted.items():
                return True
            time.sleep(0.05)
        return False


def _one(receiver: ServiceBusReceiver, wait_s: float = 5) -> ServiceBusReceivedMessage:
    (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=wait_s)
    return message


Scenario = Callable[[BrokerProcess, ExitStack], None]


def batches_and_properties_arrive_whole(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack, lock_s=30)
    sender, receiver = stage.sender(), stage.receiver()
    properties: dict[str | bytes, Any] = {"a": 1, "b": "x", "f": 1.5, "t": True}
    said = {"message_id": "m1", "correlation_id": "c", "subject": "s", "content_type": "text/x"}
    sender.send_messages(
        ServiceBusMessage(b"one", application_properties=properties, **said)  # type: ignore[arg-type] # the SDK's union of value types is invariant
    )
    batch = sender.create_message_batch()
    assert batch.max_size_in_bytes == 262_144
    for number in range(50):
        batch.add_message(ServiceBusMessage(b"%d" % number))
    sender.send_messages(batch)
    sender.send_messages([ServiceBusMessage(b"x" * 30_000) for _ in range(7)])  # many frames
    received: list[ServiceBusReceivedMessage] = []
    while len(received) < 58:
        some = receiver.receive_messages(max_message_count=20, max_wait_time=5)
        assert some
        for message in some:
            receiver.complete_message(message)
        received += some
    first = received[0]
    assert _body(first) == b"one"
    assert {name: getattr(first, name) for name in said} == said
    assert first.application_properties == {b"a": 1, b"b": b"x", b"f": 1.5, b"t": True}
    assert first.delivery_count == 0
    assert first.enqueued_time_utc is not None
    assert [_body(message) for message in received[1:51]] == [b"%d" % n for n in range(50)]
    assert sum(len(_body(message)) for message in received[51:]) == 210_000
    assert stage.counts()["active"] == 0


def abandoned_messages_come_again(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)
    sender, receiver = stage.sender(), stage.receiver()
    sender.send_messages(ServiceBusMessage(b"x"))
    for attempt in range(3):
        message = _one(receiver)
        assert message.delivery_count == attempt
        receiver.abandon_message(message)
    message = _one(receiver)
    receiver.complete_message(message)
    with pytest.raises(MessageAlreadySettled):
        receiver.complete_message(message)


def dead_letters_say_why(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)
    sender, receiver = stage.sender(), stage.receiver()
    sender.send_messages(ServiceBusMessage(b"x", application_properties={"k": "v"}))
    receiver.dead_letter_message(_one(receiver), reason="bad", error_description="very bad")
    dead = stage.receiver(sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    message = _one(dead)
    assert (message.dead_letter_reason, message.dead_letter_error_description) == (
        "bad",
        "very bad",
    )
    assert message.application_properties is not None
    assert message.application_properties[b"k"] == b"v"
    dead.renew_message_lock(message)
    dead.complete_message(message)
    sender.send_messages(ServiceBusMessage(b"y"))
    receiver.dead_letter_message(_one(receiver))  # without a reason
    assert stage.settles(active=0, dead=1)


def a_lock_that_runs_out_is_lost(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)
    sender, receiver = stage.sender(), stage.receiver()
    sender.send_messages(ServiceBusMessage(b"x"))
    first = _one(receiver)
    second = _one(stage.receiver())
    assert second.delivery_count == 1
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(first)  # by the SDK's own clock
    for lose in (receiver.complete_message, receiver.renew_message_lock):
        first._expiry = _now() + timedelta(seconds=60)  # as if that clock were slow
        with pytest.raises(MessageLockLostError):
            lose(first)


def renewed_locks_hold(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack, lock_s=RENEWED_LOCK_S)
    sender, receiver = stage.sender(), stage.receiver()
    sender.send_messages(ServiceBusMessage(b"x"))
    message = _one(receiver)
    for _ in range(3):
        time.sleep(RENEWED_LOCK_S / 2)
        assert receiver.renew_message_lock(message) > _now()
    receiver.complete_message(message)
    assert stage.counts()["active"] == 0


def the_lock_renewer_works(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack, lock_s=RENEWED_LOCK_S)
    failures: list[Any] = []
    renewer = stack.enter_context(
        AutoLockRenewer(60, on_lock_renew_failure=lambda _, error: failures.append(error))
    )
    stage.sender().send_messages(ServiceBusMessage(b"x"))
    receiver = stage.receiver(auto_lock_renewer=renewer)
    message = _one(receiver)
    time.sleep(RENEWED_LOCK_S * 2)
    receiver.complete_message(message)
    assert not failures


def schedules_and_cancels(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)
    sender, receiver = stage.sender(), stage.receiver()
    messages = [ServiceBusMessage(b"s%d" % number) for number in range(3)]
    due_at = _now() + timedelta(seconds=8)
    numbers = sender.schedule_messages(messages, due_at)
    assert stage.counts()["scheduled"] == 3
    sender.cancel_scheduled_messages(numbers[1])
    with (
        stage.open_client(retry_total=0) as impatient,  # the SDK takes this error for a passing one
        impatient.get_queue_sender(stage.name) as once,
        pytest.raises(MessageNotFoundError),
    ):
        once.cancel_scheduled_messages(numbers[1])
    assert receiver.receive_messages(max_wait_time=0.5) == []
    bodies = []
    for _ in range(2):
        message = _one(receiver, 20)
        assert _now() >= due_at - timedelta(milliseconds=1)
        bodies.append(_body(message))
        receiver.complete_message(message)
    assert sorted(bodies) == [b"s0", b"s2"]
    soon_at = _now() + timedelta(seconds=0.5)
    sender.send_messages(ServiceBusMessage(b"z", scheduled_enqueue_time_utc=soon_at))
    assert _body(_one(receiver)) == b"z"


def ends_are_kept(broker: BrokerProcess, stack: ExitStack) -> None:
    for dead_letter_expired in (False, True):
        stage = Stage(broker, stack, dead_letter_expired=dead_letter_expired)
        sender = stage.sender()
        for body, life_s in ((b"goes", 0.5), (b"stays", 60)):
            life = timedelta(seconds=life_s)
            sender.send_messages(ServiceBusMessage(body, time_to_live=life))
        assert stage.settles(active=1, dead=int(dead_letter_expired))
        (message,) = stage.receiver().receive_messages(5, max_wait_time=3)
        assert _body(message) == b"stays"
        assert message.time_to_live == timedelta(seconds=60)
        assert message.expires_at_utc is not None
    (dead,) = stage.receiver(sub_queue="deadletter").receive_messages(5, max_wait_time=3)
    assert dead.dead_letter_reason == "TTLExpiredException"


def poison_ends_among_the_dead(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack, max_delivery_count=4)
    receiver = stage.receiver()
    stage.sender().send_messages(ServiceBusMessage(b"poison"))
    for _ in range(4):
        receiver.abandon_message(_one(receiver))
    dead = _one(stage.receiver(sub_queue="deadletter"))
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.delivery_count == 4


def duplicates_are_dropped(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)
    sender = stage.sender()
    for body in (b"first", b"second"):
        sender.send_messages(ServiceBusMessage(body, message_id="same"))
    assert stage.counts()["active"] == 1
    receiver = stage.receiver()
    message = _one(receiver)
    assert _body(message) == b"first"
    receiver.complete_message(message)
    sender.send_messages(ServiceBusMessage(b"third", message_id="same"))
    assert stage.counts()["active"] == 0


def peeking_goes_on_where_it_stopped(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)
    receiver = stage.receiver()
    assert receiver.peek_messages(5) == []
    stage.sender().send_messages([ServiceBusMessage(b"%d" % number) for number in range(8)])
    seen = receiver.peek_messages(5) + receiver.peek_messages(5)
    assert [_body(message) for message in seen] == [b"%d" % number for number in range(8)]
    assert stage.counts() == {"active": 8, "locked": 0, "scheduled": 0, "dead": 0}


def receive_and_delete_leaves_nothing(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)
    stage.sender().send_messages([ServiceBusMessage(b"x") for _ in range(8)])
    receiver = stage.receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    received = 0
    while received < 8:
        some = receiver.receive_messages(8, max_wait_time=3)
        assert some
        received += len(some)
    assert stage.counts()["active"] == 0


def a_closed_receiver_gives_back_what_it_prefetched(
    broker: BrokerProcess, stack: ExitStack
) -> None:
    stage = Stage(broker, stack, lock_s=60)
    stage.sender().send_messages([ServiceBusMessage(b"%d" % number) for number in range(60)])
    with stage.client.get_queue_receiver(stage.name, prefetch_count=40, max_wait_time=2) as first:
        for taken, message in enumerate(first, start=1):
            first.complete_message(message)
            if taken == 20:
                break
    second, received = stage.receiver(), 0
    while some := second.receive_messages(100, max_wait_time=1):
        for message in some:
            assert message.delivery_count == 0
            second.complete_message(message)
        received += len(some)
    assert received == 40


def wrong_keys_and_names_are_refused(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)
    wrong = broker.connection_string.replace(KEY, "another key")
    with (
        ServiceBusClient.from_connection_string(wrong, retry_total=0) as client,
        pytest.raises(ServiceBusAuthenticationError),
    ):
        client.get_queue_sender(stage.name).__enter__()
    with stage.open_client(retry_total=0) as client:
        for opener in (client.get_queue_sender, client.get_queue_receiver):
            with pytest.raises(MessagingEntityNotFoundError, match="nope"):
                opener("nope").__enter__()


def too_large_is_too_large(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)
    sender = stage.sender()
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(b"x" * 300_000))
    batch = sender.create_message_batch()
    with pytest.raises(MessageSizeExceededError):
        for _ in range(6):
            batch.add_message(ServiceBusMessage(b"x" * 50_000))
    sender.send_messages(batch)
    assert stage.counts()["active"] == 5
    with (
        stage.open_client(retry_total=0) as impatient,
        impatient.get_queue_sender(stage.name) as once,
    ):
        with pytest.raises(MessageSizeExceededError):
            once.cancel_scheduled_messages(list(range(10**9, 10**9 + 40_000)))
        with pytest.raises(MessageNotFoundError):
            once.cancel_scheduled_messages(list(range(10**9, 10**9 + 4_000)))


def thirty_receivers_share_without_doubles(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack, lock_s=60)
    total = 300
    seen: Counter[bytes] = Counter()
    done = threading.Event()

    def work(receiver: ServiceBusReceiver) -> None:
        with receiver:  # which waits longer for its link than a receive of half a second does
            while not done.is_set():
                for message in receiver.receive_messages(1, max_wait_time=0.5):
                    seen[_body(message)] += 1
                    receiver.complete_message(message)

    with ThreadPoolExecutor(30) as pool:
        workers = [
            pool.submit(work, stage.client.get_queue_receiver(stage.name)) for _ in range(30)
        ]
        try:
            sender = stage.sender()
            for at in range(0, total, 100):
                sender.send_messages([ServiceBusMessage(b"%d" % (at + n)) for n in range(100)])
            end_s = time.monotonic() + 60
            while sum(seen.values()) < total and time.monotonic() < end_s:
                time.sleep(0.05)
        finally:
            done.set()
    for worker in workers:
        worker.result()
    assert len(seen) == total
    assert set(seen.values()) == {1}


# aio ----------------------------------------------------------------------------------------


def aio_does_all_of_it(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack)

    async def play() -> None:
        async with (
            sb_aio.ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender(stage.name) as sender,
            client.get_queue_receiver(stage.name) as receiver,
            client.get_queue_receiver(stage.name, sub_queue="deadletter") as dead,
        ):

            async def one(wait_s: float = 5) -> ServiceBusReceivedMessage:
                (message,) = await receiver.receive_messages(1, max_wait_time=wait_s)
                return message

            await sender.send_messages([ServiceBusMessage(b"%d" % number) for number in range(30)])
            bodies: list[int] = []
            while len(bodies) < 30:
                for message in await receiver.receive_messages(10, max_wait_time=5):
                    await receiver.complete_message(message)
                    bodies.append(int(_body(message)))
            assert sorted(bodies) == list(range(30))
            await sender.send_messages(ServiceBusMessage(b"a"))
            await receiver.abandon_message(await one())
            message = await one()
            assert message.delivery_count == 1
            assert await receiver.renew_message_lock(message) > _now()
            await receiver.dead_letter_message(message, reason="aio", error_description="d")
            (buried,) = await dead.receive_messages(1, max_wait_time=5)
            assert buried.dead_letter_reason == "aio"
            await dead.complete_message(buried)
            due_at = _now() + timedelta(seconds=5)
            messages = [ServiceBusMessage(b"s"), ServiceBusMessage(b"t")]
            numbers = await sender.schedule_messages(messages, due_at)
            await sender.cancel_scheduled_messages(numbers[0])
            message = await one(20)
            assert _body(message) == b"t"
            await receiver.complete_message(message)
            await sender.send_messages(ServiceBusMessage(b"e"))
            lost = await one()
            again = await one()
            lost._expiry = _now() + timedelta(seconds=60)
            with pytest.raises(MessageLockLostError):
                await receiver.complete_message(lost)
            await receiver.complete_message(again)
            assert await receiver.peek_messages(3) == []

    asyncio.run(play())
    assert stage.counts()["active"] == 0


def aio_lock_renewer_works(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack, lock_s=RENEWED_LOCK_S)
    failures: list[Any] = []

    async def fail(_: Any, error: Any) -> None:
        failures.append(error)

    async def play() -> None:
        async with (
            sb_aio.ServiceBusClient.from_connection_string(broker.connection_string) as client,
            sb_aio.AutoLockRenewer(60, on_lock_renew_failure=fail) as renewer,
            client.get_queue_sender(stage.name) as sender,
            client.get_queue_receiver(stage.name, auto_lock_renewer=renewer) as receiver,
        ):
            await sender.send_messages(ServiceBusMessage(b"x"))
            (message,) = await receiver.receive_messages(1, max_wait_time=5)
            await asyncio.sleep(RENEWED_LOCK_S * 2)
            await receiver.complete_message(message)

    asyncio.run(play())
    assert not failures


def aio_thirty_receivers_share_without_doubles(broker: BrokerProcess, stack: ExitStack) -> None:
    stage = Stage(broker, stack, lock_s=60)
    total = 300
    seen: Counter[bytes] = Counter()

    async def play() -> None:
        async with sb_aio.ServiceBusClient.from_connection_string(
            broker.connection_string
        ) as client:

            async def work() -> None:
                async with client.get_queue_receiver(stage.name) as receiver:
                    while seen.total() < total:
                        for message in await receiver.receive_messages(1, max_wait_time=0.5):
                            seen[_body(message)] += 1
                            await receiver.complete_message(message)

            workers = [asyncio.create_task(work()) for _ in range(30)]
            async with client.get_queue_sender(stage.name) as sender:
                for at in range(0, total, 100):
                    some = [ServiceBusMessage(b"%d" % (at + number)) for number in range(100)]
                    await sender.send_messages(some)
            await asyncio.gather(*workers)

    asyncio.run(asyncio.wait_for(play(), 60))
    assert len(seen) == total
    assert set(seen.values()) == {1}
    assert stage.counts()["active"] == 0


SCENARIOS: list[Scenario] = [
    thirty_receivers_share_without_doubles,
    aio_thirty_receivers_share_without_doubles,
    the_lock_renewer_works,
    aio_lock_renewer_works,
    batches_and_properties_arrive_whole,
    abandoned_messages_come_again,
    dead_letters_say_why,
    a_lock_that_runs_out_is_lost,
    renewed_locks_hold,
    schedules_and_cancels,
    ends_are_kept,
    poison_ends_among_the_dead,
    duplicates_are_dropped,
    peeking_goes_on_where_it_stopped,
    receive_and_delete_leaves_nothing,
    a_closed_receiver_gives_back_what_it_prefetched,
    wrong_keys_and_names_are_refused,
    too_large_is_too_large,
    aio_does_all_of_it,
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("sb"), {}, sas_key=KEY)
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def outcomes(broker: BrokerProcess) -> Iterator[dict[Scenario, Future[None]]]:
    def play(scenario: Scenario) -> None:
        with ExitStack() as stack:
            scenario(broker, stack)

    with ThreadPoolExecutor(8) as pool:
        yield {scenario: pool.submit(play, scenario) for scenario in SCENARIOS}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_sdk(scenario: Scenario, outcomes: dict[Scenario, Future[None]]) -> None:
    outcomes[scenario].result(timeout=120)
