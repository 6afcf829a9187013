"""Notices that what holds the rows was removed or replaced: nothing else would end the wait."""

import asyncio
from typing import Final

from broadside.exchange.fabric import Fabric
from broadside.exchange.ports import ExchangeError, StorageGone

LOOK_S: Final = 2.0  # s between looks, as long as a heartbeat


async def storage_gone(fabric: Fabric) -> StorageGone:
    """Returns once a file of the embedded fabric is not the one that was opened; else never."""
    while True:
        await asyncio.sleep(LOOK_S)
        if not fabric.in_files:
            continue
        try:
            for table in (fabric.private, fabric.control, fabric.results):
                await table.get("doctor", "storage")
            await fabric.queue.ping()
        except StorageGone as error:
            return error
        except ExchangeError:  # an outage: whoever works with it says so
            continue
