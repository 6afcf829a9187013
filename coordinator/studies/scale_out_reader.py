"""Reader of the stored seconds of a scale-out study."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from broadside.coordinator.core.measure.experiments.scale_out import (
    LoadPhase,
    ScaleOut,
    Scaling,
    find_scale_out,
    scaling_of,
)
from broadside.coordinator.core.summary import DeviceFigure
from broadside.coordinator.runs.run_documents import read_counter, read_measured
from broadside.coordinator.studies.cut_streams import as_reset, cut_streams
from broadside.coordinator.studies.study import Staircase, Study, Trial

if TYPE_CHECKING:
    from broadside.coordinator.runs.coordinator import Coordinator

# Part of the pairs that is needed in a second to use it for a level.
SEEN_RATIO: Final = 0.5


async def read_scaling(
    coordinator: "Coordinator", study: Study, run_id: str, trial: Trial
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
    lock = await _read_load(coordinator, study, run_id, trial.offered_bits_per_second)
    return None if lock is None else await asyncio.to_thread(scaling_of, lock)


async def read_scale_out(coordinator: "Coordinator", study: Study) -> ScaleOut | None:
    """Return the measured steps of a scale-out study.

    Args:
        coordinator: The coordinator to use.
        study: The study.

    Returns:
        Steps, levels and units at real scale. None if no seconds are stored.
    """
    holds: list[LoadPhase] = []
    units: list[DeviceFigure] = []
    for result in study.results:
        if result.run_id is None:
            continue
        offered = result.offered_bits_per_second
        if (lock := await _read_load(coordinator, study, result.run_id, offered)) is not None:
            highest = max((lock.offered_bits_per_second or math.inf for lock in holds), default=0.0)
            holds.append(replace(lock, downward=(offered or math.inf) < highest))
        if (counted := await _units(coordinator, result.run_id)) is not None:
            units.append(counted)
    if not holds:
        return None
    scale_out = await asyncio.to_thread(find_scale_out, holds)
    return scale_out.model_copy(update=units_counted(units))


def units_counted(holds: Sequence[DeviceFigure]) -> Mapping[str, float | None]:
    """Return the number of units before and after the scale-out, from telemetry for each hold.

    The device can scale within the first hold, so the first number is taken from the time before
    it.

    Returns:
        The numbers by field name. None if no hold has telemetry.
    """
    first = next(iter(holds), None)
    before = None if first is None else first.min if first.idle is None else first.idle
    after = max((units.max for units in holds), default=None)
    return {"units_before_count": before, "units_after_count": after}


async def _units(coordinator: "Coordinator", run_id: str) -> DeviceFigure | None:
    """Return the number of units that telemetry shows for a hold, or None."""
    summary = await coordinator.stored.summary(run_id)
    device = summary.bursts[0].device if summary is not None and summary.bursts else None
    return None if device is None else device.units_count


async def _read_load(
    coordinator: "Coordinator", study: Study, run_id: str, offered_bits_per_second: float | None
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
    is_covered = series.coverage_ratio[cut] >= SEEN_RATIO
    received_bytes = np.where(is_covered, series.received_bytes[cut], np.nan)
    rtt_s = np.stack([flow.rtt_mean_s[cut] for flow in series.flows])
    summary = measured.summary
    ended_at = summary.planned_end_at
    cut_off = cut_streams(
        summary.silent_streams, summary.planned_start_at.timestamp(), ended_at.timestamp()
    )
    resets = as_reset(cut_off, summary.disruptions, received_bytes, start_s, ended_at)
    return LoadPhase(
        start_s=start_s,
        rates=8 * scale * received_bytes,
        retransmits=np.sum([flow.retransmits_count[cut] for flow in series.flows], axis=0),
        rtt_s=np.fmax.reduce(rtt_s, axis=0),
        offered_bits_per_second=offered_bits_per_second,
        disruptions=tuple(
            event.model_copy(
                update={"short_bytes": event.short_bytes and event.short_bytes * scale}
            )
            for event in (*summary.disruptions, *resets)
        ),
        pairs_count=summary.pairs_measured,
        device_counter=await read_counter(records, run_id),
        scale=scale,
        units=summary.units,
    )
