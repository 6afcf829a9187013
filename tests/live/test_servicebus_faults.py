"""Test the Service Bus queue with cuts, throttling, duplicates and a killed broker.

The SDK leaves the socket of a broken connection open, so the adapter has to close it. The tests use
garbage collection to get a ResourceWarning for open sockets, and the warning is an error here.
"""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broadside.exchange.azure.service_bus import ServiceBusAddress, ServiceBusQueue
from broadside.exchange.azure.wire import Bounds
from broadside.exchange.ports import (
    Delivery,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    LockLost,
    Outgoing,
)
from broadside.lab.broker_process import BrokerProcess
from broadside.lab.servicebus.queues import QueueSettings
from tests.live.started import started

pytestmark = pytest.mark.live

KEY = "a key nobody may read"
BOUNDS = Bounds(backoff_s=0.2)
# Use a long lock, so that no message returns because it expires.
LONG_LOCK_S = 120.0


def outgoing(message_id: str, *, after_s: float | None = None) -> Outgoing:
    now = datetime.now(UTC)
    return Outgoing(
        body=message_id.encode(),
        message_id=message_id,
        expires_at=now + timedelta(minutes=5),
        enqueue_at=None if after_s is None else now + timedelta(seconds=after_s),
    )


@pytest.fixture(autouse=True)
def sockets_collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with started(BrokerProcess(tmp_path_factory.mktemp("faults"), {}, sas_key=KEY)) as broker:
        yield broker


@pytest.fixture
def name(broker: BrokerProcess) -> str:
    name = f"q{uuid4().hex[:8]}"
    broker.ask("create", queue=name, lock_s=LONG_LOCK_S)
    return name


def opened(broker: BrokerProcess, name: str, bounds: Bounds = BOUNDS) -> ServiceBusQueue:
    address = ServiceBusAddress(queue=name, connection_string=broker.connection_string)
    return ServiceBusQueue(address, bounds=bounds)


@asynccontextmanager
async def closing(*queues: ServiceBusQueue) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.gather(*(queue.close() for queue in queues))


@pytest.fixture
async def queue(broker: BrokerProcess, name: str) -> AsyncIterator[ServiceBusQueue]:
    queue = opened(broker, name)
    async with closing(queue):
        yield queue


async def received(queue: ServiceBusQueue) -> Delivery:
    delivery = await queue.receive(10)
    assert delivery is not None
    return delivery


async def test_ping_peeks_no_message(broker: BrokerProcess, queue: ServiceBusQueue) -> None:
    """Test several pings, because peeked messages cost credits."""
    await queue.send([outgoing(str(number)) for number in range(3)])
    delivery = await received(queue)
    await queue.dead_letter(delivery, "reason", "description")
    before = broker.ask("asked")
    for _ in range(5):
        await queue.ping()
    after = broker.ask("asked")
    assert after["peek-message"] - before.get("peek-message", 0) == 5
    assert after.get("told", 0) == before.get("told", 0)


IDLE_LINK = (
    "The link 'G2:7223832:x' is force detached by the broker due to errors occurred in "
    "publisher(link164614). Detach origin: AmqpMessagePublisher.IdleTimerExpired: Idle timeout: "
    "00:10:00."
)
IDLE_CONNECTION = (
    "The connection was closed by container 'G2' because it did not have any active links in the "
    "past 300000 milliseconds."
)
DETACHED = ("amqp:link:detach-forced", IDLE_LINK)
# Nodes with detached links. The texts are those of the service
# (learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-troubleshoot).
INTERRUPTIONS: dict[str, Callable[[BrokerProcess, str], int]] = {
    "cut": lambda broker, _: broker.ask("drop")["dropped"],
    "forced": lambda broker, _: broker.ask(
        "close", condition="amqp:connection:forced", text=IDLE_CONNECTION
    )["closed"],
    "management": lambda broker, name: detach(broker, f"{name}/$management"),
    "dead-management": lambda broker, _: detach(broker, "$deadletterqueue/$management"),
    "cbs": lambda broker, _: detach(broker, "$cbs"),
    "links": lambda broker, name: detach(broker, name),
    "everything": lambda broker, _: detach(broker, ""),
}


