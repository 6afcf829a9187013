"""The two places where coordinator and agents meet, as contracts that every adapter keeps.

Errors::

    ExchangeError
    ├── ExchangeUnavailable    the service did not answer within our bounds; trying later may help
    ├── ExchangeMisconfigured  a setting is missing or refused; says which, and what to do
    │   ├── ExchangeRefused    this identity has no right to do that there
    │   └── StorageGone        what held the rows was removed or replaced while it was in use
    ├── RecordUnreadable       what is stored is corrupt, foreign, half written or too new
    ├── QueueError
    │   ├── LockLost           the lock ran out: the message is, or will be, somebody else's
    │   └── MessageTooLarge    one message is over the queue's limit
    └── TableError
        ├── EntityExists       create-only insert met a row
        ├── EntityNotFound     no such row
        ├── EntityChanged      the ETag no longer matches
        ├── EntityRefused      this row is not this agent's to read or write
        └── EntityTooLarge     a property or the entity is over the limits below
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

KEY_MAX_CHARS: Final = 512
PROPERTY_MAX_COUNT: Final = 252
PROPERTY_MAX_BYTES: Final = 65_536  # one binary property; a string takes two bytes a character
ENTITY_MAX_BYTES: Final = 1_048_576  # as it travels: JSON, in which binary is base64
BATCH_MAX_COUNT: Final = 100
BATCH_MAX_BYTES: Final = 4 * 1_048_576  # as it travels
MESSAGE_MAX_BYTES: Final = 262_144  # Service Bus Standard, headers included
MESSAGE_ID_MAX_CHARS: Final = 128


class ExchangeError(Exception):
    """Something between coordinator and agents went wrong."""


class ExchangeUnavailable(ExchangeError):
    """The service did not answer within our bounds; trying later may help."""


class ExchangeMisconfigured(ExchangeError):
    """A setting is missing, wrong or refused."""


class ExchangeRefused(ExchangeMisconfigured):
    """The service knows who asks, and that one has no right to do that there."""


class StorageGone(ExchangeMisconfigured):
    """What held the rows was removed or replaced while it was in use: nothing brings it back."""


class RecordUnreadable(ExchangeError):
    """What is stored is corrupt, foreign, half written, or from a newer Broadside."""


class QueueError(ExchangeError):
    """The queue refused."""


class LockLost(QueueError):
    """The lock ran out before the message was settled."""


class MessageTooLarge(QueueError):
    """One message is over the queue's limit."""


class TableError(ExchangeError):
    """The table refused."""


class EntityExists(TableError):
    """A row with that key is there already."""


class EntityNotFound(TableError):
    """There is no row with that key."""


class EntityChanged(TableError):
    """The row was changed since it was read."""


class EntityRefused(TableError):
    """The row is not the asking agent's: another may, and this one never will."""


class EntityTooLarge(TableError):
    """A property or the whole entity is over the limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send."""

    body: bytes
    message_id: str  # a second send with the same id within the detection window is dropped
    expires_at: datetime  # after this instant nobody receives it
    enqueue_at: datetime | None = None  # invisible until then; None: at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A locked message. Settle it once, before ``locked_until_at``."""

    body: bytes
    message_id: str
    delivery_count: int  # 1 for the first delivery
    locked_until_at: datetime
    token: object = field(repr=False)  # the adapter's own handle


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was set aside, with the reason."""

    sequence_number: int
    body: bytes
    message_id: str
    reason: str
    description: str
    dead_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """How many messages stand where; ``None`` where the adapter cannot tell."""

    active_count: int | None  # receivable now or locked
    scheduled_count: int | None
    dead_count: int | None


class JobQueue(Protocol):
    """Competing consumers over peek-locked messages, each delivered at least once.

    - A message is *eligible* from ``enqueue_at`` until ``expires_at``, while nobody holds its
      lock. Eligible messages come roughly oldest first; no order is promised.
    - ``receive`` locks at most **one** message, for the queue's lock time. A lock that runs out
      makes the message eligible again and counts a delivery; at the maximum delivery count it is
      dead-lettered with reason ``MaxDeliveryCountExceeded``.
    - An expired message vanishes. It is *not* dead-lettered: a late job is a missed measurement,
      which the coordinator sees from its plan. Whoever holds its lock may still settle it.
    - Two sends with one ``message_id`` (1 to 128 characters, else ``ValueError``) within the
      detection window (at least 10 minutes) yield one message, also when the first was settled
      or cancelled meanwhile.
    - Every call may raise :class:`ExchangeUnavailable`.
    """

    async def send(self, messages: Sequence[Outgoing]) -> Sequence[int]:
        """Queue messages and return their sequence numbers, in order.

        Sequence numbers of scheduled messages cancel them; of others they are informative (0
        where the service gives none). Messages may be split into several batches; when a batch
        fails the earlier ones stand, and sending all again is safe by ``message_id``. Raises
        :class:`MessageTooLarge` before anything is sent.
        """

    async def cancel(self, sequence_numbers: Sequence[int]) -> int:
        """Remove scheduled messages; return how many were still there. Others are ignored."""

    async def receive(self, wait_s: float) -> Delivery | None:
        """Lock one eligible message, waiting at most ``wait_s`` seconds for one.

        A receive that is cancelled gives back what it may have locked.
        """

    async def complete(self, delivery: Delivery) -> None:
        """Remove the message. Raises :class:`LockLost`."""

    async def abandon(self, delivery: Delivery) -> None:
        """Give the message back at once. Raises :class:`LockLost`."""

    async def renew(self, delivery: Delivery) -> Delivery:
        """Lock for another full lock time from now. Raises :class:`LockLost`."""

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        """Set the message aside with a short reason and a full sentence. Raises LockLost."""

    async def dead_letters(self, limit: int = 100) -> Sequence[DeadLetter]:
        """The oldest dead letters, without removing them."""

    async def resend(self, sequence_number: int, expires_at: datetime) -> bool:
        """Move one dead letter back to the queue with a new end; False when it is not there.

        Its delivery count starts again, duplicate detection does not stop it, and its
        ``message_id`` may be a new one.
        """

    async def purge(self, sequence_number: int | None = None, *, limit: int = 1000) -> int:
        """Remove that dead letter for good, or (None) at most ``limit`` of them; how many went.

        One that somebody else has locked at that moment stays.
        """

    async def ping(self) -> None:
        """One round trip to the service, which touches no message."""

    async def counts(self) -> QueueCounts:
        """How many messages stand where."""

    async def close(self) -> None:
        """Release connections. Locks held are left to run out."""


Value = str | int | float | bool | bytes | datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A row. ``etag`` is set on what was read, and ignored on what is written."""

    partition_key: str
    row_key: str
    properties: Mapping[str, Value]
    etag: str | None = None


