"""Routes that create runs from measurements that other tools have made."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final
from weakref import WeakValueDictionary

from fastapi import Response
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException

from broadside.coordinator.api.dependencies import (
    Caller,
    CurrentCoordinator,
    app_state,
    make_router,
)
from broadside.coordinator.api.request_body import Deferred, validated
from broadside.coordinator.auth.principal import Principal
from broadside.coordinator.imports.import_answers import ImportedRecordings, ImportedTable
from broadside.coordinator.imports.import_requests import OriginalTable, Recordings
from broadside.coordinator.runs.import_storage import store_recordings, store_table
from broadside.exchange.chunks import count_rows
from broadside.exchange.ports import RecordUnreadable

# Limit for all recordings in one request. It is enough for 1,000 pairs with both ends and 2,000 s.
# The limit of the request size is not sufficient, because a constant column takes no bytes.
INTERVALS_MAX_COUNT: Final = 4_000_000
# Each import needs memory, and a worker thread for up to some minutes.
IMPORTS_AT_ONCE: Final = 2

router = make_router("imports", "/v1/imports")

_TABLE: Final = TypeAdapter(OriginalTable)
_RECORDINGS: Final = TypeAdapter(Recordings)


class ImportLimiter:
    """Limit for concurrent imports, in total and one per caller."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(IMPORTS_AT_ONCE)
        self._by_caller: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, caller: Principal) -> AsyncIterator[None]:
        """Wait until an import of this caller can start."""
        lock = self._by_caller.setdefault(caller.key, asyncio.Lock())
        async with lock, self._all:
            yield


Limiter = Annotated[ImportLimiter, app_state("import_limiter")]


@router.post("/original", status_code=201)
async def import_table(
    table: Deferred[OriginalTable],
    response: Response,
    coordinator: CurrentCoordinator,
    caller: Caller,
    limiter: Limiter,
) -> ImportedTable:
    """Create a run from a result table of the original test."""
    async with limiter.take(caller):
        table = await validated(_TABLE, table)
        named = table.model_copy(update={"by": caller.named(table.by)})
        imported = await store_table(coordinator.fabric.records, named, coordinator.now())
    response.headers["Location"] = f"/v1/runs/{imported.run_id}"
    return imported


@router.post("/iperf3", status_code=201)
async def import_recordings(
    recordings: Deferred[Recordings],
    response: Response,
    coordinator: CurrentCoordinator,
    caller: Caller,
    limiter: Limiter,
) -> ImportedRecordings:
    """Create a run from iperf3 result files."""
    async with limiter.take(caller):
        recordings = await validated(_RECORDINGS, recordings, _bound_intervals)
        named = recordings.model_copy(update={"by": caller.named(recordings.by)})
        imported = await store_recordings(coordinator.fabric.records, named, coordinator.now())
    response.headers["Location"] = f"/v1/runs/{imported.run_id}"
    return imported


def _bound_intervals(body: Any) -> None:
    """Reject a request with too many intervals before it is decoded, by the counts in its chunks.

    Raises:
        HTTPException: Status 413.
    """
    count = 0
    recordings = body.get("recordings") if isinstance(body, dict) else None
    for recording in recordings if isinstance(recordings, list) else ():
        packed = recording.get("packed") if isinstance(recording, dict) else None
        for text in packed.values() if isinstance(packed, dict) else ():
            try:
                count += count_rows(base64.b64decode(text, validate=True))
            except (RecordUnreadable, ValueError, TypeError):
                # Validation reports the error later.
                continue
    if count > INTERVALS_MAX_COUNT:
        raise HTTPException(
            413,
            f"the recordings have {count} intervals; the limit of one import is "
            f"{INTERVALS_MAX_COUNT}: import fewer files, or use a longer interval (iperf3 -i)",
        )