def detach(broker: BrokerProcess, node: str) -> int:
    condition, text = DETACHED
    count: int = broker.ask("detach", node=node, condition=condition, text=text)["detached"]
    return count


@pytest.mark.parametrize("how", INTERRUPTIONS)
async def test_calls_survive_interruptions(broker: BrokerProcess, name: str, how: str) -> None:
    """Test that the next call will succeed after an interruption.

    The interruptions are a cut, a closed idle connection and detached idle links of senders,
    receivers, requests and tokens.
    """
    queue = opened(broker, name, Bounds(backoff_s=0.05, attempt_s=8))
    async with closing(queue):
        count = await _before_every_call(
            queue, broker, name, lambda: INTERRUPTIONS[how](broker, name)
        )
    assert count > 0, "no connection was interrupted"


async def _before_every_call(
    queue: ServiceBusQueue, broker: BrokerProcess, name: str, interrupt: Callable[[], int]
) -> int:
    count = 0

    def cut() -> None:
        nonlocal count
        count += interrupt()

    await queue.send([outgoing("a"), outgoing("b")])
    cut()
    await queue.send([outgoing("c")])
    stored, poison = await received(queue), await received(queue)
    cut()
    stored = await queue.renew(stored)
    cut()
    await queue.complete(stored)
    cut()
    await queue.dead_letter(poison, "Test", "set aside")
    cut()
    given_back = await received(queue)
    cut()
    await queue.abandon(given_back)
    [letter] = await queue.dead_letters()
    cut()
    assert [item.message_id for item in await queue.dead_letters()] == [letter.message_id]
    cut()
    await queue.ping()
    [number] = await queue.send([outgoing("later", after_s=100)])
    cut()
    [other] = await queue.send([outgoing("later still", after_s=100)])
    cut()
    assert await queue.cancel([number]) == 1
    cut()
    # A message is missing, so the call has to read the queue.
    assert await queue.cancel([number, other]) == 1
    cut()
    assert (await queue.counts()).dead_count == 1
    counts = broker.ask("counts", queue=name)
    assert counts == {"active": 1, "locked": 0, "scheduled": 0, "dead": 1}
    return count


async def test_waiting_receiver_survives_cut_connection(
    queue: ServiceBusQueue, broker: BrokerProcess, name: str
) -> None:
    waiting = asyncio.create_task(queue.receive(30))
    sender = opened(broker, name)
    async with closing(sender):
        # In most cases it will be waiting now.
        await asyncio.sleep(1.5)
        async with asyncio.timeout(20):
            while (dropped := broker.ask("drop")["dropped"]) == 0:  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.1)
        assert dropped == 1
        await sender.send([outgoing("a")])
        delivery = await waiting
    assert delivery is not None
    await queue.complete(delivery)


async def test_retries_throttled_calls(
    queue: ServiceBusQueue, broker: BrokerProcess, name: str
) -> None:
    [number] = await queue.send([outgoing("first", after_s=100)])
    for calls in (
        lambda: queue.send([outgoing("now")]),
        lambda: queue.send([outgoing("later", after_s=100)]),
        lambda: queue.cancel([number]),
    ):
        broker.ask("busy", for_s=0.6)
        await calls()
    counts = broker.ask("counts", queue=name)
    assert (counts["active"], counts["scheduled"]) == (1, 1)


async def test_permanently_busy_service_is_unavailable(broker: BrokerProcess, name: str) -> None:
    hasty = opened(broker, name, Bounds(retries_max_count=1, backoff_s=0.1))
    broker.ask("busy", for_s=60)
    try:
        async with closing(hasty):
            for message in (outgoing("a"), outgoing("b", after_s=100)):
                with pytest.raises(ExchangeUnavailable, match=f"'{name}'.*throttled"):
                    await hasty.send([message])
            with pytest.raises(ExchangeUnavailable, match="throttled"):
                await hasty.cancel([1])
    finally:
        broker.ask("busy", for_s=0)


