"""Routes that make runs of what other tools measured."""

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

# Of all recordings of one request: 1,000 pairs, both ends, 2,000 s. A constant column takes no byte
# a row, so the size of a request does not bound them.
INTERVALS_MAX_COUNT: Final = 4_000_000
IMPORTS_AT_ONCE: Final = 2  # each takes a worker thread for up to minutes, and memory

router = routes("imports", "/v1/imports")

_TABLE: Final = TypeAdapter(OriginalTable)
_RECORDINGS: Final = TypeAdapter(Recordings)


class ImportTurns:
    """Turns to compute an import: a few at once, and one for each caller."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(IMPORTS_AT_ONCE)
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, caller: Principal) -> AsyncIterator[None]:
        """Wait for the caller's turn."""
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
    """Refuse more intervals than are read, by what the chunks claim, before one is built.

    Raises:
        HTTPException: 413.
    """
    count = 0
    recordings = body.get("recordings") if isinstance(body, dict) else None
    for recording in recordings if isinstance(recordings, list) else ():
        packed = recording.get("packed") if isinstance(recording, dict) else None
        for text in packed.values() if isinstance(packed, dict) else ():
            try:
                count += count_rows(base64.b64decode(text, validate=True))
            except (RecordUnreadable, ValueError, TypeError):
                continue  # validation says what is wrong with it
    if count > INTERVALS_MAX_COUNT:
        raise HTTPException(
            413,
            f"the recordings hold {count} intervals; at most {INTERVALS_MAX_COUNT} are read in one "
            "import: import fewer files at once, or tests of a longer interval (iperf3 -i)",
        )
