"""Routes that make runs of what other tools measured."""

from fastapi import Response

from broadside.coordinator.api.dependencies import Caller, Service, routes
from broadside.coordinator.imports.import_answers import ImportedRecordings, ImportedTable
from broadside.coordinator.imports.import_requests import OriginalTable, Recordings
from broadside.coordinator.imports.stored_imports import keep_recordings, keep_table

router = routes("imports", "/v1/imports")


@router.post("/original", status_code=201)
async def import_table(
    table: OriginalTable, response: Response, coordinator: Service, caller: Caller
) -> ImportedTable:
    """Make a run of one of the original test's tables."""
    named = table.model_copy(update={"by": caller.named(table.by)})
    imported = await keep_table(coordinator.fabric.records, named, coordinator.now())
    response.headers["Location"] = f"/v1/runs/{imported.run_id}"
    return imported


@router.post("/iperf3", status_code=201)
async def import_recordings(
    recordings: Recordings, response: Response, coordinator: Service, caller: Caller
) -> ImportedRecordings:
    """Make one run of files that iperf3 wrote."""
    named = recordings.model_copy(update={"by": caller.named(recordings.by)})
    imported = await keep_recordings(coordinator.fabric.records, named, coordinator.now())
    response.headers["Location"] = f"/v1/runs/{imported.run_id}"
    return imported