async def test_waits_as_long_as_the_busy_service_requires(broker: BrokerProcess, name: str) -> None:
    """Test that the pause from the service's text will be used instead of the short default."""
    hasty = opened(broker, name, Bounds(backoff_s=0.01, retries_max_count=6))
    async with closing(hasty):
        await hasty.send([outgoing("warm")])
        broker.ask("busy", for_s=1.5, wait_s=2.0)
        await hasty.send([outgoing("a")])
        assert broker.ask("busy", for_s=0)["refused"] == 1
        broker.ask("busy", for_s=1.5, wait_s=0.0)
        # The adapter's own pauses may end before.
        with suppress(ExchangeUnavailable):
            await hasty.send([outgoing("b")])
        assert broker.ask("busy", for_s=0)["refused"] > 1


async def test_reports_full_queue_and_sends_when_space_is_free(
    broker: BrokerProcess, name: str
) -> None:
    broker.ask("create", queue=f"{name}-small", lock_s=LONG_LOCK_S, max_size_bytes=100)
    queue = opened(broker, f"{name}-small")
    async with closing(queue):
        await queue.send([outgoing("a" * 60)])
        for message in (outgoing("b"), outgoing("c", after_s=100)):
            with pytest.raises(ExchangeUnavailable, match=r"full.*maximum entity size"):
                await queue.send([message])
        await queue.complete(await received(queue))
        await queue.send([outgoing("b")])
        assert (await received(queue)).message_id == "b"


async def test_settlements_report_lost_lock(
    queue: ServiceBusQueue, broker: BrokerProcess, name: str
) -> None:
    """Test that the same link delivers the message again if a lost lock is reported."""
    await queue.send([outgoing("a")])
    settlements: list[Callable[[Delivery], Any]] = [
        queue.complete,
        queue.abandon,
        queue.renew,
        lambda delivery: queue.dead_letter(delivery, "Test", "lost"),
    ]
    for count, settle in enumerate(settlements, start=1):
        delivery = await received(queue)
        assert delivery.delivery_count == count
        broker.ask("lose", queue=name)
        with pytest.raises(LockLost, match="message a"):
            await settle(delivery)
    assert broker.ask("counts", queue=name)["active"] == 1


@pytest.mark.parametrize("redirect", ["amqp:connection:redirect", "amqp:link:redirect"])
async def test_reconnects_by_name_after_namespace_failover(
    broker: BrokerProcess, name: str, redirect: str
) -> None:
    """Test a failover, which redirects all clients.

    The SDK and the adapter do not follow the redirect, because the name of the namespace will lead
    to the other region after the failover. Until then the queue will not be available.
    """
    queue = opened(broker, name, Bounds(backoff_s=0.05, retries_max_count=3))
    async with closing(queue):
        await queue.send([outgoing("a"), outgoing("b")])
        stored = await received(queue)
        before = broker.ask("asked").get("redirected", 0)
        broker.ask("move", condition=redirect, for_s=60.0)
        broker.ask("close", condition="amqp:connection:forced", text="The namespace moves.")
        calls: list[Callable[[], Any]] = [
            lambda: queue.receive(1),
            lambda: queue.send([outgoing("c")]),
            queue.ping,
        ]
        lines = []
        try:
            for call in calls:
                with pytest.raises(ExchangeUnavailable) as away:
                    await call()
                lines.append(str(away.value))
        finally:
            broker.ask("move", condition=redirect, for_s=0.0)
        assert broker.ask("asked").get("redirected", 0) - before >= len(calls)
        # The SDK may see only that the connection was closed, and report it as lost.
        if redirect == "amqp:link:redirect":
            assert any("elsewhere" in item for item in lines), lines
        await queue.complete(stored)
        assert (await received(queue)).message_id == "b"
        await queue.ping()


