"""Durable queue in an SQLite file, for many processes on one host, without a server.

:mod:`broadside.exchange.embedded.sqlite` describes durability and the use after a fork. Times are
stored as epoch microseconds, because all processes on the host have the same wall clock.
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

from broadside.exchange.embedded.sqlite import Database, Mark, transaction
from broadside.exchange.limits import check_message
from broadside.exchange.outage_log import WriteRefusals
from broadside.exchange.ports import (
    DeadLetter,
    Delivery,
    ExchangeError,
    LockLost,
    Outgoing,
    QueueCounts,
    Value,
)

# Minimum and maximum seconds between two polls of a waiting receiver.
_POLL_S: Final = (0.05, 0.1)
# Minimum and maximum seconds between two checks for a write, while the queue is idle.
_LULL_POLL_S: Final = (0.2, 0.4)
# Maximum seconds between two polls while the queue is idle.
_LULL_S: Final = 2.0
# Maximum messages in one transaction, so that a large send does not block other processes.
_SEND_MAX_COUNT: Final = 500
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# SQLite application id, "BsQU".
QUEUE_APPLICATION: Final = 0x42735155
QUEUE_LAYOUT: Final = """
CREATE TABLE message (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id TEXT NOT NULL,
    body BLOB NOT NULL,
    ready_us INTEGER NOT NULL,       -- when it may be received: its enqueue or its lock's end
    expires_us INTEGER NOT NULL,
    delivery_count INTEGER NOT NULL DEFAULT 0,
    lock BLOB,                       -- the holder's token; NULL: nobody's
    dead_us INTEGER,                 -- set: a dead letter
    reason TEXT,
    description TEXT
);
CREATE INDEX message_ready ON message (ready_us, sequence) WHERE dead_us IS NULL;
CREATE TABLE sent (message_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL, sent_us INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE INDEX sent_at ON sent (sent_us);
"""

_NEXT: Final = (
    "SELECT ready_us FROM message WHERE dead_us IS NULL ORDER BY ready_us, sequence LIMIT 1"
)
_READY: Final = (
    "SELECT sequence FROM message WHERE dead_us IS NULL AND ready_us <= :now "
    "ORDER BY ready_us, sequence LIMIT 1"
)
_HEAD_SPENT: Final = (
    f"SELECT 1 FROM message WHERE sequence = ({_READY}) "  # noqa: S608 - constants only
    "AND (expires_us <= :now OR delivery_count >= :deliveries)"
)
_LOCK_READY: Final = (
    "UPDATE message SET lock = :key, ready_us = :now + :lock_us, "  # noqa: S608 - constants only
    f"delivery_count = delivery_count + 1 WHERE sequence = ({_READY}) "
    "RETURNING sequence, body, message_id, delivery_count"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lock:
    """Lock of a message.

    Attributes:
        sequence: Row number of the message.
        key: Key that the row must still contain.
    """

    sequence: int
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _IdleTracker:
    """Idle state of the queue. No message can be received unless a process writes.

    Attributes:
        mark: Mark of the database, which changes when a process writes.
        until_s: End of the idle state, in monotonic seconds.
    """

    mark: Mark
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """Rules for locks, deliveries and duplicates.

    Attributes:
        lock_s: How long a received message is locked, in seconds.
        deliveries_max_count: After this number of deliveries, a message will be moved to the dead
            letters.
        duplicates_s: How long message ids are stored to detect duplicates, in seconds.
    """

    lock_s: float = 60.0
    deliveries_max_count: int = 5
    duplicates_s: float = 86_400.0


class EmbeddedQueue:
    """:class:`~broadside.exchange.ports.JobQueue` in ``<data_dir>/queue.sqlite3``.

    A lock is a key in the row of a message. ``ready_us`` is the time at which the message is
    available, for the first time or again. Expiry and dead-lettering take effect at the next poll.
    A waiting receiver polls rarely while no process writes. To check whether a process has written
    is much cheaper than a poll.
    """

    def __init__(
        self,
        data_dir: Path,
        rules: QueueRules = QueueRules(),
        *,
        busy_s: float = 10.0,
        clock: Callable[[], float] = time.time,
        refusals: WriteRefusals | None = None,
    ) -> None:
        """Initialize the queue. The first call opens the file.

        Args:
            data_dir: The folder for the database file.
            rules: Rules for locks, deliveries and duplicates.
            busy_s: The maximum time to wait for a database lock, in seconds.
            clock: Function that returns the current time in epoch seconds.
            refusals: Log of writes that fail because there is no space or no permission.
        """
        self._database = Database(
            data_dir / "queue.sqlite3", QUEUE_APPLICATION, QUEUE_LAYOUT, busy_s, refusals
        )
        self._lock_us = round(rules.lock_s * 1e6)
        self._deliveries_max_count = rules.deliveries_max_count
        self._duplicates_us = round(rules.duplicates_s * 1e6)
        self._clock = clock
        self._lull: _IdleTracker | None = None

    async def send(self, messages: Sequence[Outgoing]) -> Sequence[int]:
        for message in messages:
            check_message(message)
        numbers: list[int] = []
        for start in range(0, len(messages), _SEND_MAX_COUNT):
            part = messages[start : start + _SEND_MAX_COUNT]
            numbers += await self._database.run(self._send, part)
        return numbers

    async def cancel(self, sequence_numbers: Sequence[int]) -> int:
        return await self._database.run(self._cancel, sequence_numbers)

    async def receive(self, wait_s: float) -> Delivery | None:
        deadline_s = time.monotonic() + wait_s
        delivery = await self._claim_next()
        while delivery is None and (left_s := deadline_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, self._pause_s()))
            if self._lull_s() <= 0:
                delivery = await self._claim_next()
        return delivery

    def _pause_s(self) -> float:
        lull_s = self._lull_s()
        if lull_s > 0:
            return min(lull_s, random.uniform(*_LULL_POLL_S))  # noqa: S311 - jitter, no secret
        return random.uniform(*_POLL_S)  # noqa: S311 - jitter, no secret

    async def _claim_next(self) -> Delivery | None:
        locked = self._database.submit(self._lock_one)
        try:
            return await asyncio.shield(locked)
        except asyncio.CancelledError:
            # The worker thread cannot be stopped. If it locks a message, abandon the message.
            # Otherwise it would be unavailable for the full lock time.
            with suppress(ExchangeError):
                if (unseen := await locked) is not None:
                    await self.abandon(unseen)
            raise

    def _lull_s(self) -> float:
        """Return how long no message will be available unless a process writes, in seconds.

        The result is 0 if this is unknown.
        """
        lull = self._lull
        if lull is None or self._database.mark() != lull.mark:
            return 0.0
        return max(0.0, lull.until_s - time.monotonic())

    async def complete(self, delivery: Delivery) -> None:
        await self._settle(delivery, "DELETE FROM message")

    async def abandon(self, delivery: Delivery) -> None:
        await self._settle(delivery, "UPDATE message SET lock = NULL, ready_us = :now")

    async def renew(self, delivery: Delivery) -> Delivery:
        now_us = await self._settle(delivery, "UPDATE message SET ready_us = :now + :lock_us")
        return replace(delivery, locked_until_at=_instant(now_us + self._lock_us))

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self._settle(
            delivery,
            "UPDATE message SET lock = NULL, dead_us = :now, reason = :reason, "
            "description = :description",
            reason=reason,
            description=description,
        )

    async def dead_letters(self, limit: int = 100) -> Sequence[DeadLetter]:
        return await self._database.run(self._dead_letters, limit)

    async def resend(self, sequence_number: int, expires_at: datetime) -> bool:
        return await self._database.run(self._resend, sequence_number, _epoch_us(expires_at))

    async def purge(self, sequence_number: int | None = None, *, limit: int = 1000) -> int:
        return await self._database.run(self._purge, sequence_number, limit)

    async def ping(self) -> None:
        await self._database.read(lambda connection: connection.execute("SELECT 1").fetchone())

    async def counts(self) -> QueueCounts:
        return await self._database.run(self._counts)

    async def close(self) -> None:
        await self._database.close()

    # On the worker thread ---------------------------------------------------------------------

    def _now_us(self) -> int:
        return round(self._clock() * 1e6)

    def _send(self, connection: sqlite3.Connection, messages: Sequence[Outgoing]) -> list[int]:
        numbers: list[int] = []
        with transaction(connection):
            now_us = self._now_us()
            connection.execute(
                "DELETE FROM sent WHERE sent_us < ?", (now_us - self._duplicates_us,)
            )
            for message in messages:
                earlier = connection.execute(
                    "SELECT sequence FROM sent WHERE message_id = ?", (message.message_id,)
                ).fetchone()
                if earlier:
                    numbers.append(earlier[0])
                    continue
                enqueue_us = 0 if message.enqueue_at is None else _epoch_us(message.enqueue_at)
                [(sequence,)] = connection.execute(
                    "INSERT INTO message (message_id, body, ready_us, expires_us) "
                    "VALUES (?, ?, ?, ?) RETURNING sequence",
                    (
                        message.message_id,
                        message.body,
                        max(now_us, enqueue_us),
                        _epoch_us(message.expires_at),
                    ),
                ).fetchall()
                connection.execute(
                    "INSERT INTO sent VALUES (?, ?, ?)", (message.message_id, sequence, now_us)
                )
                numbers.append(sequence)
        return numbers

    def _cancel(self, connection: sqlite3.Connection, sequence_numbers: Sequence[int]) -> int:
        with transaction(connection):
            now_us = self._now_us()
            return connection.executemany(
                "DELETE FROM message WHERE sequence = ? AND dead_us IS NULL AND lock IS NULL "
                "AND ready_us > ?",
                [(number, now_us) for number in sequence_numbers],
            ).rowcount

    def _lock_one(self, connection: sqlite3.Connection) -> Delivery | None:
        # Check without a lock first, because usually there is no message.
        mark, looked_s = self._database.mark(), time.monotonic()
        [(ready_us,)] = connection.execute(_NEXT).fetchall() or [(None,)]
        ahead_s = _LULL_S if ready_us is None else (ready_us - self._now_us()) / 1e6
        if ahead_s > 0:
            until_s = looked_s + min(ahead_s, _LULL_S)
            self._lull = None if mark is None else _IdleTracker(mark=mark, until_s=until_s)
            return None
        lock_key = uuid4().bytes
        with transaction(connection):
            # Read the clock again, because the wait for the write lock can be long.
            now_us = self._now_us()
            if connection.execute(
                _HEAD_SPENT, {"now": now_us, "deliveries": self._deliveries_max_count}
            ).fetchall():
                self._sweep(connection, now_us)
            rows = connection.execute(
                _LOCK_READY, {"key": lock_key, "now": now_us, "lock_us": self._lock_us}
            ).fetchall()
        for sequence, body, message_id, delivery_count in rows:
            return Delivery(
                body=_bytes(body),
                message_id=str(message_id),
                delivery_count=delivery_count,
                locked_until_at=_instant(now_us + self._lock_us),
                token=_Lock(sequence=sequence, key=lock_key),
            )
        return None

    def _sweep(self, connection: sqlite3.Connection, now_us: int) -> None:
        """Move messages with too many deliveries to the dead letters. Delete expired messages."""
        bounds = {"now": now_us, "deliveries": self._deliveries_max_count}
        connection.execute(
            "UPDATE message SET dead_us = ready_us, lock = NULL, "
            "reason = 'MaxDeliveryCountExceeded', "
            "description = 'delivered ' || delivery_count || ' times and never settled' "
            "WHERE dead_us IS NULL AND ready_us <= :now AND delivery_count >= :deliveries "
            "AND ready_us < expires_us",
            bounds,
        )
        connection.execute(
            "DELETE FROM message WHERE dead_us IS NULL AND ready_us <= :now AND expires_us <= :now",
            bounds,
        )

    async def _settle(self, delivery: Delivery, change: str, **values: Value) -> int:
        """Apply ``change`` to a message if its lock is valid. Return the time in epoch us."""
        if not isinstance(delivery.token, _Lock):
            raise TypeError(f"message {delivery.message_id}: not a delivery of this queue")
        return await self._database.run(
            self._settle_row, delivery.token, delivery.message_id, change, values
        )

    def _settle_row(
        self,
        connection: sqlite3.Connection,
        lock: _Lock,
        message_id: str,
        change: str,
        values: Mapping[str, Value],
    ) -> int:
        now_us = self._now_us()
        changed = connection.execute(
            f"{change} WHERE sequence = :sequence AND lock = :key AND ready_us > :now",
            {
                "now": now_us,
                "lock_us": self._lock_us,
                "sequence": lock.sequence,
                "key": lock.key,
                **values,
            },
        )
        if changed.rowcount == 0:
            raise LockLost(f"message {message_id}: its lock expired; another receiver will get it")
        return now_us

    def _dead_letters(self, connection: sqlite3.Connection, limit: int) -> list[DeadLetter]:
        with transaction(connection):
            self._sweep(connection, self._now_us())
        rows = connection.execute(
            "SELECT sequence, body, message_id, reason, description, dead_us FROM message "
            "WHERE dead_us IS NOT NULL ORDER BY dead_us, sequence LIMIT ?",
            (limit,),
        )
        return [
            DeadLetter(
                sequence_number=sequence,
                body=_bytes(body),
                message_id=str(message_id),
                reason=str(reason),
                description=str(description),
                dead_at=_instant(dead_us),
            )
            for sequence, body, message_id, reason, description, dead_us in rows
        ]

    def _resend(self, connection: sqlite3.Connection, sequence: int, expires_us: int) -> bool:
        changed = connection.execute(
            "UPDATE message SET dead_us = NULL, reason = NULL, description = NULL, "
            "delivery_count = 0, ready_us = ?, expires_us = ? "
            "WHERE sequence = ? AND dead_us IS NOT NULL",
            (self._now_us(), expires_us, sequence),
        )
        return changed.rowcount > 0

    def _purge(self, connection: sqlite3.Connection, sequence: int | None, limit: int) -> int:
        # A sequence number has at most 64 bits.
        if sequence is not None and not 0 <= sequence < 2**63:
            return 0
        with transaction(connection):
            self._sweep(connection, self._now_us())
            return connection.execute(
                "DELETE FROM message WHERE sequence IN (SELECT sequence FROM message "
                "WHERE dead_us IS NOT NULL AND (:sequence IS NULL OR sequence = :sequence) "
                "ORDER BY dead_us, sequence LIMIT :limit)",
                {"sequence": sequence, "limit": limit},
            ).rowcount

    def _counts(self, connection: sqlite3.Connection) -> QueueCounts:
        with transaction(connection):
            now_us = self._now_us()
            self._sweep(connection, now_us)
            messages_count, scheduled_count, dead_count = connection.execute(
                "SELECT count(*), "
                "count(*) FILTER (WHERE dead_us IS NULL AND lock IS NULL AND ready_us > ?), "
                "count(dead_us) FROM message",
                (now_us,),
            ).fetchone()
        return QueueCounts(
            active_count=messages_count - scheduled_count - dead_count,
            scheduled_count=scheduled_count,
            dead_count=dead_count,
        )


def _epoch_us(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _instant(epoch_us: object) -> datetime:
    """Return the time of an epoch microsecond value.

    For an invalid value the result is the epoch, so that the rest of the row is still readable.
    """
    try:
        return _EPOCH + timedelta(microseconds=int(epoch_us))  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError, OverflowError):
        return _EPOCH


def _bytes(body: object) -> bytes:
    """Return the body as bytes. The column can also contain text or a number."""
    return body if isinstance(body, bytes) else str(body).encode()
