"""Behaviour of a Service Bus queue (locks, dead letters, expiry, schedules, duplicates).

There is no I/O. Three rules apply:

- Every command has ``now`` (epoch seconds) and first advances the queue to this time. A timer takes
  effect at its own time, even when the queue handles it later.
- Every command that changes the queue is logged. A replay of the log results in the same state.
- A single dictionary has all messages. The heaps with sequence numbers can be stale and needs to be
  checked.
"""

import heapq
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from broadside.lab.servicebus.amqp import AmqpValue

DEAD_LETTER_SUFFIX = "/$deadletterqueue"
# The bits of a sequence number from here on are the partition.
PARTITION_BIT = 48
PARTITION_KEY = "x-opt-partition-key"
# Function to log a command with its time and other arguments.
Log = Callable[[str, float, dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Settings of a queue.

    Attributes:
        lock_s: Duration of a lock in seconds.
        max_delivery_count: Deliveries until a message is moved to the dead letters.
        default_ttl_s: Default and maximum lifetime in seconds, or ``None`` for no limit.
        dead_letter_expired: Whether expired messages are moved to the dead letters.
        duplicate_window_s: Time in seconds to detect duplicates, or 0 to disable this.
        max_message_bytes: Maximum size of a message in bytes.
        max_size_bytes: Maximum size of all messages in bytes, or ``None`` for no limit.
        partitions_count: Number of partitions. With partitioning, the Standard tier uses 16.
    """

    lock_s: float = 60.0
    max_delivery_count: int = 10
    default_ttl_s: float | None = None
    dead_letter_expired: bool = False
    duplicate_window_s: float = 600.0
    max_message_bytes: int = 262_144
    max_size_bytes: int | None = None
    partitions_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Message from a sender.

    Attributes:
        content: Properties and body sections as received.
        message_id: Id to detect duplicates.
        annotations: Message annotations.
        application: Application properties.
        ttl_s: Lifetime in seconds.
        enqueue_at_s: Time in epoch seconds until which the message is invisible.
    """

    content: bytes
    message_id: str | None = None
    annotations: dict[AmqpValue, AmqpValue] = field(default_factory=dict)
    application: dict[AmqpValue, AmqpValue] = field(default_factory=dict)
    ttl_s: float | None = None
    enqueue_at_s: float | None = None


class MessageState(IntEnum):
    """State with the values of ``x-opt-message-state``."""

    ACTIVE = 0
    SCHEDULED = 2


class Settlement(StrEnum):
    """Outcome of a delivery.

    Attributes:
        COMPLETE: Remove the message.
        ABANDON: Return the message to the queue and count the delivery.
        RELEASE: Return the message to the queue without counting the delivery.
        DEAD_LETTER: Move the message to the dead letters.
    """

    COMPLETE = "complete"
    ABANDON = "abandon"
    RELEASE = "release"
    DEAD_LETTER = "dead_letter"


@dataclass(slots=True, kw_only=True)
class QueuedMessage:
    """Message in a queue.

    Attributes:
        sent: Message from the sender.
        sequence_number: Sequence number.
        state: State of the message.
        enqueued_at_s: Time when it became active or was scheduled, in epoch seconds.
        expires_at_s: Expiry in epoch seconds, or ``None``.
        delivery_count: Number of failed deliveries.
        lock_token: Token of the lock, or ``None``.
        locked_until_s: End of the lock in epoch seconds.
    """

    sent: Sent
    sequence_number: int
    state: MessageState
    enqueued_at_s: float
    expires_at_s: float | None = None
    delivery_count: int = 0
    lock_token: UUID | None = None
    locked_until_s: float = 0.0


class Queue:
    """Queue with its dead letters, which are a queue where nothing expires.

    Attributes:
        path: Path of the queue.
        settings: Settings of the queue.
        messages: Messages by sequence number.
        twice: Whether every message is duplicated, to simulate a fault.
        dead: Dead-letter queue, or ``None`` if this is one.
    """

    def __init__(
        self,
        path: str,
        settings: QueueSettings,
        *,
        log: Callable[["Queue"], Log] = lambda _queue: lambda _command, _now, _arguments: None,
        is_dead: bool = False,
    ) -> None:
        self.path = path
        self.settings = settings
        self.messages: dict[int, QueuedMessage] = {}
        self.twice = False
        self.dead = (
            None if is_dead else Queue(path + DEAD_LETTER_SUFFIX, settings, log=log, is_dead=True)
        )
        self._log = log(self)
        self._numbers = [count(1) for _ in range(settings.partitions_count)]
        # Next partition for messages without a key.
        self._turns = count()
        # Heap of the position in the partition and the sequence number.
        self._ready: list[tuple[int, int]] = []
        self._timers: list[tuple[float, int]] = []
        self._locked: dict[UUID, QueuedMessage] = {}
        # Time of the first message and its sequence number, by message id.
        self._seen: dict[str, tuple[float, int]] = {}

    # Commands -------------------------------------------------------------------------------

    def send(self, sent: Sent, now: float) -> int:
        """Store a message, unless it is a duplicate.

        For a duplicate, this is the sequence number of the first message.

        Args:
            sent: Message to store.
            now: Current time in epoch seconds.

        Returns:
            Its sequence number, or that of the first message for a duplicate.
        """
        self.advance(now)
        self._log("send", now, {"sent": sent})
        if known := self._duplicate_of(sent, now):
            return known
        number = self._next_number(self._partition_of(sent))
        if self.settings.duplicate_window_s and sent.message_id is not None:
            self._seen[sent.message_id] = (now, number)
        message = QueuedMessage(
            sent=sent, sequence_number=number, state=MessageState.SCHEDULED, enqueued_at_s=now
        )
        if sent.enqueue_at_s is None or sent.enqueue_at_s <= now:
            self._activate(message, now)
        else:
            self.messages[number] = message
            heapq.heappush(self._timers, (sent.enqueue_at_s, number))
        return number

    def cancel(self, numbers: Sequence[int], now: float) -> bool:
        """Remove scheduled messages.

        Args:
            numbers: Sequence numbers.
            now: Current time in epoch seconds.

        Returns:
            False if a message does not exist. In this case, none is removed.
        """
        self.advance(now)
        results = [self.messages.get(number) for number in numbers]
        if any(
            message is None or message.state is not MessageState.SCHEDULED for message in results
        ):
            return False
        self._log("cancel", now, {"numbers": list(numbers)})
        for number in numbers:
            self.messages.pop(number, None)
        return True

    def take(
        self, now: float, *, lock: bool = True, token: UUID | None = None
    ) -> QueuedMessage | None:
        """Return the oldest available message.

        Args:
            now: Current time in epoch seconds.
            lock: Whether to lock the message. Otherwise it will be removed.
            token: Lock token to use, or ``None`` for a new one.

        Returns:
            The message with its lock, if it was locked. None if no message is available.
        """
        self.advance(now)
        while self._ready:
            message = self.messages.get(heapq.heappop(self._ready)[1])
            if message is None:
                # The message has been removed in the meantime.
                continue
            token = (token or uuid4()) if lock else None
            self._log("take", now, {"lock": lock, "token": token})
            message.lock_token = token
            if token is None:
                del self.messages[message.sequence_number]
            else:
                self._locked[token] = message
                self._lock(message, now)
            return message
        return None

    def settle(
        self,
        token: UUID,
        how: Settlement,
        now: float,
        reason: str | None = None,
        description: str | None = None,
    ) -> bool:
        """Finish a delivery.

        Args:
            token: Token of the lock.
            how: Outcome of the delivery.
            now: Current time in epoch seconds.
            reason: Reason for a dead letter. None without one.
            description: Description for a dead letter. None without one.

        Returns:
            False if the lock has been lost.
        """
        self.advance(now)
        message = self._locked.pop(token, None)
        if message is None:
            return False
        why = {"reason": reason, "description": description}
        self._log("settle", now, {"token": token, "how": str(how), **why})
        message.lock_token = None
        match how:
            case Settlement.COMPLETE:
                del self.messages[message.sequence_number]
            case Settlement.ABANDON:
                self._failed(message, now)
            case Settlement.RELEASE:
                self._line_up(message, now)
            case Settlement.DEAD_LETTER:
                self._bury(message, now, reason, description)
        return True

    def renew(self, token: UUID, now: float) -> float | None:
        """Renew a lock for its full duration.

        Args:
            token: Token of the lock.
            now: Current time in epoch seconds.

        Returns:
            The end of the lock in epoch seconds, or ``None`` if the lock has been lost.
        """
        self.advance(now)
        message = self._locked.get(token)
        if message is None:
            return None
        self._log("renew", now, {"token": token})
        self._lock(message, now)
        return message.locked_until_s

    def lose(self, now: float) -> None:
        """Simulate a fault that ends every lock."""
        self.advance(now)
        self._log("lose", now, {})
        for message in list(self._locked.values()):
            message.locked_until_s = now
            heapq.heappush(self._timers, (now, message.sequence_number))
        self.advance(now)

    def double(self, twice: bool, now: float) -> None:
        """Start or stop a fault that duplicates every message when it becomes active.

        Args:
            twice: True to start the fault, False to stop it.
            now: Current time in s, on the clock of the queue.
        """
        self.advance(now)
        self._log("double", now, {"twice": twice})
        self.twice = twice

    # Questions ------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        limit = self.settings.max_size_bytes
        return limit is not None and limit <= sum(
            len(message.sent.content)
            for queue in (self, self.dead)
            if queue
            for message in queue.messages.values()
        )

    def peek(self, from_number: int, limit: int) -> list[QueuedMessage]:
        """Return messages in any state by sequence number, without locking them.

        Args:
            from_number: First sequence number.
            limit: Maximum number of messages.
        """
        numbers = sorted(number for number in self.messages if number >= from_number)
        return [self.messages[number] for number in numbers[:limit]]

    def counts(self) -> dict[str, int]:
        scheduled = sum(
            message.state is MessageState.SCHEDULED for message in self.messages.values()
        )
        return {
            # Locked messages are also active.
            "active": len(self.messages) - scheduled,
            "locked": len(self._locked),
            "scheduled": scheduled,
            "dead": len(self.dead.messages) if self.dead else 0,
        }

    # Time -----------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """Return the time of the next timer in epoch seconds, or ``None`` if there is none."""
        return self._timers[0][0] if self._timers else None

    def advance(self, now: float) -> None:
        """Handle all due activations, lost locks and expiries."""
        while self._timers and self._timers[0][0] <= now:
            due, number = heapq.heappop(self._timers)
            message = self.messages.get(number)
            if message is None:
                continue
            if message.state is MessageState.SCHEDULED:
                del self.messages[number]
                # The service will also assign a new number.
                message.sequence_number = self._next_number(number >> PARTITION_BIT)
                self._activate(message, due)
            elif message.lock_token is not None:
                if message.locked_until_s <= due:
                    del self._locked[message.lock_token]
                    self._failed(message, due)
            elif message.expires_at_s is not None and message.expires_at_s <= due:
                self._expire(message, due)

    # Moves ----------------------------------------------------------------------------------

    def _partition_of(self, sent: Sent) -> int:
        """Return the partition of a message.

        It depends on the partition key, or on the message id when duplicates are detected. Other
        messages are assigned in turn.
        """
        key = sent.annotations.get(PARTITION_KEY)
        if key is None and self.settings.duplicate_window_s:
            key = sent.message_id
        place = next(self._turns) if key is None else zlib.crc32(str(key).encode())
        return place % self.settings.partitions_count

    def _next_number(self, partition: int) -> int:
        return partition << PARTITION_BIT | next(self._numbers[partition])

    def _duplicate_of(self, sent: Sent, now: float) -> int | None:
        horizon = now - self.settings.duplicate_window_s
        while self._seen and next(iter(self._seen.values()))[0] <= horizon:
            del self._seen[next(iter(self._seen))]
        known = self._seen.get(sent.message_id) if sent.message_id is not None else None
        return known[1] if known else None

    def _activate(self, message: QueuedMessage, at: float) -> None:
        message.state = MessageState.ACTIVE
        message.enqueued_at_s = at
        limits = (message.sent.ttl_s, self.settings.default_ttl_s)
        ttl_s = min((limit for limit in limits if limit is not None), default=None)
        message.expires_at_s = None if ttl_s is None else at + ttl_s
        copies = [message]
        if self.twice:
            number = self._next_number(message.sequence_number >> PARTITION_BIT)
            copies.append(replace(message, sequence_number=number))
        for copy in copies:
            self.messages[copy.sequence_number] = copy
            self._line_up(copy, at)

    def _line_up(self, message: QueuedMessage, at: float) -> None:
        message.lock_token = None
        if message.expires_at_s is not None:
            if message.expires_at_s <= at:
                self._expire(message, at)
                return
            heapq.heappush(self._timers, (message.expires_at_s, message.sequence_number))
        place = message.sequence_number % (1 << PARTITION_BIT)
        heapq.heappush(self._ready, (place, message.sequence_number))

    def _lock(self, message: QueuedMessage, now: float) -> None:
        message.locked_until_s = now + self.settings.lock_s
        heapq.heappush(self._timers, (message.locked_until_s, message.sequence_number))

    def _failed(self, message: QueuedMessage, at: float) -> None:
        message.delivery_count += 1
        limit = self.settings.max_delivery_count
        if self.dead and message.delivery_count >= limit:
            why = f"Message could not be consumed after {limit} delivery attempts."
            self._bury(message, at, "MaxDeliveryCountExceeded", why)
        else:
            self._line_up(message, at)

    def _expire(self, message: QueuedMessage, at: float) -> None:
        if self.settings.dead_letter_expired:
            why = "The message expired and was dead lettered."
            self._bury(message, at, "TTLExpiredException", why)
        else:
            del self.messages[message.sequence_number]

    def _bury(
        self, message: QueuedMessage, at: float, reason: str | None, description: str | None
    ) -> None:
        why = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        fields = {key: text for key, text in why.items() if text is not None}
        application = {**message.sent.application, **fields}
        del self.messages[message.sequence_number]
        grave = self.dead or self
        grave.messages[message.sequence_number] = message
        message.state = MessageState.ACTIVE
        message.sent = replace(message.sent, application=application)
        message.expires_at_s = None
        grave._line_up(message, at)