async def test_partitioned_queue_sends_and_cancels(broker: BrokerProcess, name: str) -> None:
    """Test sixteen partitions with separate sequence numbers.

    The upper 16 bits are the partition.
    """
    broker.ask("create", queue=f"{name}-p", lock_s=LONG_LOCK_S, partitions_count=16)
    queue = opened(broker, f"{name}-p")
    async with closing(queue):
        numbers = await queue.send([outgoing(f"s{i}", after_s=100) for i in range(40)])
        assert len({number >> 48 for number in numbers}) > 4
        assert list(numbers) != sorted(numbers)
        assert await queue.cancel(numbers[:10]) == 10
        # Five of them are missing. The others are found and cancelled.
        assert await queue.cancel(numbers[5:30]) == 20
        await queue.send([outgoing(f"a{i}") for i in range(30)])
        counts = broker.ask("counts", queue=f"{name}-p")
        assert (counts["active"], counts["scheduled"]) == (30, 10)
        deliveries = [await received(queue) for _ in range(30)]
        assert {item.message_id for item in deliveries} == {f"a{i}" for i in range(30)}
        for delivery in deliveries[:3]:
            await queue.dead_letter(delivery, "Test", "set aside")
        for delivery in deliveries[3:]:
            await queue.complete(delivery)
        letters = await queue.dead_letters()
        ends_at = datetime.now(UTC) + timedelta(minutes=1)
        assert all([await queue.resend(item.sequence_number, ends_at) for item in letters])
        assert len({(await received(queue)).message_id for _ in letters}) == len(letters) == 3


async def test_receives_duplicate_messages(
    queue: ServiceBusQueue, broker: BrokerProcess, name: str
) -> None:
    broker.ask("twice", queue=name, on=True)
    await queue.send([outgoing("a")])
    first, second = await received(queue), await received(queue)
    assert first.message_id == second.message_id == "a"
    for delivery in (first, second):
        await queue.complete(delivery)
    assert await queue.receive(0) is None


async def test_cancelled_receive_locks_no_message(
    queue: ServiceBusQueue, broker: BrokerProcess, name: str
) -> None:
    other, sender = opened(broker, name), opened(broker, name)
    async with closing(other, sender):
        await sender.send([outgoing("warm")])
        await queue.complete(await received(queue))
        for attempt in range(3):
            waiting = asyncio.create_task(queue.receive(30))
            await asyncio.sleep(0.1 * attempt)
            waiting.cancel()
            await sender.send([outgoing(f"a{attempt}")])
            with pytest.raises(asyncio.CancelledError):
                await waiting
            # This is long before the expiry of the lock.
            delivery = await received(other)
            assert delivery.message_id == f"a{attempt}"
            await other.complete(delivery)


async def test_close_returns_prefetched_messages(
    queue: ServiceBusQueue, broker: BrokerProcess, name: str
) -> None:
    other = opened(broker, name)
    waiting = asyncio.create_task(other.receive(30))
    await asyncio.sleep(1.0)
    waiting.cancel()
    await queue.send([outgoing("a")])
    await other.close()
    assert (await received(queue)).message_id == "a"


