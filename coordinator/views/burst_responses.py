"""API responses about bursts and pairs of one run, with pagination."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import BurstSummary, RunSummary, Verdict, parse_burst
from broadside.coordinator.core.verdict_reason import explain_verdict
from broadside.coordinator.request_errors import NoCounter, RunNotOver, UnknownBurst
from broadside.coordinator.runs.evidence_loader import read_rows
from broadside.coordinator.views.responses import (
    BurstEntry,
    BurstReconciliation,
    PairEntry,
    Recomputed,
    RunReconciliation,
    RunVerdict,
    compare_stored_summary,
)
from broadside.exchange.messages import JobPhase
from broadside.exchange.records import Document

if TYPE_CHECKING:
    from broadside.coordinator.runs.coordinator import Coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRange:
    """One page of a list, as a range of indices.

    Attributes:
        first: First item index.
        before: Index after the last item.
    """

    first: int
    before: int

    @property
    def indices(self) -> range:
        return range(self.first, self.before)

    def following(self, count: int) -> int | None:
        """Return the next page cursor. Return None if the page includes the last item."""
        return self.before if self.before < count else None


def span_of(cursor: int, limit: int, count: int) -> IndexRange:
    """Return one page of a list.

    Args:
        cursor: First item index. Values above ``count`` result in an empty page.
        limit: Maximum number of items on the page.
        count: Number of items in the list.
    """
    first = min(cursor, count)
    return IndexRange(first=first, before=min(first + limit, count))


async def list_bursts(
    coordinator: "Coordinator", run_id: str, *, limit: int, cursor: int
) -> tuple[Sequence[BurstEntry], int | None]:
    """Return one page of bursts in time order, and the next page's cursor.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.
        limit: Maximum number of bursts to return.
        cursor: First burst index.

    Returns:
        The bursts, and the index of the first burst on the next page. None on the last page.

    Raises:
        UnknownRun: The run does not exist.
    """
    plan = await coordinator.stored.read_plan(run_id)
    span = span_of(cursor, limit, len(plan.bursts))
    statuses = await coordinator.stored.burst_statuses(run_id, span.indices)
    summaries = await _burst_summaries(coordinator, run_id, span)
    entries = [
        BurstEntry(status=status, summary=summaries.get(status.index)) for status in statuses
    ]
    return entries, span.following(len(plan.bursts))


async def read_burst(coordinator: "Coordinator", run_id: str, burst_index: int) -> BurstEntry:
    """Return one burst.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.
        burst_index: Burst index, starting at 0.

    Raises:
        UnknownRun: The run does not exist.
        UnknownBurst: The burst does not exist in this run.
    """
    await plan_with_burst(coordinator, run_id, burst_index)
    span = IndexRange(first=burst_index, before=burst_index + 1)
    [status] = await coordinator.stored.burst_statuses(run_id, span.indices)
    summaries = await _burst_summaries(coordinator, run_id, span)
    return BurstEntry(status=status, summary=summaries.get(burst_index))


async def list_pairs(
    coordinator: "Coordinator", run_id: str, burst_index: int, *, limit: int, cursor: int
) -> tuple[Sequence[PairEntry], int | None]:
    """Return one page of a burst's pairs, and the next page's cursor.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.
        burst_index: Burst index, starting at 0.
        limit: Maximum number of pairs to return.
        cursor: First pair index.

    Returns:
        The pairs, and the index of the first pair on the next page. None on the last page.

    Raises:
        UnknownRun: The run does not exist.
        UnknownBurst: The burst does not exist in this run.
    """
    plan = await plan_with_burst(coordinator, run_id, burst_index)
    span = span_of(cursor, limit, len(plan.pairs))
    rows, summary = await asyncio.gather(
        read_rows(coordinator.fabric.records, run_id, burst_index, span.indices),
        _full_summary(coordinator, run_id, burst_index),
    )
    bursts = () if summary is None else (summary, *(part.summary for part in summary.parts))
    measured = {pair.pair_index: pair for burst in bursts for pair in burst.pairs}
    entries = []
    for index in span.indices:
        pair, claim, report = plan.pairs[index], rows.claims.get(index), rows.reports.get(index)
        holder = report or claim
        shown = measured.get(index)
        entries.append(
            PairEntry(
                pair_index=index,
                pair=pair.name,
                endpoint=pair.endpoint,
                client_agent_id=holder.agent_id if holder else shown and shown.client_agent_id,
                phase=JobPhase.REPORTED if report else claim and claim.phase,
                outcome=report and report.outcome,
                reason=report and report.reason,
                summary=shown,
            )
        )
    return entries, span.following(len(plan.pairs))


async def read_verdict(coordinator: "Coordinator", run_id: str) -> RunVerdict:
    """Return the verdict of a run, and how many bursts have each verdict.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.

    Raises:
        UnknownRun: The run does not exist.
        RunNotOver: The run is not finished.
    """
    return run_verdict(await summary_of(coordinator, run_id))


def run_verdict(summary: RunSummary) -> RunVerdict:
    """Return the verdict of a judged run, with its reason first."""
    explained = explain_verdict(summary)
    computed = {"bursts", "reason", "next_step", "findings"}
    fields = {name: getattr(summary, name) for name in RunVerdict.model_fields.keys() - computed}
    counts = {
        verdict: sum(burst.verdict is verdict for burst in summary.bursts) for verdict in Verdict
    }
    return RunVerdict(
        **fields,
        bursts=counts,
        reason=explained.reason,
        next_step=explained.next_step,
        findings=explained.findings,
    )


async def read_reconciliation(
    coordinator: "Coordinator", run_id: str, *, limit: int, cursor: int
) -> tuple[RunReconciliation, int | None]:
    """Return the reconciliation of a run and one page of its bursts, and the next page's cursor.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.
        limit: Maximum number of bursts to return.
        cursor: First burst index.

    Returns:
        The result, and the index of the first burst on the next page. None on the last page.

    Raises:
        UnknownRun: The run does not exist.
        RunNotOver: The run is not finished.
        NoCounter: No device counter was read for this run.
    """
    summary = await summary_of(coordinator, run_id)
    if summary.reconciliation is None:
        raise NoCounter(f"run {run_id}: no device counter was stored")
    span = span_of(cursor, limit, len(summary.bursts))
    bursts = tuple(
        BurstReconciliation(
            burst_index=burst.index,
            planned_start_at=burst.planned_start_at,
            reconciliation=burst.reconciliation,
        )
        for burst in summary.bursts[span.first : span.before]
    )
    answer = RunReconciliation(run_id=run_id, reconciliation=summary.reconciliation, bursts=bursts)
    return answer, span.following(len(summary.bursts))


async def summary_of(coordinator: "Coordinator", run_id: str) -> RunSummary:
    """Return the summary of a finished run.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.

    Raises:
        UnknownRun: The run does not exist.
        RunNotOver: The run is not finished.
    """
    summary = await coordinator.stored.summary(run_id)
    if summary is None:
        raise RunNotOver(run_id)
    return summary


async def plan_with_burst(coordinator: "Coordinator", run_id: str, burst_index: int) -> Plan:
    """Return the plan of a run, if it has the burst.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.
        burst_index: Burst index, starting at 0.

    Raises:
        UnknownRun: The run does not exist.
        UnknownBurst: The burst does not exist in this run.
    """
    plan = await coordinator.stored.read_plan(run_id)
    count = len(plan.bursts)
    if burst_index >= count:
        raise UnknownBurst(run_id, burst_index, count)
    return plan


async def _burst_summaries(
    coordinator: "Coordinator", run_id: str, span: IndexRange
) -> Mapping[int, BurstSummary]:
    """Return burst summaries by index. They have verdicts only if the run is finished."""
    summary = await coordinator.stored.summary(run_id)
    if summary is not None:
        bursts = [burst for burst in summary.bursts if burst.index in span.indices]
    else:
        read = (_full_summary(coordinator, run_id, index) for index in span.indices)
        bursts = [burst for burst in await asyncio.gather(*read) if burst is not None]
    return {burst.index: burst.model_copy(update={"pairs": ()}) for burst in bursts}


async def _full_summary(
    coordinator: "Coordinator", run_id: str, burst_index: int
) -> BurstSummary | None:
    """Return the stored summary of one burst with its pairs, or None if it is not over."""
    records = coordinator.fabric.records
    document = await records.private.read_document(run_id, Document.BURST, burst_index)
    return None if document is None else parse_burst(document)


async def recomputed(coordinator: "Coordinator", run_id: str) -> Recomputed:
    """Compute the verdict from the stored rows, and compare it with the stored verdict.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.

    Returns:
        Both verdicts, and the fields that differ. Empty if they are identical.

    Raises:
        UnknownRun: The run does not exist.
        RunNotOver: The run is not finished.
    """
    summary = await coordinator.recompute(run_id)
    stored = await coordinator.fabric.records.private.read_document(run_id, Document.RUN)
    if summary is None or stored is None:
        raise RunNotOver(run_id)
    return compare_stored_summary(stored, summary)
