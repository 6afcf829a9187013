"""Imports and caches for the fork server, loaded once for all child processes.

The adapter clients load many modules when they send their first request, and start a process to
identify the system. Each client is therefore used here to send one request, which will fail.
"""

import asyncio
import gc
from typing import Final

import tests.contract.test_competition  # noqa: F401 - modules used by the processes
from broadside.exchange.azure.table_storage import AzureTable, TableAddress
from broadside.exchange.azure.wire import StorageBounds
from broadside.exchange.http.http_ports import HttpTable
from broadside.exchange.ports import ExchangeUnavailable
from tests.contract.adapters import http_link

_CLOSED_URL: Final = "http://127.0.0.1:1"
_AZURE: Final = f"AccountName=a;AccountKey=bGFi;TableEndpoint={_CLOSED_URL}/a;"


async def _send_failing_requests() -> None:
    azure = AzureTable(
        TableAddress(table="nobody", connection_string=_AZURE),
        bounds=StorageBounds(retries_max_count=0),
    )
    coordinator = HttpTable(http_link("secret", _CLOSED_URL), "results")
    for table in (azure, coordinator):
        try:
            async with asyncio.timeout(1):
                await table.get("part", "a")
        except (ExchangeUnavailable, TimeoutError):
            pass
        await table.close()


asyncio.run(_send_failing_requests())
gc.collect()
# Shared memory should remain shared. The garbage collector would write to it.
gc.freeze()
