""":class:`~broadside.exchange.ports.JobQueue` on Azure Service Bus, using the Azure SDK.

Behaviour of the SDK, and additions in this module:

- SDK senders and receivers do not support concurrent calls, and you cannot use them after a call
  was cancelled. Therefore a :class:`_Link` will only run one call at a time. If the caller is
  cancelled, the SDK call continues in the background. If this call receives a message, the message
  will be abandoned.
- The SDK reconnects and retries within :class:`~broadside.exchange.azure.wire.Bounds`. If it still
  raises an error, the link will be closed and the next call will open a new connection.
- A receiver's link credit remains after a call. If a message arrives between two calls, it will be
  locked until the SDK's keep-alive releases it, within 6 s. To close a link releases its messages.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus import ServiceBusReceivedMessage as _Message
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpMessageHeader
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
)

from broadside.exchange.azure.identity import AdapterCredential, NoToken
from broadside.exchange.azure.wire import (
    AzureEndpoint,
    Bounds,
    causes_of,
    explain_certificate,
    explain_token,
    malformed,
    require_single_endpoint,
)
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.limits import check_message, message_bytes, split
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog, utc_now
from broadside.exchange.ports import (
    MESSAGE_ID_MAX_CHARS,
    MESSAGE_MAX_BYTES,
    DeadLetter,
    Delivery,
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeRefused,
    ExchangeUnavailable,
    LockLost,
    MessageTooLarge,
    Outgoing,
    QueueCounts,
)

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

# Seconds for one receive call of the SDK. You can only settle a message after it returns.
_SLICE_S: Final = 1.0
# If you use a shorter time, the SDK will return before a message can be received.
_SLICE_MIN_S: Final = 0.25
_CLOSE_S: Final = 5.0
_BATCH_MAX_COUNT: Final = 100
# Each number has 8 bytes in a request of at most MESSAGE_MAX_BYTES, and the service accepts at most
# 4,500 messages per request (github.com/Azure/azure-service-bus, issue 397). We need to split the
# list, because the SDK does not do it.
_CANCEL_MAX_COUNT: Final = 1_000
# 49 days, the largest AMQP uint.
_TTL_MAX_MS: Final = 0xFFFF_FFFF
# Larger than any sequence number of a message.
_BEHIND_ALL: Final = 2**63 - 1
# Messages per peek. The service returns no more.
_PAGE_COUNT: Final = 250
# How long to use the number of dead letters before we count again, in seconds.
COUNTED_FOR_S: Final = 60.0
# How many dead letters to lock per request when searching for one message.
_DEAD_COUNT: Final = 32
# How many dead letters to lock per request when removing them.
_PURGE_COUNT: Final = 250
_DEAD_WAIT_S: Final = 2.0

_PAUSE: Final = re.compile(r"wait ([\d.]+) seconds? and try again")
_PAUSE_MAX_S: Final = 10.0
_IDLE_CONDITIONS: Final = (b"amqp:link:detach-forced", b"amqp:connection:forced")

_SETTING: Final = "BROADSIDE_SERVICEBUS"
_SENDER_ROLE: Final = "Azure Service Bus Data Sender"
_RECEIVER_ROLE: Final = "Azure Service Bus Data Receiver"

_Handler = TypeVar("_Handler", bound=ServiceBusSender | ServiceBusReceiver)
_T = TypeVar("_T")


class _Gone(ExchangeError):
    """A scheduled message no longer exists."""


class _TokenOver(ExchangeRefused):
    """The token had expired when the service checked it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBusAddress(AzureEndpoint):
    """Queue and namespace. The endpoint ``sb://host:port`` replaces the host of the namespace.

    Attributes:
        queue: The queue name.
        namespace: Host name such as ``x.servicebus.windows.net``.
    """

    named_in_string: ClassVar[str] = "policy"
    queue: str
    namespace: str | None = None

    def __str__(self) -> str:
        of = f" of {self.namespace}" if self.namespace else ""
        return f"Service Bus queue {self.queue!r}{of}"


