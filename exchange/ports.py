"""Interfaces for the job queue, tables and raw store, implemented by every adapter.

Errors::

    ExchangeError
    ├── ExchangeUnavailable    the service did not answer in time, a later retry may succeed
    ├── ExchangeMisconfigured  a setting is missing or rejected, with the fix in the message
    │   ├── ExchangeRefused    this identity has no right to this operation
    │   └── StorageGone        the storage was deleted or replaced while in use
    ├── RecordUnreadable       a record is corrupt, foreign, incomplete or too new
    ├── QueueError
    │   ├── LockLost           the lock expired, so another receiver can get the message
    │   └── MessageTooLarge    a message is above the queue's limit
    └── TableError
        ├── EntityExists       insert of a row that already exists
        ├── EntityNotFound     no such row
        ├── EntityChanged      the ETag does not match
        ├── EntityRefused      this agent must not read or write this row
        └── EntityTooLarge     a property or row is above the limits below
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

KEY_MAX_CHARS: Final = 512
PROPERTY_MAX_COUNT: Final = 252
# The limit of one binary property. A string uses two bytes per character.
PROPERTY_MAX_BYTES: Final = 65_536
# Size as transferred, as JSON with binary values in base64.
ENTITY_MAX_BYTES: Final = 1_048_576
BATCH_MAX_COUNT: Final = 100
# Size as transferred.
BATCH_MAX_BYTES: Final = 4 * 1_048_576
# The limit of Service Bus Standard, including headers.
MESSAGE_MAX_BYTES: Final = 262_144
MESSAGE_ID_MAX_CHARS: Final = 128


class ExchangeError(Exception):
    """Base class for the errors of queue, tables and raw store."""


class ExchangeUnavailable(ExchangeError):
    """The service did not answer in time. A later retry may succeed."""


class ExchangeMisconfigured(ExchangeError):
    """A setting is missing, wrong or rejected."""


class ExchangeRefused(ExchangeMisconfigured):
    """The service identified the client, and the client has no right to this operation."""


class StorageGone(ExchangeMisconfigured):
    """The storage was deleted or replaced while in use. A retry does not help."""


class RecordUnreadable(ExchangeError):
    """The stored record is corrupt, foreign, incomplete or from a newer Broadside."""


class QueueError(ExchangeError):
    """The queue rejected the operation."""


class LockLost(QueueError):
    """The lock expired before the message was settled."""


class MessageTooLarge(QueueError):
    """The message is above the queue's limit."""


class TableError(ExchangeError):
    """The table rejected the operation."""


class EntityExists(TableError):
    """A row with this key already exists."""


class EntityNotFound(TableError):
    """There is no row with that key."""


class EntityChanged(TableError):
    """The row was changed after it was read."""


class EntityRefused(TableError):
    """The row belongs to another agent. A retry does not help."""


class EntityTooLarge(TableError):
    """A property or the row is above the size limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """Message to send.

    Attributes:
        body: The content.
        message_id: Id for duplicate detection. The queue drops a second message with this id in
            the detection window.
        expires_at: The message will not be delivered after this time.
        enqueue_at: The message will not be delivered before this time. None delivers it
            immediately.
    """

    body: bytes
    message_id: str
    expires_at: datetime
    enqueue_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Locked message. Settle it once, before ``locked_until_at``.

    Attributes:
        body: The content.
        message_id: The message id.
        delivery_count: How often the message was delivered, 1 for the first delivery.
        locked_until_at: The end of the lock.
        token: Internal handle of the adapter.
    """

    body: bytes
    message_id: str
    delivery_count: int
    locked_until_at: datetime
    token: object = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Message that was moved to the dead-letter queue, with the reason."""

    sequence_number: int
    body: bytes
    message_id: str
    reason: str
    description: str
    dead_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Number of messages by state. A number is None if the adapter does not know it.

    Attributes:
        active_count: Messages that can be received now or are locked.
        scheduled_count: Messages with a later ``enqueue_at``.
        dead_count: Dead letters.
    """

    active_count: int | None
    scheduled_count: int | None
    dead_count: int | None


