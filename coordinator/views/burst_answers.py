"""What the API answers about one run's bursts and pairs, page by page."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broadside.coordinator.core.plan.spec import Plan
from broadside.coordinator.core.summary import BurstSummary, RunSummary, Verdict, parse_burst
from broadside.coordinator.refusals import NoLedger, RunNotOver, UnknownBurst
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.stored import read_rows
from broadside.coordinator.views.answers import (
    BurstEntry,
    BurstReconciliation,
    PairEntry,
    Recomputed,
    RunReconciliation,
    RunVerdict,
    hold_against,
)
from broadside.exchange.messages import Phase
from broadside.exchange.records import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A page of things that are counted from 0."""

    first: int
    before: int

    @property
    def indices(self) -> range:
        return range(self.first, self.before)

    def following(self, count: int) -> int | None:
        """The cursor of the next page, of ``count`` things in all."""
        return self.before if self.before < count else None


def span_of(cursor: int, limit: int, count: int) -> Span:
    """Which of ``count`` things a page holds, from the one of that index on."""
    first = min(cursor, count)
    return Span(first=first, before=min(first + limit, count))


async def list_bursts(
    coordinator: Coordinator, run_id: str, *, limit: int, cursor: int
) -> tuple[Sequence[BurstEntry], int | None]:
    """Bursts in time order. Raises ``UnknownRun``."""
    plan = await coordinator.stored.read_plan(run_id)
    span = span_of(cursor, limit, len(plan.bursts))
    statuses = await coordinator.stored.burst_statuses(run_id, span.indices)
    summaries = await _burst_summaries(coordinator, run_id, span)
    entries = [
        BurstEntry(status=status, summary=summaries.get(status.index)) for status in statuses
    ]
    return entries, span.following(len(plan.bursts))


async def read_burst(coordinator: Coordinator, run_id: str, burst_index: int) -> BurstEntry:
    """One burst. Raises ``UnknownRun``, ``UnknownBurst``."""
    await plan_with_burst(coordinator, run_id, burst_index)
    span = Span(first=burst_index, before=burst_index + 1)
    [status] = await coordinator.stored.burst_statuses(run_id, span.indices)
    summaries = await _burst_summaries(coordinator, run_id, span)
    return BurstEntry(status=status, summary=summaries.get(burst_index))


async def list_pairs(
    coordinator: Coordinator, run_id: str, burst_index: int, *, limit: int, cursor: int
) -> tuple[Sequence[PairEntry], int | None]:
    """Pairs of one burst by number. Raises ``UnknownRun``, ``UnknownBurst``."""
    plan = await plan_with_burst(coordinator, run_id, burst_index)
    span = span_of(cursor, limit, len(plan.pairs))
    rows, summary = await asyncio.gather(
        read_rows(coordinator.fabric.records, run_id, burst_index, span.indices),
        _full_summary(coordinator, run_id, burst_index),
    )
    measured = {} if summary is None else {pair.pair_index: pair for pair in summary.pairs}
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
                phase=Phase.REPORTED if report else claim and claim.phase,
                outcome=report and report.outcome,
                reason=report and report.reason,
                summary=shown,
            )
        )
    return entries, span.following(len(plan.pairs))


async def read_verdict(coordinator: Coordinator, run_id: str) -> RunVerdict:
    """Raises ``UnknownRun``, ``RunNotOver``."""
    summary = await summary_of(coordinator, run_id)
    kept = {name: getattr(summary, name) for name in RunVerdict.model_fields if name != "bursts"}
    counts = {
        verdict: sum(burst.verdict is verdict for burst in summary.bursts) for verdict in Verdict
    }
    return RunVerdict(**kept, bursts=counts)


async def read_reconciliation(
    coordinator: Coordinator, run_id: str, *, limit: int, cursor: int
) -> tuple[RunReconciliation, int | None]:
    """Raises ``UnknownRun``, ``RunNotOver``, :class:`NoLedger`."""
    summary = await summary_of(coordinator, run_id)
    if summary.reconciliation is None:
        raise NoLedger(f"run {run_id}: no firewall's ledger was kept with it")
    span = span_of(cursor, limit, len(summary.bursts))
    bursts = tuple(
        BurstReconciliation(
            burst_index=burst.index,
            planned_start_at=burst.planned_start_at,
            reconciliation=burst.reconciliation,
        )
        for burst in summary.bursts[span.first : span.before]
    )
    whole = RunReconciliation(run_id=run_id, reconciliation=summary.reconciliation, bursts=bursts)
    return whole, span.following(len(summary.bursts))


async def summary_of(coordinator: Coordinator, run_id: str) -> RunSummary:
    """A run's verdict. Raises ``UnknownRun``, ``RunNotOver``."""
    summary = await coordinator.stored.summary(run_id)
    if summary is None:
        raise RunNotOver(run_id)
    return summary


async def plan_with_burst(coordinator: Coordinator, run_id: str, burst_index: int) -> Plan:
    """The plan of a run that has such a burst. Raises ``UnknownRun``, ``UnknownBurst``."""
    plan = await coordinator.stored.read_plan(run_id)
    count = len(plan.bursts)
    if burst_index >= count:
        raise UnknownBurst(run_id, burst_index, count)
    return plan


async def _burst_summaries(
    coordinator: Coordinator, run_id: str, span: Span
) -> Mapping[int, BurstSummary]:
    """What bursts showed, by index: judged where the run is over, else as measured."""
    whole = await coordinator.stored.summary(run_id)
    if whole is not None:
        found = [burst for burst in whole.bursts if burst.index in span.indices]
    else:
        read = (_full_summary(coordinator, run_id, index) for index in span.indices)
        found = [burst for burst in await asyncio.gather(*read) if burst is not None]
    return {burst.index: burst.model_copy(update={"pairs": ()}) for burst in found}


async def _full_summary(
    coordinator: Coordinator, run_id: str, burst_index: int
) -> BurstSummary | None:
    """One burst with its pairs."""
    records = coordinator.fabric.records
    document = await records.private.read_document(run_id, Document.BURST, burst_index)
    return None if document is None else parse_burst(document)


async def recomputed(coordinator: Coordinator, run_id: str) -> Recomputed:
    """The verdict from the stored rows alone, held against the stored one byte for byte.

    Raises ``UnknownRun``, ``RunNotOver``.
    """
    summary = await coordinator.recompute(run_id)
    stored = await coordinator.fabric.records.private.read_document(run_id, Document.RUN)
    if summary is None or stored is None:
        raise RunNotOver(run_id)
    return hold_against(stored, summary)
