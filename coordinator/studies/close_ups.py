"""Reader of the stored seconds and probes of a study, for questions that need this detail."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.experiments.drill import (
    DrillRecords,
    DrillResult,
    analyze_drill,
)
from broadside.coordinator.core.measure.experiments.scale_out import (
    LoadPhase,
    ScaleOut,
    Scaling,
    find_scale_out,
    scaling_of,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.summary import DeviceFigure
from broadside.coordinator.request_errors import UnknownRun
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.evidence_loader import probe_column
from broadside.coordinator.runs.run_documents import read_ledger, read_measured, read_series
from broadside.coordinator.studies.cut_streams import as_reset, cut_streams, with_cut_streams
from broadside.coordinator.studies.study import CloseUp, Drill, Staircase, Study, Trial
from broadside.exchange.messages import pair_name

# Part of the pairs that is needed in a second to use it for a level.
SEEN_RATIO: Final = 0.5


async def read_scaling(
    coordinator: Coordinator, study: Study, run_id: str, trial: Trial
) -> Scaling | None:
    """Return the scaling within one hold.

    Args:
        coordinator: The coordinator to use.
        study: The study.
        run_id: The run to read.
        trial: The trial of this run.

    Returns:
        The scaling. None for other kinds of questions, or if there are no seconds.
    """
    if not isinstance(study.spec.question, Staircase):
        return None
    hold = await _read_hold(coordinator, study, run_id, trial.offered_bits_per_second)
    return None if hold is None else await asyncio.to_thread(scaling_of, hold)


async def read_close_up(coordinator: Coordinator, study: Study) -> CloseUp | None:
    """Return the detailed results for a scale-out study or a drill.

    Args:
        coordinator: The coordinator to use.
        study: The study.

    Returns:
        The results. None for other kinds of questions, or if there are no seconds.
    """
    match study.spec.question:
        case Staircase():
            return await _read_scale_out(coordinator, study)
        case Drill():
            return await _read_drilled(coordinator, study)
        case _:
            return None


async def _read_scale_out(coordinator: Coordinator, study: Study) -> ScaleOut | None:
    holds: list[LoadPhase] = []
    for result in study.results:
        if result.run_id is not None:
            hold = await _read_hold(
                coordinator, study, result.run_id, result.offered_bits_per_second
            )
            holds += [] if hold is None else [hold]
    offers = [hold.offered_bits_per_second or math.inf for hold in holds]
    holds = [
        replace(hold, downward=offer < max(offers[: place + 1]))
        for place, (hold, offer) in enumerate(zip(holds, offers, strict=True))
    ]
    if not holds:
        return None
    found = await asyncio.to_thread(find_scale_out, holds)
    told = [await _units(coordinator, each.run_id) for each in study.results if each.run_id]
    counts = units_counted([units for units in told if units is not None])
    return found.model_copy(update=counts)


def units_counted(holds: Sequence[DeviceFigure]) -> Mapping[str, float | None]:
    """Return the number of units before and after the scale-out, from telemetry for each hold.

    The device can scale within the first hold, so the first number is taken from the time before
    it.
    """
    first = next(iter(holds), None)
    before = None if first is None else first.min if first.idle is None else first.idle
    after = max((units.max for units in holds), default=None)
    return {"units_before_count": before, "units_after_count": after}


async def _units(coordinator: Coordinator, run_id: str) -> DeviceFigure | None:
    """Return the number of units that telemetry shows for a hold, or None."""
    summary = await coordinator.stored.summary(run_id)
    device = summary.bursts[0].device if summary is not None and summary.bursts else None
    return None if device is None else device.units_count


async def _read_hold(
    coordinator: Coordinator, study: Study, run_id: str, offered_bits_per_second: float | None
) -> LoadPhase | None:
    """Return the seconds of a hold at real scale, or None if nothing is stored."""
    records = coordinator.fabric.records
    measured = await read_measured(records, run_id, 0, with_pairs=False)
    if measured is None:
        return None
    series, scale = measured.series, study.spec.spec.scale
    first = max(0, math.ceil(series.planned_start_s) + series.omit_s - series.start_s)
    cut = slice(first, first + series.duration_s)
    start_s = float(series.start_s + first)
    seen = series.coverage_ratio[cut] >= SEEN_RATIO
    received_bytes = np.where(seen, series.received_bytes[cut], np.nan)
    rtt_s = np.stack([flow.rtt_mean_s[cut] for flow in series.flows])
    summary = measured.summary
    cut_off = cut_streams(
        summary.silent_streams,
        summary.planned_start_at.timestamp(),
        summary.planned_end_at.timestamp(),
    )
    broke = (
        *summary.disruptions,
        *as_reset(cut_off, summary.disruptions, received_bytes, start_s, summary.planned_end_at),
    )
    return LoadPhase(
        start_s=start_s,
        rates=8 * scale * received_bytes,
        retransmits=np.sum([flow.retransmits_count[cut] for flow in series.flows], axis=0),
        rtt_s=np.fmax.reduce(rtt_s, axis=0),
        offered_bits_per_second=offered_bits_per_second,
        disruptions=tuple(
            each.model_copy(update={"short_bytes": each.short_bytes and each.short_bytes * scale})
            for each in broke
        ),
        pairs_count=summary.pairs_measured,
        ledger=await read_ledger(records, run_id),
        scale=scale,
    )


async def _read_drilled(coordinator: Coordinator, study: Study) -> DrillResult | None:
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
        index: probe_column(told) async for index, told in records.bursts.stream_probes(run_id, 0)
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
    found = await asyncio.to_thread(analyze_drill, study.event, burst)
    event_at = study.event.started_at or study.event.planned_at
    ended_s = measured.summary.planned_end_at.timestamp()
    cut = cut_streams(measured.summary.silent_streams, event_at.timestamp(), ended_s)
    return with_cut_streams(found, cut, _moved_pairs(burst.following))


def _moved_pairs(series: BurstSeries | None) -> frozenset[str] | None:
    """Return the names of the pairs with payload, or None if there is no such burst."""
    if series is None:
        return None
    return frozenset(
        pair_name(int(index))
        for flow in series.flows
        for index in np.flatnonzero((np.nan_to_num(flow.pairs_bits_per_second) > 0).any(axis=1))
    )
