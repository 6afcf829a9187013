"""Storage of imported runs, which are visible only when they are stored completely."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, assert_never

from pydantic import TypeAdapter

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.live.status import RunStatus
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import Finding, RunSummary, Verdict, canonical, order
from broadside.coordinator.device.telemetry.telemetry_storage import dump_ledger
from broadside.coordinator.imports.import_answers import (
    ImportedBurst,
    ImportedRecordings,
    ImportedTable,
    describe,
)
from broadside.coordinator.imports.import_requests import Imported, OriginalTable, Recordings
from broadside.coordinator.imports.import_runs import ImportedState, Measured, stand
from broadside.coordinator.imports.original_runs import (
    describe_table,
    measure_table,
    plan_table,
    stand_table,
)
from broadside.coordinator.imports.recordings import (
    measure_recordings,
    plan_recordings,
    stand_recordings,
)
from broadside.coordinator.runs.listing import outcome_of
from broadside.coordinator.runs.run_ids import new_run_id
from broadside.exchange.messages import Control
from broadside.exchange.records import Document, Records, RunHeader

log = logging.getLogger(__name__)

# Number of documents that are stored at the same time.
SAVED_AT_ONCE: Final = 50

_IMPORTED: TypeAdapter[Imported] = TypeAdapter(Imported)


def plan_import(imported: Imported, run_id: str, now: datetime) -> Plan:
    """Build the plan of an import.

    Args:
        imported: Values to import.
        run_id: The new run's id.
        now: Current time.

    Raises:
        BadScenario: A field cannot be set, or its value is not valid.
        BadFile: The import contains no test, or too many bursts or pairs.
    """
    match imported:
        case OriginalTable():
            return plan_table(imported, run_id, now)
        case Recordings():
            return plan_recordings(imported, run_id, now)
        case _:
            assert_never(imported)


def measure_import(plan: Plan, imported: Imported) -> Measured:
    """Return the measurements of an import.

    Args:
        plan: The run's plan.
        imported: Values to import.
    """
    match imported:
        case OriginalTable():
            return measure_table(plan, imported)
        case Recordings():
            return measure_recordings(plan, imported)
        case _:
            assert_never(imported)


def stand_import(imported: Imported) -> Sequence[ImportedState]:
    """Return the state of each burst in an import."""
    match imported:
        case OriginalTable():
            return stand_table(imported)
        case Recordings():
            return stand_recordings(imported)
        case _:
            assert_never(imported)


async def keep_table(records: Records, table: OriginalTable, now: datetime) -> ImportedTable:
    """Create a run from an original table.

    Args:
        records: The coordinator's records.
        table: Table to import.
        now: Current time.

    Raises:
        BadScenario: A field cannot be set, or its value is not valid.
        BadFile: The table has too many bursts or pairs.
    """
    summary = await _keep(records, table, now)
    return await asyncio.to_thread(describe_table, table, summary)


async def keep_recordings(
    records: Records, imported: Recordings, now: datetime
) -> ImportedRecordings:
    """Create one run from iperf3 files.

    Args:
        records: The coordinator's records.
        imported: Recordings to import.
        now: Current time.

    Raises:
        BadFile: There is no test in the recordings.
        BadScenario: A field cannot be set, or its value is not valid.
    """
    summary = await _keep(records, imported, now)

    def described() -> ImportedRecordings:
        return ImportedRecordings(
            run_id=summary.run_id,
            verdict=summary.verdict,
            labels=imported.labels,
            files=tuple(describe(recording) for recording in imported.recordings),
            bursts=tuple(ImportedBurst.of(burst) for burst in summary.bursts),
            findings=summary.findings,
        )

    return await asyncio.to_thread(described)


async def _keep(records: Records, imported: Imported, now: datetime) -> RunSummary:
    name = "original" if isinstance(imported, OriginalTable) else "iperf3"
    plan = await asyncio.to_thread(plan_import, imported, new_run_id(name, now), now)
    summary = await save_import(records, plan, imported)
    await records.private.save_outcome(plan.run_id, outcome_of(summary, cancelled=False))
    log.info("run imported", extra={"action": "import", "run_id": plan.run_id})
    return summary


async def save_import(records: Records, plan: Plan, imported: Imported) -> RunSummary:
    """Store an import as a finished run. It becomes visible after everything else is stored.

    Args:
        records: The coordinator's records.
        plan: The run's plan.
        imported: Values to import.
    """

    def computed() -> tuple[RunSummary, Mapping[tuple[Document, int | None], bytes]]:
        measured = measure_import(plan, imported)
        summary = summarise(plan, measured, plan.created_at)
        documents: dict[tuple[Document, int | None], bytes] = {
            (Document.IMPORT, None): imported.to_json().encode()
        }
        if measured.ledger is not None:
            documents[Document.LEDGER, None] = dump_ledger(measured.ledger)
        for part in measured.bursts:
            documents[Document.SERIES, part.summary.index] = part.series.pack()
            documents[Document.BURST, part.summary.index] = canonical(part.summary)
        return summary, documents | {(Document.RUN, None): canonical(summary)}

    summary, documents = await asyncio.to_thread(computed)
    places = asyncio.Semaphore(SAVED_AT_ONCE)

    async def save(document: Document, burst_index: int | None, content: bytes) -> None:
        async with places:
            await records.private.save_document(plan.run_id, document, content, burst_index)

    await asyncio.gather(*(save(*key, content) for key, content in documents.items()))
    header = RunHeader(
        run_id=plan.run_id,
        scenario=plan.spec.scenario,
        created_at=plan.created_at,
        created_by=imported.by,
        labels=plan.spec.labels,
        device=plan.spec.device,
        traffic_from_at=min(burst.planned_start_at for burst in plan.bursts),
        bursts_count=len(plan.bursts),
    )
    control = Control(run_id=plan.run_id, lease_until_at=plan.created_at)
    await records.create_run(header, plan.document, control)
    return summary


def parse_import(document: bytes) -> Imported:
    """Parse the stored values of an imported run."""
    return _IMPORTED.validate_json(document)


async def recompute_import(plan: Plan, imported: Imported, computed_at: datetime) -> RunSummary:
    """Compute the summary from the stored values.

    Args:
        plan: The run's plan.
        imported: Stored values of the import.
        computed_at: Computation time that the summary will contain.
    """

    def computed() -> RunSummary:
        return summarise(plan, measure_import(plan, imported), computed_at)

    return await asyncio.to_thread(computed)


async def import_status(plan: Plan, imported: Imported) -> RunStatus:
    """Return the status of an imported run.

    Args:
        plan: The run's plan.
        imported: Stored values of the import.
    """
    status = await asyncio.to_thread(lambda: stand(plan, stand_import(imported)))
    return status.model_copy(update={"imported": imported.kind})


# Next step of a finding, where it differs from that of a normal run. None for no next step.
_NEXT_STEPS: Final[Mapping[str, str | None]] = {
    "fleet-alone": "import with the firewall's metric (--firewall-metric), where there is one",
    "receiver-unseen": "import the servers' recordings of the same tests too",
    "below-floor": "read it as what it is; import what is missing, where it exists",
    "lost-pairs": "import their results too, where they exist",
    "no-window": None,
    "null-pairs": None,
    "missed-pairs": None,
    "abandoned-pairs": None,
    "late-pairs": None,
}


def summarise(plan: Plan, measured: Measured, now: datetime) -> RunSummary:
    """Compute the summary for an import, using the same rules as for all runs.

    Args:
        plan: The run's plan.
        measured: Measurements of the import.
        now: Computation time that the summary will contain.
    """
    summary = summarise_run(plan, measured.bursts, measured.ledger, now)
    findings = [
        finding.model_copy(update={"next_step": _NEXT_STEPS.get(finding.id, finding.next_step)})
        for finding in (*summary.findings, *measured.findings)
    ]
    verdict = summary.verdict
    if measured.open_reason is not None:
        if verdict in (Verdict.PASS, Verdict.MEASURED):
            verdict = Verdict.INCONCLUSIVE
        findings.append(
            Finding(
                id="import-open",
                kind="verdict",
                severity="problem",
                weight=91,
                sentence=measured.open_reason,
                next_step="import what is missing, or a slice without the gap (--from, --before)",
            )
        )
    return summary.model_copy(update={"verdict": verdict, "findings": order(findings)})
