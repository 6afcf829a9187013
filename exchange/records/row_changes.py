"""Changes a row that others change too: by its ETag, again and again."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from exchange.ports import Entity, EntityChanged, ExchangeUnavailable, Table

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
