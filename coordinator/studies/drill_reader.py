"""Reader of the stored seconds and probes of a drill."""

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from broadside.coordinator.core.measure.experiments.drill import (
    DrillRecords,
    DrillResult,
    analyze_drill,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.request_errors import UnknownRun
from broadside.coordinator.runs.evidence_loader import probe_column
from broadside.coordinator.runs.run_documents import read_measured, read_series
from broadside.coordinator.studies.cut_streams import cut_streams, with_cut_streams
from broadside.coordinator.studies.study import Study
from broadside.exchange.messages import pair_name

if TYPE_CHECKING:
    from broadside.coordinator.runs.coordinator import Coordinator


async def read_drill(coordinator: "Coordinator", study: Study) -> DrillResult | None:
    """Return the measured effects of a drill.

    Args:
        coordinator: The coordinator to use.
        study: The study.

    Returns:
        Outages, payload and sessions. None if the drill has no event or no data of its burst.
    """
    run_id = next((result.run_id for result in study.results if result.run_id), None)
    if run_id is None or study.event is None:
        return None
    records = coordinator.fabric.records
    try:
        plan = await coordinator.stored.read_plan(run_id)
    except UnknownRun:
        return None
    measured = await read_measured(records, run_id, 0)
    if measured is None:
        return None
    probes = {
        index: probe_column(rows) async for index, rows in records.bursts.stream_probes(run_id, 0)
    }
    burst = DrillRecords(
        series=measured.series,
        probes=probes,
        disruptions=measured.summary.disruptions,
        pairs_count=len(plan.pairs),
        streams_count=plan.spec.traffic.streams_count,
        scale=plan.spec.scale,
        following=await read_series(records, run_id, 1) if len(plan.bursts) > 1 else None,
    )
    drilled = await asyncio.to_thread(analyze_drill, study.event, burst)
    event_at = study.event.started_at or study.event.planned_at
    ended_s = measured.summary.planned_end_at.timestamp()
    cut = cut_streams(measured.summary.silent_streams, event_at.timestamp(), ended_s)
    return with_cut_streams(drilled, cut, _moved_pairs(burst.following))


def _moved_pairs(series: BurstSeries | None) -> frozenset[str] | None:
    """Return the names of the pairs with payload, or None if there is no such burst."""
    if series is None:
        return None
    return frozenset(
        pair_name(int(index))
        for flow in series.flows
        for index in np.flatnonzero((np.nan_to_num(flow.pairs_bits_per_second) > 0).any(axis=1))
    )
