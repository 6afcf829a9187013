"""Collection of small named values in one partition, such as schedules, tokens or audit rows."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, TypeVar

from broadside.exchange.limits import check_key
from broadside.exchange.messages import Message
from broadside.exchange.ports import (
    Entity,
    EntityChanged,
    EntityNotFound,
    ExchangeUnavailable,
    Table,
)
from broadside.exchange.rows import message_row, parse_row, row_name, try_row

_TRIES_COUNT: Final = 10
# Longest pause between two attempts.
_PAUSE_S: Final = 0.1


async def change_row(
    table: Table, partition: str, key: str, change: Callable[[Entity], Entity]
) -> Entity | None:
    """Update a row with optimistic locking. Retry if another process has changed the row.

    Args:
        table: The table of the row.
        partition: The partition key for all rows.
        key: The row key.
        change: A function that takes the current row and returns the new row. It can be called
            several times. If it returns the same object, the row will not be written.

    Returns:
        Row after the change, or None if it does not exist.

    Raises:
        ExchangeUnavailable: The row was changed during every attempt.
    """
    for _ in range(_TRIES_COUNT):
        row = await table.get(partition, key)
        if row is None or (new := change(row)) is row:
            return row
        try:
            await table.replace(new, row.etag or "")
        except EntityChanged:
            await asyncio.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311 - jitter
        else:
            return new
    raise ExchangeUnavailable(
        f"{partition} {key}: changed under {_TRIES_COUNT} attempts to change it; try again"
    )


_M = TypeVar("_M", bound=Message)


def _possible(key: str) -> bool:
    """Return True if a table accepts the key. Callers can pass user input as the key."""
    try:
        check_key(key)
    except ValueError:
        return False
    return True


class Collection(Generic[_M]):
    """Values of one message model by key. Every method may raise ``ExchangeUnavailable``."""

    def __init__(self, table: Table, partition: str, model: type[_M]) -> None:
        self._table = table
        self._partition = partition
        self._model = model

    async def create(self, key: str, value: _M) -> None:
        """Create a value.

        If several processes create the same key, exactly one succeeds.

        Args:
            key: The row key.
            value: The new value.

        Raises:
            EntityExists: The key is already used.
        """
        await self._table.insert(message_row(self._partition, key, value))

    async def put(self, key: str, value: _M) -> None:
        """Create or replace a value.

        Args:
            key: Row key of the value in the partition of the collection.
            value: Message to store as JSON.
        """
        await self._table.upsert(message_row(self._partition, key, value))

    async def read(self, key: str) -> _M | None:
        """Return a value, or None if the key is invalid or unknown.

        Raises:
            RecordUnreadable: The row is not valid.
        """
        if not _possible(key):
            return None
        row = await self._table.get(self._partition, key)
        return None if row is None else parse_row(self._model, row)

    async def change(self, key: str, change: Callable[[_M], _M]) -> _M:
        """Update a value with optimistic locking.

        Args:
            key: The row key.
            change: A function that takes the current value and returns the new value. It can be
                called several times.

        Returns:
            Value after the change.

        Raises:
            EntityNotFound: There is no such value.
            RecordUnreadable: The row is not valid.
        """
        if not _possible(key):
            raise EntityNotFound(f"{self._partition} {key!r}: not found")

        def changed(row: Entity) -> Entity:
            value = parse_row(self._model, row)
            new = change(value)
            return row if new == value else message_row(self._partition, key, new)

        row = await change_row(self._table, self._partition, key, changed)
        if row is None:
            raise EntityNotFound(f"{self._partition} {key}: not found")
        return parse_row(self._model, row)

    async def delete(self, key: str) -> bool:
        """Delete a value. Return False if it did not exist."""
        return _possible(key) and await self._table.delete(self._partition, key)

    async def clear(self) -> int:
        """Delete all values and return their number."""
        return await self._table.delete_partition(self._partition)

    async def scan(
        self,
        *,
        key_from: str | None = None,
        key_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[tuple[str, _M]]:
        """Yield keys and values in key order.

        An unreadable row is skipped and logged once. If a row is damaged or from another version,
        the others must still be readable.

        Args:
            key_from: The key to start from. None starts at the first key.
            key_before: The key to stop before. None ends after the last key.
            limit: The maximum number of values to return. None has no limit.
        """
        count = 0
        async for row in self._table.scan(
            self._partition, row_from=key_from, row_before=key_before
        ):
            if count == limit:
                return
            value = try_row(self._model, row)
            if value is not None:
                count += 1
                yield row.row_key, value

    async def unreadable(self, *, key_before: str | None = None) -> list[str]:
        """Return unreadable rows as ``partition|key``. Each row is logged once."""
        return [
            row_name(row)
            async for row in self._table.scan(self._partition, row_before=key_before)
            if try_row(self._model, row) is None
        ]