class JobQueue(Protocol):
    """Queue for competing consumers, with peek-lock and at-least-once delivery.

    - A message is *eligible* from ``enqueue_at`` until ``expires_at`` while it is not locked.
      Eligible messages are delivered roughly oldest first, without a guaranteed order.
    - ``receive`` locks at most **one** message, for the lock time of the queue. When the lock
      expires, the message is eligible again and the delivery counts. A message that reaches the
      maximum delivery count is dead-lettered with reason ``MaxDeliveryCountExceeded``.
    - An expired message is deleted and *not* dead-lettered. A late job is a missed measurement,
      which the coordinator detects from its plan. A receiver that has the lock can still settle
      the message.
    - If several messages have the same ``message_id`` within the detection window (at least 10
      minutes), only the first is delivered. This is also true if it was settled or cancelled in the
      meantime. The id has 1 to 128 characters. Otherwise ``ValueError`` is raised.
    - Every method may raise :class:`ExchangeUnavailable`.
    """

    async def send(self, messages: Sequence[Outgoing]) -> Sequence[int]:
        """Send messages and return their sequence numbers, in order.

        Messages may be split into several batches. If a batch fails, the earlier batches will be
        stored. Sending all messages again is safe, because ``message_id`` removes duplicates.

        Returns:
            Sequence numbers. :meth:`cancel` needs them for scheduled messages. For other messages
            they are only informative. A number is 0 if the service does not return one.

        Raises:
            MessageTooLarge: A message is too large. No message was sent.
        """

    async def cancel(self, sequence_numbers: Sequence[int]) -> int:
        """Cancel scheduled messages and return how many were cancelled. Others are ignored."""

    async def receive(self, wait_s: float) -> Delivery | None:
        """Lock one eligible message.

        If this call is cancelled, a message that was already locked is released.

        Args:
            wait_s: The maximum time to wait for a message, in seconds.

        Returns:
            The message, or None if there was no message in that time.
        """

    async def complete(self, delivery: Delivery) -> None:
        """Remove the message. Raise :class:`LockLost` if the lock expired."""

    async def abandon(self, delivery: Delivery) -> None:
        """Release the message immediately. Raise :class:`LockLost` if the lock expired."""

    async def renew(self, delivery: Delivery) -> Delivery:
        """Renew the lock for a full lock time. Raise :class:`LockLost` if it expired."""

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        """Move the message to the dead-letter queue.

        Args:
            delivery: The locked message.
            reason: The short reason.
            description: The explanation, as a full sentence.

        Raises:
            LockLost: The lock expired.
        """

    async def dead_letters(self, limit: int = 100) -> Sequence[DeadLetter]:
        """Return the oldest dead letters without removing them."""

    async def resend(self, sequence_number: int, expires_at: datetime) -> bool:
        """Move one dead letter back to the queue.

        The delivery count starts again. Duplicate detection does not apply, and the ``message_id``
        may change.

        Args:
            sequence_number: The sequence number of the dead letter.
            expires_at: New expiry time.

        Returns:
            False if the dead letter does not exist.
        """

    async def purge(self, sequence_number: int | None = None, *, limit: int = 1000) -> int:
        """Delete dead letters permanently.

        A dead letter that another receiver has locked is not deleted.

        Args:
            sequence_number: The dead letter to delete. None deletes the oldest ones.
            limit: The maximum number of dead letters to delete.

        Returns:
            The number of deleted dead letters.
        """

    async def ping(self) -> None:
        """Send one request to the service that affects no message."""

    async def counts(self) -> QueueCounts:
        """Return the number of messages by state."""

    async def close(self) -> None:
        """Close connections. Locks are not released, but they expire."""


Value = str | int | float | bool | bytes | datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """Row of a table. ``etag`` is set when a row is read, and ignored when it is written."""

    partition_key: str
    row_key: str
    properties: Mapping[str, Value]
    etag: str | None = None