def open_queue(settings: FabricSettings, troubles: OutageLog | None = None) -> "ServiceBusQueue":
    """Return the queue for these settings, without a connection.

    Args:
        settings: The storage backend settings.
        troubles: Log to record outages in. None records none.

    Raises:
        ExchangeMisconfigured: A setting is missing or invalid.
    """
    secret = settings.servicebus_connection_string
    address = ServiceBusAddress(
        queue=settings.servicebus_queue,
        namespace=settings.servicebus_namespace or None,
        connection_string=secret.get_secret_value() if secret else None,
        client_id=settings.managed_identity_client_id or None,
        endpoint=settings.servicebus_endpoint or None,
        ca_file=settings.servicebus_ca_file,
    )
    if not address.queue:
        raise ExchangeMisconfigured("BROADSIDE_SERVICEBUS_QUEUE is empty; name the queue")
    require_single_endpoint(_SETTING, "NAMESPACE", address.namespace, address.connection_string)
    for name in ("endpoint", "ca_file"):
        if address.connection_string and getattr(address, name):
            raise ExchangeMisconfigured(
                f"{_SETTING}_{name.upper()} needs {_SETTING}_NAMESPACE; a connection string names "
                "its own endpoint"
            )
    return ServiceBusQueue(address, troubles=troubles)