async def test_loses_no_message_if_the_broker_is_killed(tmp_path: Path) -> None:
    """Test that ten receivers and a sender can continue after a crash of the broker.

    Acknowledged messages have been stored. The SDK sends the others again. A message may be
    delivered twice but should never be lost.
    """
    broker = BrokerProcess(tmp_path, {"jobs": QueueSettings(lock_s=3.0)}, sas_key=KEY)
    broker.start()
    bounds = Bounds(backoff_s=0.2, retries_max_count=5)
    sender, holder, *workers = (opened(broker, "jobs", bounds) for _ in range(12))
    wanted = {"later", "held"} | {f"m{number}" for number in range(200)}
    completed, doubtful = set[str](), set[str]()
    done = asyncio.Event()

    async def complete(queue: ServiceBusQueue, delivery: Delivery) -> None:
        try:
            await queue.complete(delivery)
            completed.add(delivery.message_id)
        # The crash lost the response, or the lock expired. The message is delivered again.
        except LockLost:
            doubtful.add(delivery.message_id)

    async def work(queue: ServiceBusQueue) -> None:
        while not done.is_set():
            delivery = await queue.receive(0.5)
            if delivery is not None:
                await complete(queue, delivery)

    try:
        async with closing(sender, holder, *workers), asyncio.timeout(90):
            await sender.send([outgoing("later", after_s=3), outgoing("held")])
            stored = await received(holder)
            working = [asyncio.create_task(work(queue)) for queue in workers]
            for at in range(0, 200, 20):
                if at == 100:
                    broker.kill()
                    restarting = asyncio.create_task(asyncio.to_thread(broker.start))
                await sender.send([outgoing(f"m{at + number}") for number in range(20)])
            await restarting
            # The lock is stored in the journal.
            await complete(holder, stored)
            while any(broker.ask("counts", queue="jobs").values()):  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.1)
            done.set()
            await asyncio.gather(*working)
    finally:
        broker.stop()
    assert completed | doubtful == wanted
    assert len(doubtful - completed) < 10, "too many messages are in doubt"


# Refusals -----------------------------------------------------------------------------------


async def test_reports_missing_queue(broker: BrokerProcess) -> None:
    queue = opened(broker, "nope")
    calls: list[Callable[[], Any]] = [
        lambda: queue.send([outgoing("a")]),
        lambda: queue.receive(1),
        queue.dead_letters,
    ]
    async with closing(queue):
        for call in calls:
            with pytest.raises(ExchangeMisconfigured, match=r"'nope' does not exist.*_QUEUE"):
                await call()


async def test_rejected_key_error_names_role_and_hides_the_key(
    broker: BrokerProcess, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "a wrong but secret key"
    address = ServiceBusAddress(
        queue=name, connection_string=broker.connection_string.replace(KEY, wrong)
    )
    queue = ServiceBusQueue(address, bounds=Bounds(retries_max_count=0))
    requests: list[tuple[Callable[[], Any], str, str]] = [
        (lambda: queue.send([outgoing("a")]), "Send", "Sender"),
        (lambda: queue.cancel([1]), "Send", "Sender"),
        (lambda: queue.receive(1), "Listen", "Receiver"),
        (queue.dead_letters, "Listen", "Receiver"),
    ]
    async with closing(queue):
        for call, permission, role in requests:
            text = f"InvalidSignature.*CONNECTION_STRING.* right {permission},.*Data {role}"
            with pytest.raises(ExchangeMisconfigured, match=text) as caught:
                await call()
            assert "\n" not in str(caught.value)
            shown = f"{address} {address!r} {caught.value!r} {queue!r} {caplog.text}"
            assert wrong not in shown


async def test_malformed_connection_string_is_not_shown() -> None:
    queue = ServiceBusQueue(ServiceBusAddress(queue="jobs", connection_string="secret=x;nonsense"))
    with pytest.raises(ExchangeMisconfigured, match="CONNECTION_STRING") as caught:
        await queue.receive(0)
    assert "secret=x" not in str(caught.value)


async def test_unreachable_service_is_unavailable() -> None:
    string = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=p;SharedAccessKey=k;"
    address = ServiceBusAddress(
        queue="jobs", connection_string=string + "UseDevelopmentEmulator=true"
    )
    queue = ServiceBusQueue(address, bounds=Bounds(retries_max_count=0))
    async with closing(queue):
        with pytest.raises(ExchangeUnavailable, match=r"'jobs'.*Connect"):
            await queue.send([outgoing("a")])
    with pytest.raises(ExchangeUnavailable, match="closed"):
        await queue.receive(0)
