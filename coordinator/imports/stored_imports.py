"""Summary and status of imported runs, computed from their stored values."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.live.status import RunStatus
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import Finding, RunSummary, Verdict, order
from broadside.coordinator.imports.import_requests import Imported, OriginalTable
from broadside.coordinator.imports.import_runs import Measured, run_status
from broadside.coordinator.imports.iperf3_runs import SCENARIO as IPERF3_SCENARIO
from broadside.coordinator.imports.iperf3_runs import Iperf3Tests
from broadside.coordinator.imports.table_runs import TableTests

_IMPORTED: TypeAdapter[Imported] = TypeAdapter(Imported)


def open_import(imported: Imported) -> TableTests | Iperf3Tests:
    """Return the tests of an import, which can be planned and measured."""
    return TableTests(imported) if isinstance(imported, OriginalTable) else Iperf3Tests(imported)


def parse_import(document: bytes) -> Imported:
    """Parse the stored values of an imported run."""
    return _IMPORTED.validate_json(document)


async def recompute_import(plan: Plan, imported: Imported, computed_at: datetime) -> RunSummary:
    """Compute the summary from the stored values.

    Args:
        plan: The run's plan.
        imported: Stored values of the import.
        computed_at: Computation time that the summary will contain.

    Returns:
        The summary, by the rules of this version.
    """

    def compute() -> RunSummary:
        return summarise(plan, open_import(imported).measure(plan), computed_at)

    return await asyncio.to_thread(compute)


async def import_status(plan: Plan, imported: Imported) -> RunStatus:
    """Return the status of an imported run.

    Args:
        plan: The run's plan.
        imported: Stored values of the import.
    """
    status = await asyncio.to_thread(lambda: run_status(plan, open_import(imported).states()))
    return status.model_copy(update={"imported": imported.kind})


# Next step of a finding, where it differs from that of a normal run. None for no next step.
_NEXT_STEPS: Final[Mapping[str, str | None]] = {
    "fleet-alone": "Import with the metric of the firewall (`--firewall-metric`), if there is one",
    "receiver-unseen": "Import the recordings of the servers for the same tests too",
    "below-floor": "Import the missing results too, if they exist",
    "lost-pairs": "Import the results of these pairs too, if they exist",
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

    Returns:
        The summary with verdict and findings.
    """
    summary = summarise_run(plan, measured.bursts, measured.device_counter, now)
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
                sentence=f"{measured.open_reason[:1].upper()}{measured.open_reason[1:]}.",
                next_step="Import the files again as iperf3 wrote them, or omit them"
                if plan.spec.scenario == IPERF3_SCENARIO
                else "Import what is missing, or a part without the gap (`--since`, `--until`)",
            )
        )
    return summary.model_copy(update={"verdict": verdict, "findings": order(findings)})
