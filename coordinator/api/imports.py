"""Routes that make runs of what other tools measured."""

from fastapi import APIRouter, Response

from coordinator.api.problems import PROBLEMS
from coordinator.api.service import Service
from coordinator.imports.results import ImportedRecordings
from coordinator.imports.tables import ImportedTable
from coordinator.imports.values import OriginalTable, Recordings

router = APIRouter(prefix="/v1/imports", responses=PROBLEMS, tags=["imports"])


@router.post("/original", status_code=201)
async def import_table(
    table: OriginalTable, response: Response, coordinator: Service
) -> ImportedTable:
    """Make a run of one of the original test's tables."""
    imported = await coordinator.import_table(table)
    response.headers["Location"] = f"/v1/runs/{imported.run_id}"
    return imported


@router.post("/iperf3", status_code=201)
async def import_recordings(
    recordings: Recordings, response: Response, coordinator: Service
) -> ImportedRecordings:
    """Make one run of files that iperf3 wrote."""
    imported = await coordinator.import_recordings(recordings)
    response.headers["Location"] = f"/v1/runs/{imported.run_id}"
    return imported