class Table(Protocol):
    r"""Rows by partition key and row key. Writes are durable and visible immediately.

    - Keys have 1 to 512 characters, without ``/ \ # ?`` and control characters. Property names are
      identifiers, at most 252 per row. ``PartitionKey``, ``RowKey`` and ``Timestamp`` are reserved.
      Other keys and names raise ``ValueError``.
    - A value is read back exactly as it was written. ``int`` has 64 bits. A datetime is UTC with
      time zone and microseconds. Other values raise ``ValueError``.
    - ``scan`` returns the rows of a partition in ascending order of the row key, by code point.
    - Every method may raise :class:`ExchangeUnavailable`.
    """

    async def insert(self, entity: Entity) -> str:
        """Create a row and return its ETag. Raise :class:`EntityExists`, ``EntityTooLarge``."""

    async def upsert(self, entity: Entity) -> str:
        """Create or replace a row and return its ETag. Raise :class:`EntityTooLarge`."""

    async def replace(self, entity: Entity, etag: str) -> str:
        """Replace a row if its ETag has not changed.

        Args:
            entity: The new row.
            etag: The expected ETag.

        Returns:
            New ETag.

        Raises:
            EntityChanged: The row has another ETag.
            EntityNotFound: There is no such row.
            EntityTooLarge: A property or the row is too large.
        """

    async def get(self, partition_key: str, row_key: str) -> Entity | None:
        """Return a row.

        Args:
            partition_key: Partition of the row.
            row_key: Key of the row in its partition.

        Returns:
            The row with its ETag. None if it does not exist.

        Raises:
            ExchangeError: The table cannot be read.
        """

    def scan(
        self,
        partition_key: str,
        *,
        row_from: str | None = None,
        row_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Entity]:
        """Return rows of a partition in row-key order.

        Args:
            partition_key: The partition key.
            row_from: The row key to start from. None starts at the first row.
            row_before: The row key to stop before. None ends at the last row.
            limit: The maximum number of rows to return. None has no limit.
        """

    async def delete(self, partition_key: str, row_key: str) -> bool:
        """Delete a row, if it exists.

        Args:
            partition_key: Partition of the row.
            row_key: Key of the row in its partition.

        Returns:
            True if the row existed.

        Raises:
            ExchangeError: The table cannot be changed.
        """

    async def batch(self, entities: Sequence[Entity]) -> None:
        """Create or replace rows of one partition, in atomic batches of at most 100 rows and 4 MiB.

        Larger sequences are split into several batches, which are written in order.

        Raises:
            ValueError: The rows have several partitions, or a row key is duplicated.
            EntityTooLarge: A row is too large. No row was written.
        """

    async def next_partition(self, key_from: str, key_before: str) -> str | None:
        """Return the first partition that has rows, in a range of partition keys.

        Args:
            key_from: The partition key to start from.
            key_before: The partition key to stop before.

        Returns:
            Partition key, or None if the range has no rows.
        """

    async def delete_partition(self, partition_key: str) -> int:
        """Delete all rows of a partition and return their number."""

    async def close(self) -> None:
        """Close connections."""


@runtime_checkable
class SkipsKnown(Protocol):
    """Table that can omit the rows that a reader already has."""

    def scan_changed(
        self, partition_key: str, known: Mapping[str, str], *, row_from: str, row_before: str
    ) -> AsyncIterator[Entity]:
        """Return the rows of a range that are new or changed, in row-key order.

        Args:
            partition_key: The partition key.
            known: ETags of the rows that the reader already has, by row key.
            row_from: The row key to start from.
            row_before: The row key to stop before.
        """


async def scan_changed(
    table: "Table", partition_key: str, known: Mapping[str, str], *, row_from: str, row_before: str
) -> AsyncIterator[Entity]:
    """Yield the rows of a range that are new or changed, from any table.

    Args:
        table: The table to read.
        partition_key: The partition key.
        known: ETags of the rows that the reader already has, by row key.
        row_from: The row key to start from.
        row_before: The row key to stop before.
    """
    if isinstance(table, SkipsKnown):
        rows = table.scan_changed(partition_key, known, row_from=row_from, row_before=row_before)
    else:
        rows = table.scan(partition_key, row_from=row_from, row_before=row_before)
    async for row in rows:
        if row.etag is None or known.get(row.row_key) != row.etag:
            yield row


@dataclass(frozen=True, slots=True, kw_only=True)
class RawName:
    """Name of a text in a raw store.

    Both parts follow the rules of table keys.

    Attributes:
        folder: Folder with the texts of one burst, or of one hour of server-side tests.
        file: The name in the folder, which must not end with a dot.
    """

    folder: str
    file: str

    def __str__(self) -> str:
        return f"{self.folder}/{self.file}"


class RawStore(Protocol):
    """Store for texts of any size that are written once and rarely read, such as engine output.

    - Each name has one writer and one text. The writer can save the text again, for example if the
      result of the first call was lost. If two texts have the same name, either may be stored.
    - After ``save`` returns, the text can be read back byte for byte. An incomplete text is absent
      or raises :class:`RecordUnreadable`. It is never returned in part.
    - The store compresses texts. A caller can pass compressed text as
      :class:`~broadside.exchange.documents.Packed`.
    - Every method may raise :class:`ExchangeUnavailable`.
    """

    async def save(self, name: RawName, text: bytes) -> None:
        """Store a text.

        Args:
            name: The name to store the text under.
            text: The text, plain or ``Packed``.
        """

    async def read(self, name: RawName) -> bytes | None:
        """Return a text, or None if it does not exist."""

    async def delete_folder(self, folder: str) -> int:
        """Delete all texts of a folder and return their number."""

    async def close(self) -> None:
        """Close connections."""