class ServiceBusQueue:
    """One queue in a Service Bus namespace. Connections open when they are needed.

    Send, cancel, receive and dead letters have separate connections. You need the role *Azure
    Service Bus Data Sender* to send and to cancel. For all other calls, you need *Azure Service Bus
    Data Receiver*. You will also need this role to cancel many messages if some of them no longer
    exist. Lock duration, delivery limit and duplicate detection (on, at least 10 minutes) are
    settings of the queue in Azure.

    Args:
        address: The queue to use.
        bounds: Retries and time limits. None means the defaults.
        credential: The credential to use instead of ``DefaultAzureCredential``. You need to close
            it after use.
        troubles: Log to record outages in.
    """

    def __init__(
        self,
        address: ServiceBusAddress,
        *,
        bounds: Bounds | None = None,
        credential: "AsyncTokenCredential | None" = None,
        troubles: OutageLog | None = None,
    ) -> None:
        self._address = address
        self._bounds = bounds or Bounds()
        self._identity = AdapterCredential(credential)
        self._troubles = troubles or OutageLog()
        self._giving_back: set[asyncio.Task[None]] = set()
        # Cached count, and the monotonic time of the peek.
        self._dead_count: tuple[int, float] | None = None
        name, tries = address.queue, self._bounds.retries_max_count
        self._sender = self._link(_SENDER_ROLE, lambda: self._client(tries).get_queue_sender(name))
        # The SDK would retry "message not found" until the retries are exhausted. We should not
        # retry on this link.
        self._canceller = self._link(_SENDER_ROLE, lambda: self._client(0).get_queue_sender(name))
        self._receiver = self._link(
            _RECEIVER_ROLE, lambda: self._client(tries).get_queue_receiver(name)
        )
        self._dead = self._link(
            _RECEIVER_ROLE,
            lambda: self._client(tries).get_queue_receiver(
                name, sub_queue=ServiceBusSubQueue.DEAD_LETTER
            ),
        )

    # Sending --------------------------------------------------------------------------------

    async def send(self, messages: Sequence[Outgoing]) -> Sequence[int]:
        for message in messages:
            check_message(message)
        now = utc_now()
        # Messages that are not scheduled or have expired have no number.
        numbers = [0] * len(messages)
        for enqueue_at, batch in _batches(messages, now):
            sealed = [_seal(messages[at], enqueue_at or now) for at in batch]
            if enqueue_at is None:
                await self._sender.call(partial(ServiceBusSender.send_messages, message=sealed))
                continue
            schedule = partial(
                ServiceBusSender.schedule_messages, messages=sealed, schedule_time_utc=enqueue_at
            )
            given = await self._sender.call(schedule)
            for at, number in zip(batch, given, strict=True):
                numbers[at] = number
        return numbers

    async def cancel(self, sequence_numbers: Sequence[int]) -> int:
        # 0 means that the message was not scheduled.
        numbers = sorted(set(sequence_numbers) - {0})
        return sum(
            [
                await self._cancel(numbers[at : at + _CANCEL_MAX_COUNT])
                for at in range(0, len(numbers), _CANCEL_MAX_COUNT)
            ]
        )

    async def _cancel(self, numbers: Sequence[int]) -> int:
        """Cancel messages with one request.

        The service will reject the whole request if one message does not exist. This method then
        reads from the queue which messages are still scheduled, and cancels these. If all of them
        seem to be scheduled, it will split the list into halves.
        """
        try:
            cancel = partial(
                ServiceBusSender.cancel_scheduled_messages, sequence_numbers=list(numbers)
            )
            await self._patiently(cancel)
        except _Gone:
            if len(numbers) == 1:
                return 0
            left = await self._still_scheduled(numbers)
            if len(left) < len(numbers):
                return await self._cancel(left) if left else 0
            half = len(left) // 2
            return await self._cancel(left[:half]) + await self._cancel(left[half:])
        return len(numbers)

    async def _still_scheduled(self, numbers: Sequence[int]) -> list[int]:
        """Return the numbers that are still scheduled. ``numbers`` must be sorted."""
        wanted, left = set(numbers), []
        async for message in self._receive_next(self._receiver, from_number=numbers[0]):
            number = message.sequence_number or 0
            if number in wanted and message.state is ServiceBusMessageState.SCHEDULED:
                left.append(number)
            if number >= numbers[-1]:
                break
        return left

    async def _patiently(self, cancel: Callable[[ServiceBusSender], Awaitable[None]]) -> None:
        """Retry like the SDK does on other links."""
        for retry in range(1, self._bounds.retries_max_count + 1):
            with suppress(ExchangeUnavailable):
                return await self._canceller.call(cancel)
            pause_s = self._bounds.backoff_s * 2**retry
            await asyncio.sleep(min(pause_s, self._bounds.backoff_max_s))
        return await self._canceller.call(cancel)

    # Receiving ------------------------------------------------------------------------------

    async def receive(self, wait_s: float) -> Delivery | None:
        end_s = time.monotonic() + wait_s
        while True:
            slice_s = max(_SLICE_MIN_S, min(_SLICE_S, end_s - time.monotonic()))
            try:
                received = await self._receive(slice_s)
            except ExchangeUnavailable:
                # The link was broken. The second call opens a new link.
                received = await self._receive(slice_s)
            if received:
                return _delivery(received[0])
            if time.monotonic() >= end_s:
                return None

    async def _receive(self, wait_s: float) -> list[_Message]:
        receive = partial(ServiceBusReceiver.receive_messages, max_wait_time=wait_s)
        receiving = self._receiver.start(receive)
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            giving_back = asyncio.create_task(self._give_back(receiving))
            self._giving_back.add(giving_back)
            giving_back.add_done_callback(self._giving_back.discard)
            raise

    async def _give_back(self, receiving: "asyncio.Task[list[_Message]]") -> None:
        """Abandon the message that a cancelled call receives.

        Otherwise the message would stay locked for the full lock time.
        """
        with suppress(ExchangeError):
            for message in await receiving:
                await self._receiver.call(
                    partial(ServiceBusReceiver.abandon_message, message=message)
                )

    async def complete(self, delivery: Delivery) -> None:
        await self._settle(delivery, ServiceBusReceiver.complete_message)

    async def abandon(self, delivery: Delivery) -> None:
        await self._settle(delivery, ServiceBusReceiver.abandon_message)

    async def renew(self, delivery: Delivery) -> Delivery:
        until_at = await self._settle(delivery, ServiceBusReceiver.renew_message_lock)
        return replace(delivery, locked_until_at=until_at)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        bury = partial(
            ServiceBusReceiver.dead_letter_message, reason=reason, error_description=description
        )
        await self._settle(delivery, bury)

    async def _settle(
        self,
        delivery: Delivery,
        how: Callable[[ServiceBusReceiver, _Message], Awaitable[_T]],
    ) -> _T:
        message = delivery.token
        assert isinstance(message, _Message)  # noqa: S101 - our own handle
        try:
            return await self._receiver.call(lambda to: how(to, message))
        except LockLost as lost:
            raise LockLost(f"message {delivery.message_id}: {lost}") from lost

    # Dead letters and counts ----------------------------------------------------------------

    async def dead_letters(self, limit: int = 100) -> Sequence[DeadLetter]:
        return [_dead_letter(message) for message in await self._peek(self._dead, limit)]

    async def resend(self, sequence_number: int, expires_at: datetime) -> bool:
        """Send a dead letter again with a new message id.

        With the old id, duplicate detection would drop the message without an error.

        Args:
            sequence_number: Sequence number of the dead letter.
            expires_at: The new expiry time.

        Returns:
            False if there is no such dead letter.
        """

        async def send_again(letter: _Message) -> None:
            suffix = f"~{sequence_number}"
            message_id = (letter.message_id or "")[: MESSAGE_ID_MAX_CHARS - len(suffix)] + suffix
            again = Outgoing(body=_body(letter), message_id=message_id, expires_at=expires_at)
            await self.send([again])

        return await self._remove_dead(sequence_number, send_again)

    async def purge(self, sequence_number: int | None = None, *, limit: int = 1000) -> int:
        if sequence_number is not None:
            return int(await self._remove_dead(sequence_number))
        purged_count = 0
        while purged_count < limit:
            some = await self._lock_dead(min(_PURGE_COUNT, limit - purged_count))
            if not some:
                break
            for letter in some:
                # If the lock is lost, the message will remain and is received again.
                with suppress(LockLost):
                    await self._dead.call(
                        partial(ServiceBusReceiver.complete_message, message=letter)
                    )
                    purged_count += 1
        return purged_count

    async def _lock_dead(self, count: int) -> list[_Message]:
        receive = partial(
            ServiceBusReceiver.receive_messages,
            max_message_count=count,
            max_wait_time=_DEAD_WAIT_S,
        )
        return await self._dead.call(receive)

    async def _remove_dead(
        self,
        sequence_number: int,
        before: Callable[[_Message], Awaitable[None]] | None = None,
    ) -> bool:
        """Lock dead letters until the message is found, run ``before`` and remove the message.

        The other messages are released. Return False if there is no such dead letter.
        """
        peek = partial(ServiceBusReceiver.peek_messages, sequence_number=sequence_number)
        peeked = await self._dead.call(peek)
        if not peeked or peeked[0].sequence_number != sequence_number:
            return False
        messages: list[_Message] = []
        try:
            while not messages or messages[-1].sequence_number != sequence_number:
                some = await self._lock_dead(_DEAD_COUNT)
                if not some:
                    raise ExchangeUnavailable(
                        f"{self._address}: dead letter {sequence_number} is locked by another "
                        "receiver; try again when that lock has expired"
                    )
                messages += sorted(some, key=lambda item: item.sequence_number == sequence_number)
            if before is not None:
                await before(messages[-1])
            await self._dead.call(
                partial(ServiceBusReceiver.complete_message, message=messages[-1])
            )
            messages.pop()
        finally:
            for message in messages:
                # If this fails, the lock will expire by itself.
                with suppress(ExchangeError):
                    await self._dead.call(
                        partial(ServiceBusReceiver.abandon_message, message=message)
                    )
        return True

    async def ping(self) -> None:
        """Peek dead letters from a number after the last one, so that no message is returned.

        This uses the link for dead letters, which a coordinator needs anyway.
        """
        await self._dead.call(
            lambda to: to.peek_messages(max_message_count=1, sequence_number=_BEHIND_ALL)
        )

    async def counts(self) -> QueueCounts:
        """Count the dead letters, at most once a minute. The count is None if it exceeds one page.

        The other counts are always None. A peek costs one credit per message. A Standard namespace
        has a thousand credits per second, and a fleet needs them during a burst. To count 6,000
        scheduled messages would use the credits of six seconds. The service itself has a count, but
        reading it requires the Manage right.
        """
        now_s = asyncio.get_running_loop().time()
        if self._dead_count is None or now_s >= self._dead_count[1] + COUNTED_FOR_S:
            count = len(await self._peek(self._dead, _PAGE_COUNT))
            self._dead_count = count, now_s
        count = self._dead_count[0]
        return QueueCounts(
            active_count=None,
            scheduled_count=None,
            dead_count=count if count < _PAGE_COUNT else None,
        )

    async def _peek(self, link: "_Link[ServiceBusReceiver]", limit: int) -> list[_Message]:
        """Return the first messages by sequence number, including locked and scheduled messages."""
        messages: list[_Message] = []
        async for message in self._receive_next(link, page_count=min(_PAGE_COUNT, limit)):
            messages.append(message)
            if len(messages) == limit:
                break
        return messages

    async def _receive_next(
        self,
        link: "_Link[ServiceBusReceiver]",
        *,
        from_number: int = 1,
        page_count: int = _PAGE_COUNT,
    ) -> AsyncIterator[_Message]:
        number = from_number
        while True:
            peek = partial(
                ServiceBusReceiver.peek_messages,
                max_message_count=page_count,
                sequence_number=number,
            )
            if not (page := await link.call(peek)):
                return
            for message in page:
                yield message
            number = (page[-1].sequence_number or 0) + 1

    # Connections ----------------------------------------------------------------------------

    async def close(self) -> None:
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=_CLOSE_S)
        links = (self._sender, self._canceller, self._receiver, self._dead)
        await asyncio.gather(*(link.close() for link in links))
        await self._identity.close()

    def _link(self, role: str, make: Callable[[], _Handler]) -> "_Link[_Handler]":
        explain = lambda error: _explain(error, self._address, role)  # noqa: E731
        return _Link(make, explain, self._bounds.call_s, self._troubles)

    def _client(self, retries_max_count: int) -> ServiceBusClient:
        """Return a factory for senders and receivers. It has no connection."""
        address, bounds = self._address, self._bounds
        options: dict[str, Any] = {
            "retry_total": retries_max_count,
            "retry_backoff_factor": bounds.backoff_s,
            "retry_backoff_max": bounds.backoff_max_s,
            "try_timeout": bounds.attempt_s,
            "transport_type": TransportType.Amqp,
        }
        if address.connection_string:
            try:
                return ServiceBusClient.from_connection_string(address.connection_string, **options)
            except ValueError as error:
                raise malformed(_SETTING) from error
        if address.endpoint:
            options["custom_endpoint_address"] = address.endpoint
        if address.ca_file:
            options["connection_verify"] = str(address.ca_file)
        credential = self._identity.credential(address.client_id)
        return ServiceBusClient(address.namespace or "", credential, **options)


