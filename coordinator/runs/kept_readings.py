"""Storage for readings from devices that have no history.

A coordinator that starts later can use them to judge the burst.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from broadside.coordinator.core.judge.checks.counter_record_check import BEFORE_S
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.testimony import Witnessed, joined
from broadside.coordinator.core.plan.spec import Burst, Plan
from broadside.coordinator.device.ledgers.settle import Span
from broadside.coordinator.device.ledgers.source import LedgerError, LiveSource
from broadside.coordinator.device.witnesses.kept_testimony import dump_testimony
from broadside.coordinator.runs.neighbours import bursts_within
from broadside.coordinator.runs.stored import read_testimony
from broadside.exchange.records import Document, Records

# Time to include before and after a burst, in seconds.
MARGIN_S: Final = 60.0


async def keep_told(
    records: Records,
    run_id: str,
    burst: Burst,
    ask: Callable[[datetime, datetime], Awaitable[Witnessed]],
    *,
    of: Document = Document.WITNESSES,
) -> None:
    """Store readings of a burst, merged with those that are already stored.

    Args:
        records: Access to the tables.
        run_id: The id to look up.
        burst: The burst to use.
        ask: Function to get the readings between two times.
        of: Kind of the stored document.
    """
    margin = timedelta(seconds=MARGIN_S)
    told = await ask(burst.planned_start_at - margin, burst.planned_end_at + margin)
    kept = await read_testimony(records, run_id, burst.index, of=of)
    if kept is not None:
        told = joined(kept, told)
    await records.private.save_document(run_id, of, dump_testimony(told), burst.index)


async def with_earlier(
    records: Records,
    read_plan: Callable[[str], Awaitable[Plan]],
    span: Span,
    ledger: FirewallLedger,
    live: LiveSource,
) -> FirewallLedger:
    """Extend a ledger with stored readings from before this process started.

    The stored readings of the run itself and of earlier runs are used. Traffic of an earlier run
    could otherwise be taken for late traffic of this run. The longer ledger is used only if it
    covers enough time directly before the run.

    Args:
        records: Access to the tables.
        read_plan: Function to get the plan for a run id.
        span: Time span of the ledger.
        ledger: The ledger that this process read.
        live: Source of the ledger.

    Returns:
        The extended ledger, or ``ledger`` itself if it is long enough or cannot be extended.
    """
    if len(ledger) and ledger.start_s[0] <= span.from_at.timestamp():
        return ledger
    told = await live.told(span.from_at, span.before_at)
    for plan, burst in await bursts_within(records, read_plan, span.from_at, span.before_at):
        kept = await read_testimony(records, plan.run_id, burst.index, of=Document.LEDGER)
        if kept is not None:
            told = joined(kept, told)
    from_s, before_s = span.from_at.timestamp(), span.before_at.timestamp()
    within = (each.within(from_s, before_s) for each in told.series)
    told = replace(told, series=tuple(each for each in within if len(each.at_s)))
    try:
        longer = live.ledger_of(told)
    except LedgerError:
        return ledger
    if _known_s(longer, span.begun_at.timestamp()) < max(BEFORE_S, longer.grain_s):
        return ledger
    return replace(longer, notes=tuple(dict.fromkeys((*ledger.notes, *longer.notes))))


def _known_s(ledger: FirewallLedger, before_s: float) -> float:
    """Return the time that is covered by complete bins directly before an instant, in seconds."""
    unknown = np.isnan(ledger.bytes) & (ledger.start_s < before_s)
    since_s = ledger.end_s[unknown].max(initial=-np.inf)
    whole = (ledger.start_s >= since_s) & (ledger.end_s <= before_s)
    return float((ledger.end_s - ledger.start_s)[whole].sum())
