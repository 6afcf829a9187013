"""Imports and caches of the fork server, loaded once for all child processes.

The clients of the adapters load many modules at their first request and start a process to identify
the system. Therefore each client sends one request here, which fails.
"""

import asyncio
import gc
from typing import Final

import tests.contract.test_competition  # noqa: F401 - what the processes are to do
from broadside.exchange.azure.table_storage import AzureTable, TableAddress
from broadside.exchange.azure.wire import StorageBounds
from broadside.exchange.http.http_ports import HttpTable
from broadside.exchange.ports import ExchangeUnavailable
from tests.contract.adapters import http_link

_NOBODY: Final = "http://127.0.0.1:1"
_AZURE: Final = f"AccountName=a;AccountKey=bGFi;TableEndpoint={_NOBODY}/a;"


async def _ask_nobody() -> None:
    azure = AzureTable(
        TableAddress(table="nobody", connection_string=_AZURE),
        bounds=StorageBounds(retries_max_count=0),
    )
    coordinator = HttpTable(http_link("secret", _NOBODY), "results")
    for table in (azure, coordinator):
        try:
            async with asyncio.timeout(1):
                await table.get("part", "a")
        except (ExchangeUnavailable, TimeoutError):
            pass
        await table.close()


asyncio.run(_ask_nobody())
gc.collect()
# Shared memory remains shared, because the garbage collector would write to it.
gc.freeze()
