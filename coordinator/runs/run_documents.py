"""Reader of stored run data for charts, reports and exports."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter

from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import OverlappingBursts
from broadside.coordinator.core.measure.grid.series import BurstMeasurement, BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import BurstSummary, RunSummary, parse_burst, parse_run
from broadside.coordinator.device.telemetry.telemetry_storage import load_counter
from broadside.exchange.messages import Presence, ServiceOutage
from broadside.exchange.records import Document, Records

_PRESENCES: Final = TypeAdapter(tuple[Presence, ...])
_OUTAGES: Final = TypeAdapter(tuple[ServiceOutage, ...])


async def read_measured(
    records: Records, run_id: str, burst_index: int, *, with_pairs: bool = True
) -> BurstMeasurement | None:
    """Read a measured burst, as it was before it was compared to any device counter.

    Args:
        records: Records to use for access to the tables.
        run_id: The id to look up.
        burst_index: The index to look up.
        with_pairs: False leaves out the matrix of pairs, which needs nearly all of the memory.

    Returns:
        The burst, or None while it is not measured.
    """
    summary, series = await asyncio.gather(
        records.private.read_document(run_id, Document.BURST, burst_index),
        records.private.read_document(run_id, Document.SERIES, burst_index),
    )
    if summary is None or series is None:
        return None
    return BurstMeasurement(
        summary=parse_burst(summary),
        series=await asyncio.to_thread(BurstSeries.unpack, series, with_pairs=with_pairs),
    )


async def read_series(
    records: Records, run_id: str, burst_index: int, *, with_pairs: bool = True
) -> BurstSeries | None:
    """Read the seconds of a burst.

    Args:
        records: Records to use for access to the tables.
        run_id: The id to look up.
        burst_index: The index to look up.
        with_pairs: False leaves out the matrix of pairs.

    Returns:
        The series, or None while the burst is not measured.
    """
    packed = await records.private.read_document(run_id, Document.SERIES, burst_index)
    if packed is None:
        return None
    return await asyncio.to_thread(BurstSeries.unpack, packed, with_pairs=with_pairs)


async def read_run_summary(records: Records, run_id: str) -> RunSummary | None:
    """Return a run summary.

    Args:
        records: Records to read from.
        run_id: The run id.

    Returns:
        The summary in the current format. None while the run has no verdict.
    """
    document = await records.private.read_document(run_id, Document.RUN)
    return None if document is None else parse_run(document)


async def read_counter(records: Records, run_id: str) -> CounterRecord | None:
    """Return the stored device counter with which a run was judged.

    Args:
        records: Records to read from.
        run_id: The run id.

    Returns:
        The counter with bytes by bin. None if no source returned data.
    """
    document = await records.private.read_document(run_id, Document.COUNTER)
    return None if document is None else load_counter(document)


async def read_overlapping_bursts(records: Records, run_id: str) -> OverlappingBursts:
    """Return the bursts of other runs that are stored for a run, or none without a counter.

    Args:
        records: Records to read from.
        run_id: The run id.
    """
    document = await records.private.read_document(run_id, Document.NEIGHBOURS)
    return OverlappingBursts() if document is None else OverlappingBursts.load(document)


async def read_outages(records: Records, run_id: str) -> tuple[ServiceOutage, ...]:
    """Return the stored outages of the coordinator during a run.

    Args:
        records: Records to read from.
        run_id: The run id.

    Returns:
        Outages with start and end. Empty if none was stored.
    """
    document = await records.private.read_document(run_id, Document.TROUBLES)
    return () if document is None else _OUTAGES.validate_json(document)


async def complete_summary(records: Records, run_id: str, summary: RunSummary) -> RunSummary:
    """Return a summary that contains all pairs, even if they have been stored separately.

    Args:
        records: Records to use for access to the tables.
        run_id: The id to look up.
        summary: The stored summary.
    """
    if not summary.pairs_omitted:
        return summary
    bursts = []
    for burst in summary.bursts:
        measured = await read_measured(records, run_id, burst.index)
        bursts.append(burst if measured is None else _with_pairs(burst, measured.summary))
    return summary.model_copy(update={"bursts": tuple(bursts)})


def _with_pairs(burst: BurstSummary, measured: BurstSummary) -> BurstSummary:
    """Return a burst with the pairs of its measurement, also in its parts."""
    parts = tuple(
        part.model_copy(update={"summary": _with_pairs(part.summary, of.summary)})
        for part, of in zip(burst.parts, measured.parts, strict=True)
    )
    return burst.model_copy(update={"pairs": measured.pairs, "parts": parts})


def dump_fleet(presences: Sequence[Presence]) -> bytes:
    """Return the agents at a launch as a compressed document."""
    listed = ",".join(presence.to_json() for presence in presences)
    return zlib.compress(f"[{listed}]".encode())


async def read_fleet(records: Records, run_id: str) -> tuple[Presence, ...]:
    """Return the agents at the launch, or an empty tuple for imports.

    Args:
        records: Records to read from.
        run_id: The run id.

    Returns:
        Heartbeats at the launch. Empty for imports.
    """
    document = await records.private.read_document(run_id, Document.FLEET)
    return (
        ()
        if document is None
        else _PRESENCES.validate_json(zlib.decompress(document), extra=Presence.unknown_fields)
    )
