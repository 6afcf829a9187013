"""What the server of forked processes knows before the first fork: no child learns it again.

The adapters' clients load much of what they need at their first request, and ask the system what it
is by a process of its own. So each makes one request here, which nobody answers.
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
gc.freeze()  # what is shared stays so: a look for garbage would write to it