class Table(Protocol):
    """Rows by (partition key, row key); a write is durable and visible when it returns.

    - Keys are 1 to 512 characters, without ``/ \\ # ?`` and control characters; property names are
      identifiers, at most 252, none of ``PartitionKey RowKey Timestamp``. Else ``ValueError``.
    - Values come back as they went in; ``int`` is 64-bit, datetimes are aware UTC to the
      microsecond. Else ``ValueError``.
    - Within a partition ``scan`` yields in ascending row-key order (by code point).
    - Every call may raise :class:`ExchangeUnavailable`.
    """

    async def insert(self, entity: Entity) -> str:
        """Create a row and return its ETag. Raises :class:`EntityExists`, ``EntityTooLarge``."""

    async def upsert(self, entity: Entity) -> str:
        """Create or wholly replace a row; return its ETag. Raises :class:`EntityTooLarge`."""

    async def replace(self, entity: Entity, etag: str) -> str:
        """Wholly replace a row that still has ``etag``; return the new one.

        Raises :class:`EntityChanged`, :class:`EntityNotFound`, :class:`EntityTooLarge`.
        """

    async def get(self, partition_key: str, row_key: str) -> Entity | None:
        """One row, or None."""

    def scan(
        self,
        partition_key: str,
        *,
        row_from: str | None = None,
        row_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Entity]:
        """Rows with ``row_from <= row_key < row_before``, in row-key order, at most ``limit``."""

    async def delete(self, partition_key: str, row_key: str) -> bool:
        """Remove a row; False when there was none."""

    async def batch(self, entities: Sequence[Entity]) -> None:
        """Upsert rows of one partition; all of at most 100 and 4 MiB land together.

        A longer sequence is split into such batches, in order, each atomic. Raises ``ValueError``
        for mixed partitions or a row key twice, :class:`EntityTooLarge` before anything is
        written.
        """

    async def next_partition(self, key_from: str, key_before: str) -> str | None:
        """The first partition of those with a row whose ``key_from <= key < key_before``."""

    async def delete_partition(self, partition_key: str) -> int:
        """Remove every row of a partition; return how many."""

    async def close(self) -> None:
        """Release connections."""


@runtime_checkable
class SkipsKnown(Protocol):
    """A table that need not hand over what its reader has."""

    def scan_changed(
        self, partition_key: str, known: Mapping[str, str], *, row_from: str, row_before: str
    ) -> AsyncIterator[Entity]:
        """Rows of a span whose ETag is not the one in ``known``, by row key; in their order."""


async def scan_changed(
    table: "Table", partition_key: str, known: Mapping[str, str], *, row_from: str, row_before: str
) -> AsyncIterator[Entity]:
    """The same of any table."""
    if isinstance(table, SkipsKnown):
        rows = table.scan_changed(partition_key, known, row_from=row_from, row_before=row_before)
    else:
        rows = table.scan(partition_key, row_from=row_from, row_before=row_before)
    async for row in rows:
        if row.etag is None or known.get(row.row_key) != row.etag:
            yield row


@dataclass(frozen=True, slots=True, kw_only=True)
class RawName:
    """Where a text is kept: both parts keep a table key's rules, and ``file`` ends in no dot."""

    folder: str  # all of one burst, or of one hour's server-side tests
    file: str

    def __str__(self) -> str:
        return f"{self.folder}/{self.file}"


class RawStore(Protocol):
    """Texts of any size that are written once and seldom read: what engines printed.

    - A name belongs to one writer and one text. Saving it again is harmless, also when the first
      save's answer was lost; which of two different texts stays is not promised.
    - A text that ``save`` has returned from reads back to the byte. One that was cut short by a
      failure is absent, or :class:`RecordUnreadable`, and never shows in part.
    - The store compresses; a caller that has a text deflated gives it as
      :class:`~broadside.exchange.documents.Packed`.
    - Every call may raise :class:`ExchangeUnavailable`.
    """

    async def save(self, name: RawName, text: bytes) -> None:
        """Keep a text."""

    async def read(self, name: RawName) -> bytes | None:
        """The text, or None."""

    async def delete_folder(self, folder: str) -> int:
        """Remove every text of a folder; return how many."""

    async def close(self) -> None:
        """Release connections."""
