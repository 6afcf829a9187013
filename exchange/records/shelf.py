"""Small named values of one kind in one partition: schedules, tokens, audit rows."""

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
_PAUSE_S: Final = 0.1  # s, at most, between two tries


async def change_row(
    table: Table, partition: str, key: str, change: Callable[[Entity], Entity]
) -> Entity | None:
    """Replace a row by what ``change`` makes of its newest state, whoever else writes; the row as
    it is then. The same row back: nothing is written. None: there is none.

    ``change`` may be called several times.
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
    """Whether a row can have this key: callers pass on what a person typed."""
    try:
        check_key(key)
    except ValueError:
        return False
    return True


class Shelf(Generic[_M]):
    """Messages of one model by key. Every verb may raise ``ExchangeUnavailable``."""

    def __init__(self, table: Table, partition: str, model: type[_M]) -> None:
        self._table = table
        self._partition = partition
        self._model = model

    async def create(self, key: str, value: _M) -> None:
        """Raises ``EntityExists`` when the key is taken: of many writers exactly one succeeds."""
        await self._table.insert(message_row(self._partition, key, value))

    async def put(self, key: str, value: _M) -> None:
        """Create or replace."""
        await self._table.upsert(message_row(self._partition, key, value))

    async def read(self, key: str) -> _M | None:
        """The value, or None, also for what can be no key. Raises ``RecordUnreadable``."""
        if not _possible(key):
            return None
        row = await self._table.get(self._partition, key)
        return None if row is None else parse_row(self._model, row)

    async def change(self, key: str, change: Callable[[_M], _M]) -> _M:
        """Replace a value by what ``change`` makes of its newest state, whoever else writes.

        ``change`` may be called several times. Raises ``EntityNotFound``, ``RecordUnreadable``.
        """
        if not _possible(key):
            raise EntityNotFound(f"{self._partition} {key!r}: there is none")

        def changed(row: Entity) -> Entity:
            value = parse_row(self._model, row)
            new = change(value)
            return row if new == value else message_row(self._partition, key, new)

        row = await change_row(self._table, self._partition, key, changed)
        if row is None:
            raise EntityNotFound(f"{self._partition} {key}: there is none")
        return parse_row(self._model, row)

    async def delete(self, key: str) -> bool:
        """Remove; False when there was none."""
        return _possible(key) and await self._table.delete(self._partition, key)

    async def clear(self) -> int:
        """Remove every value; return how many there were."""
        return await self._table.delete_partition(self._partition)

    async def scan(
        self,
        *,
        key_from: str | None = None,
        key_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[tuple[str, _M]]:
        """Key and value in key order, ``key_from <= key < key_before``, at most ``limit``.

        A row that cannot be read is left out and logged once: one that somebody spoiled, or that
        another version wrote, must not stop the rest.
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
        """Which rows cannot be read, as ``partition|key``; each is logged once."""
        return [
            row_name(row)
            async for row in self._table.scan(self._partition, row_before=key_before)
            if try_row(self._model, row) is None
        ]
