"""Storage of imported runs, which are visible only when they are stored completely."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import RunSummary, canonical
from broadside.coordinator.device.telemetry.telemetry_storage import dump_counter
from broadside.coordinator.imports.import_answers import (
    ImportedBurst,
    ImportedRecordings,
    ImportedTable,
    describe,
)
from broadside.coordinator.imports.import_requests import Imported, OriginalTable, Recordings
from broadside.coordinator.imports.iperf3_runs import Iperf3Tests
from broadside.coordinator.imports.stored_imports import summarise
from broadside.coordinator.imports.table_runs import TableTests
from broadside.coordinator.runs.listing import outcome_of
from broadside.coordinator.runs.run_ids import new_run_id
from broadside.exchange.messages import Control
from broadside.exchange.records import Document, Records, RunHeader

log = logging.getLogger(__name__)

# Number of documents that are stored at the same time.
SAVED_AT_ONCE: Final = 50


async def store_table(records: Records, table: OriginalTable, now: datetime) -> ImportedTable:
    """Create a run from a table.

    Args:
        records: The coordinator's records.
        table: Table to import.
        now: Current time.

    Returns:
        Verdict, findings and bursts of the new run.

    Raises:
        BadScenario: A field cannot be set, or its value is not valid.
        BadFile: The table has too many bursts or pairs.
    """
    tests = await asyncio.to_thread(TableTests, table)
    summary = await _store(records, table, tests, now)
    return await asyncio.to_thread(tests.describe, summary)


async def store_recordings(
    records: Records, imported: Recordings, now: datetime
) -> ImportedRecordings:
    """Create one run from iperf3 files.

    Args:
        records: The coordinator's records.
        imported: Recordings to import.
        now: Current time.

    Returns:
        Verdict and findings of the new run, and the state of each recording.

    Raises:
        BadFile: There is no test in the recordings.
        BadScenario: A field cannot be set, or its value is not valid.
    """
    tests = await asyncio.to_thread(Iperf3Tests, imported)
    summary = await _store(records, imported, tests, now)

    def describe_all() -> ImportedRecordings:
        return ImportedRecordings(
            run_id=summary.run_id,
            verdict=summary.verdict,
            labels=imported.labels,
            files=tuple(describe(recording) for recording in imported.recordings),
            bursts=tuple(ImportedBurst.of(burst) for burst in summary.bursts),
            findings=summary.findings,
        )

    return await asyncio.to_thread(describe_all)


async def _store(
    records: Records, imported: Imported, tests: TableTests | Iperf3Tests, now: datetime
) -> RunSummary:
    """Store an import as a finished run. It becomes visible after everything else is stored."""
    run_id = new_run_id(imported.kind, now)

    def compute() -> tuple[Plan, RunSummary, Mapping[tuple[Document, int | None], bytes]]:
        plan = tests.plan(run_id, now)
        measured = tests.measure(plan)
        summary = summarise(plan, measured, now)
        documents: dict[tuple[Document, int | None], bytes] = {
            (Document.IMPORT, None): imported.to_json().encode(),
            (Document.RUN, None): canonical(summary),
        }
        if measured.device_counter is not None:
            documents[Document.COUNTER, None] = dump_counter(measured.device_counter)
        for part in measured.bursts:
            documents[Document.SERIES, part.summary.index] = part.series.pack()
            documents[Document.BURST, part.summary.index] = canonical(part.summary)
        return plan, summary, documents

    plan, summary, documents = await asyncio.to_thread(compute)
    slots = asyncio.Semaphore(SAVED_AT_ONCE)

    async def save(document: Document, burst_index: int | None, content: bytes) -> None:
        async with slots:
            await records.private.save_document(run_id, document, content, burst_index)

    await asyncio.gather(*(save(*key, content) for key, content in documents.items()))
    header = RunHeader(
        run_id=run_id,
        scenario=plan.spec.scenario,
        created_at=now,
        created_by=imported.by,
        labels=plan.spec.labels,
        device=plan.spec.device,
        traffic_from_at=min(burst.planned_start_at for burst in plan.bursts),
        bursts_count=len(plan.bursts),
    )
    control = Control(run_id=run_id, lease_until_at=now)
    await records.create_run(header, plan.document, control)
    await records.private.save_outcome(run_id, outcome_of(summary, cancelled=False))
    log.info("run imported", extra={"action": "import", "run_id": run_id})
    return summary
