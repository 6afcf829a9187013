"""Reads what is stored of a run as charts, reports and exports need it."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter

from broadside.coordinator.core.live.status import BurstRows
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.series import BurstSeries, MeasuredBurst
from broadside.coordinator.core.measure.testimony import Witnessed
from broadside.coordinator.core.summary import RunSummary, parse_burst, parse_run
from broadside.coordinator.device.ledgers.kept import load_ledger
from broadside.coordinator.device.witnesses.kept_testimony import load_testimony
from broadside.exchange.messages import Presence
from broadside.exchange.records import ALL_PAIRS, Document, Records
from broadside.exchange.records.row_rules import Violation

_PRESENCES: Final = TypeAdapter(tuple[Presence, ...])


async def read_rows(
    records: Records,
    run_id: str,
    burst_index: int,
    pairs: range = ALL_PAIRS,
    broken: list[Violation] | None = None,
) -> BurstRows:
    """Read the claims and reports of a burst.

    Args:
        records: The tables.
        run_id: The run.
        burst_index: The burst.
        pairs: The pairs' numbers; usually all.
        broken: Gets the rows that break a rule, which are left out.
    """
    claims, reports = await asyncio.gather(
        records.bursts.read_claims(run_id, burst_index, pairs, broken),
        records.bursts.read_reports(run_id, burst_index, pairs, broken),
    )
    return BurstRows(claims=claims, reports=reports)


async def read_measured(
    records: Records, run_id: str, burst_index: int, *, with_pairs: bool = True
) -> MeasuredBurst | None:
    """What a burst showed, before any ledger; None while it is not over.

    Without pairs the series lack their matrix, nearly all of the memory.
    """
    summary, series = await asyncio.gather(
        records.private.read_document(run_id, Document.BURST, burst_index),
        records.private.read_document(run_id, Document.SERIES, burst_index),
    )
    if summary is None or series is None:
        return None
    return MeasuredBurst(
        summary=parse_burst(summary),
        series=await asyncio.to_thread(BurstSeries.unpack, series, with_pairs=with_pairs),
    )


async def read_series(
    records: Records, run_id: str, burst_index: int, *, with_pairs: bool = True
) -> BurstSeries | None:
    """A burst's seconds; None while it is not over."""
    packed = await records.private.read_document(run_id, Document.SERIES, burst_index)
    if packed is None:
        return None
    return await asyncio.to_thread(BurstSeries.unpack, packed, with_pairs=with_pairs)


async def read_run_summary(records: Records, run_id: str) -> RunSummary | None:
    """A run's verdict; None while it goes on."""
    document = await records.private.read_document(run_id, Document.RUN)
    return None if document is None else parse_run(document)


async def read_ledger(records: Records, run_id: str) -> FirewallLedger | None:
    """The firewall's figures as they were when the run was judged."""
    document = await records.private.read_document(run_id, Document.LEDGER)
    return None if document is None else load_ledger(document)


async def read_testimony(
    records: Records,
    run_id: str,
    burst_index: int | None = None,
    *,
    of: Document = Document.WITNESSES,
) -> Witnessed | None:
    """What witnesses said, as the run was judged by it; of a burst, as it was kept at its end. A
    live ledger's readings (``of=Document.LEDGER``) are kept with bursts alone."""
    document = await records.private.read_document(run_id, of, burst_index)
    return None if document is None else await asyncio.to_thread(load_testimony, document)


async def whole_summary(records: Records, run_id: str, summary: RunSummary) -> RunSummary:
    """A summary with the pairs of its bursts, which those of very many pairs leave out."""
    if not summary.pairs_omitted:
        return summary
    bursts = []
    for burst in summary.bursts:
        measured = await read_measured(records, run_id, burst.index)
        pairs = () if measured is None else measured.summary.pairs
        bursts.append(burst.model_copy(update={"pairs": pairs}))
    return summary.model_copy(update={"bursts": tuple(bursts)})


def dump_fleet(presences: Sequence[Presence]) -> bytes:
    """The agents at a launch, as they are kept with the run."""
    listed = ",".join(presence.to_json() for presence in presences)
    return zlib.compress(f"[{listed}]".encode())


async def read_fleet(records: Records, run_id: str) -> tuple[Presence, ...]:
    """The agents at the launch; none for imports."""
    document = await records.private.read_document(run_id, Document.FLEET)
    return (
        ()
        if document is None
        else _PRESENCES.validate_json(zlib.decompress(document), extra=Presence.unknown_fields)
    )