class _Link(Generic[_Handler]):
    """One sender or receiver of the SDK. The first call opens it, and calls run one at a time.

    Args:
        make: Creates the sender or receiver.
        explain: Maps an SDK error.
        call_s: Time limit for a call with all its attempts, in seconds.
        troubles: Log to record outages in.
    """

    def __init__(
        self,
        make: Callable[[], _Handler],
        explain: Callable[[Exception], ExchangeError],
        call_s: float,
        troubles: OutageLog,
    ) -> None:
        self._make = make
        self._explain = explain
        self._call_s = call_s
        self._troubles = troubles
        self._handler: _Handler | None = None
        self._lock = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def call(self, work: Callable[[_Handler], Awaitable[_T]]) -> _T:
        """Run ``work`` with an open handler. It runs to its end even if the caller is cancelled."""
        return await asyncio.shield(self.start(work))

    def start(self, work: Callable[[_Handler], Awaitable[_T]]) -> "asyncio.Task[_T]":
        task = asyncio.create_task(self._carry_out(work))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        # We need to read the exception, because asyncio would log it as unhandled.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _carry_out(self, work: Callable[[_Handler], Awaitable[_T]]) -> _T:
        async with self._lock:
            if self._closed:
                raise ExchangeUnavailable("the queue was closed at this end")
            try:
                return await self._attempt(work)
            except _TokenOver:
                # The token expired during the request, for example because this host was
                # suspended. We can retry using a new token.
                return await self._attempt(work)

    async def _attempt(self, work: Callable[[_Handler], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout(self._call_s):
                if self._handler is None:
                    self._handler = self._watched(self._make())
                elif _is_broken(self._handler):
                    await self._handler._close_handler()  # type: ignore[no-untyped-call]
                # This opens the handler if it is not open.
                await self._handler.__aenter__()
                done = await work(self._handler)
                self._troubles.record_success(OutageKind.QUEUE_AWAY)
                return done
        except Exception as error:
            explained = self._explain(error)
            # The SDK was interrupted and did not report this failure.
            if isinstance(error, TimeoutError):
                self._troubles.failed(OutageKind.QUEUE_AWAY)
            if not isinstance(explained, (LockLost, MessageTooLarge, _Gone)):
                await self._drop()
            raise explained from error

    def _watched(self, handler: _Handler) -> _Handler:
        """Patch the handler to record failed attempts and to prevent useless retries.

        Only a private method of the SDK shows that an attempt failed and is repeated. The SDK would
        also retry after a final error or without a token. The patch raises such errors at once.
        """
        handle = handler._handle_exception

        async def handle_and_note(error: Exception) -> Exception:
            explained = self._explain(error)
            has_no_token = any(isinstance(cause, NoToken) for cause in causes_of(error))
            if isinstance(explained, ExchangeMisconfigured) or has_no_token:
                raise error
            if isinstance(explained, ExchangeUnavailable) and not _was_idle(error):
                self._troubles.failed(OutageKind.QUEUE_AWAY)
            if _is_broken_link(error):
                error = ServiceBusConnectionError(message=str(error), error=error)
            handled: Exception = await handle(error)  # type: ignore[no-untyped-call]
            await asyncio.sleep(_requested_pause_s(error))
            if _is_broken(handler):
                await handler._close_handler()  # type: ignore[no-untyped-call]
            return handled

        close_handler = handler._close_handler

        async def close_with_socket() -> None:
            """Close the socket too. The SDK (7.14) leaves it open if a closing frame fails."""
            connection = getattr(handler._handler, "_connection", None)
            try:
                await close_handler()  # type: ignore[no-untyped-call]
            finally:
                if connection is not None:
                    await connection._transport.close()

        handler._handle_exception = handle_and_note  # type: ignore[method-assign]  # see above
        handler._close_handler = close_with_socket  # type: ignore[method-assign]
        return handler

    async def close(self) -> None:
        """Wait for running calls for a limited time, then release the messages of the link."""
        self._closed = True
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSE_S)
        for call in list(self._calls):
            call.cancel()
        await self._drop()

    async def _drop(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            # We do not use the handler after this, so we can ignore the error.
            with suppress(Exception):
                await asyncio.wait_for(handler.close(), _CLOSE_S)


# Messages -----------------------------------------------------------------------------------


def _batches(
    messages: Sequence[Outgoing], now: datetime
) -> Iterator[tuple[datetime | None, list[int]]]:
    """Yield groups of messages that can be sent together, as ``(enqueue time, indices)``.

    A time of None means now. Expired messages are omitted.
    """
    by_instant: dict[datetime | None, list[int]] = {}
    for at, message in enumerate(messages):
        later = message.enqueue_at is not None and message.enqueue_at > now
        if message.expires_at > now:
            by_instant.setdefault(message.enqueue_at if later else None, []).append(at)
    for enqueue_at, indices in by_instant.items():
        for batch in split(
            indices, lambda at: message_bytes(messages[at]), MESSAGE_MAX_BYTES, _BATCH_MAX_COUNT
        ):
            yield enqueue_at, batch


def _seal(message: Outgoing, from_at: datetime) -> ServiceBusMessage:
    """Return the SDK message with a time to live that starts at ``from_at``.

    The SDK's own setter truncates to whole seconds, so a time below one second would become zero.
    """
    sealed = ServiceBusMessage(message.body, message_id=message.message_id)
    life_ms = max(1, round((message.expires_at - from_at) / timedelta(milliseconds=1)))
    sealed.raw_amqp_message.header = AmqpMessageHeader(time_to_live=min(life_ms, _TTL_MAX_MS))
    return sealed


def _body(message: _Message) -> bytes:
    try:
        return b"".join(message.body)
    except TypeError:
        # Another sender used a value or a sequence as the body.
        return b""


def _delivery(message: _Message) -> Delivery:
    return Delivery(
        body=_body(message),
        message_id=str(message.message_id or ""),
        delivery_count=(message.delivery_count or 0) + 1,
        locked_until_at=message.locked_until_utc or utc_now(),
        token=message,
    )


def _dead_letter(message: _Message) -> DeadLetter:
    return DeadLetter(
        sequence_number=message.sequence_number or 0,
        body=_body(message),
        message_id=str(message.message_id or ""),
        reason=message.dead_letter_reason or "",
        description=message.dead_letter_error_description or "",
    )


# Errors -------------------------------------------------------------------------------------


def _was_idle(error: Exception) -> bool:
    """Return True if the service closed a link or connection because it was idle."""
    conditions = [getattr(cause, "condition", None) for cause in causes_of(error)]
    return any(getattr(text, "value", text) in _IDLE_CONDITIONS for text in conditions)


def _requested_pause_s(error: Exception) -> float:
    """Return the pause in seconds that a throttling service requests in the error text."""
    match = _PAUSE.search(str(error))
    return min(float(match[1]), _PAUSE_MAX_S) if match else 0.0


def _is_broken(handler: ServiceBusSender | ServiceBusReceiver) -> bool:
    """Return True if a link of an open handler was closed by the service.

    This can be the link for messages, requests or tokens. Without the link for tokens the SDK would
    wait forever.
    """
    client: Any = handler._handler
    if client is None or client._session is None:
        return False
    states = [request._mgmt_link.state for request in client._mgmt_links.values()]
    states += [part.state for part in (client._cbs_authenticator, client._link) if part]
    return any(state.name in ("ERROR", "DETACHED") for state in states)


def _is_broken_link(error: Exception) -> bool:
    """Return True if a link or connection was closed during a call.

    The SDK raises a plain ``ValueError`` for it and does not retry.
    """
    return isinstance(error, ValueError) and not isinstance(
        error, (MessageAlreadySettled, MessageSizeExceededError)
    )


def _explain_refusal(address: ServiceBusAddress, role: str, text: str) -> ExchangeRefused:
    """Return an error with the right or the role that is needed."""
    fix = f"give it the role '{role}' on the queue"
    if address.connection_string:
        right = "Send" if role == _SENDER_ROLE else "Listen"
        fix = (
            "copy BROADSIDE_SERVICEBUS_CONNECTION_STRING again from the portal, from a policy "
            f"with the right {right}, or use an identity with the role '{role}'"
        )
    kind = _TokenOver if "ExpiredToken" in text else ExchangeRefused
    return kind(f"{address} refuses {address.identity}: {text}; {fix}")


def _explain(error: Exception, address: ServiceBusAddress, role: str) -> ExchangeError:
    """Map an SDK error to an error on one line, with the queue and, if known, the fix."""
    if isinstance(error, ExchangeError):
        return error
    causes = list(causes_of(error))
    text = " ".join(str(causes[-1] if isinstance(causes[-1], Exception) else error).split())

    def any_is(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if any_is(MessageLockLostError, MessageAlreadySettled):
        return LockLost("its lock expired, or it was already settled")
    if any_is(MessageNotFoundError):
        return _Gone(f"{address}: {text}")
    if any_is(MessageSizeExceededError):
        return MessageTooLarge(f"{address}: {text}")
    if any_is(MessagingEntityNotFoundError):
        return ExchangeMisconfigured(
            f"{address} does not exist; create it, or name another in BROADSIDE_SERVICEBUS_QUEUE"
        )
    if (refusal := explain_token(error, str(address), address.identity)) is not None:
        return refusal
    # Such an error comes from a credential of the caller.
    if any_is(ClientAuthenticationError):
        return ExchangeMisconfigured(f"{address}: no token for {address.identity}: {text}")
    # With a custom endpoint the SDK reports a rejected token as a connection error.
    refused = any(getattr(cause, "status_code", None) in (401, 403) for cause in causes)
    if refused or any_is(ServiceBusAuthenticationError, ServiceBusAuthorizationError):
        return _explain_refusal(address, role, text)
    if (unproven := explain_certificate(causes, str(address), _SETTING, text)) is not None:
        return unproven
    if any_is(ServiceBusQuotaExceededError):
        return ExchangeUnavailable(f"{address} is full, or its namespace is at a limit: {text}")
    return ExchangeUnavailable(f"{address} is not available: {text or type(error).__name__}")
