"""Routes that create runs from measurements that other tools have made."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final
from weakref import WeakValueDictionary

from fastapi import Depends, Request, Response
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException

from broadside.coordinator.api.deferred import Deferred, validated
from broadside.coordinator.api.dependencies import Caller, Service, routes
from broadside.coordinator.auth.principal import Principal
from broadside.coordinator.imports.import_answers import ImportedRecordings, ImportedTable
from broadside.coordinator.imports.import_requests import OriginalTable, Recordings
from broadside.coordinator.imports.stored_imports import keep_recordings, keep_table
from broadside.exchange.chunks import count_rows
from broadside.exchange.ports import RecordUnreadable

# Limit for all recordings in one request. It is enough for 1,000 pairs with both ends and 2,000 s.
# The limit of the request size is not sufficient, because a constant column takes no bytes.
INTERVALS_MAX_COUNT: Final = 4_000_000
# Each import needs memory, and a worker thread for up to some minutes.
IMPORTS_AT_ONCE: Final = 2

router = routes("imports", "/v1/imports")

_TABLE: Final = TypeAdapter(OriginalTable)
_RECORDINGS: Final = TypeAdapter(Recordings)


class ImportTurns:
    """Limit for concurrent imports, in total and one per caller."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(IMPORTS_AT_ONCE)
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, caller: Principal) -> AsyncIterator[None]:
        """Wait until an import of this caller can start."""
        own = self._own.setdefault(caller.key, asyncio.Lock())
        async with own, self._all:
            yield


def _turns(request: Request) -> ImportTurns:
    turns: ImportTurns = request.app.state.import_turns
    return turns


Turns = Annotated[ImportTurns, Depends(_turns)]


@router.post("/original", status_code=201)
async def import_table(
    table: Deferred[OriginalTable],
    response: Response,
    coordinator: Service,
    caller: Caller,
    turns: Turns,
) -> ImportedTable:
    """Make a run of one of the original test's tables."""
    async with turns.take(caller):
        table = await validated(_TABLE, table)
        named = table.model_copy(update={"by": caller.named(table.by)})
        imported = await keep_table(coordinator.fabric.records, named, coordinator.now())
    response.headers["Location"] = f"/v1/runs/{imported.run_id}"
    return imported


@router.post("/iperf3", status_code=201)
async def import_recordings(
    recordings: Deferred[Recordings],
    response: Response,
    coordinator: Service,
    caller: Caller,
    turns: Turns,
) -> ImportedRecordings:
    """Make one run of files that iperf3 wrote."""
    async with turns.take(caller):
        recordings = await validated(_RECORDINGS, recordings, _bound_intervals)
        named = recordings.model_copy(update={"by": caller.named(recordings.by)})
        imported = await keep_recordings(coordinator.fabric.records, named, coordinator.now())
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
            f"the recordings hold {count} intervals; at most {INTERVALS_MAX_COUNT} are read in one "
            "import: import fewer files at once, or tests of a longer interval (iperf3 -i)",
        )
