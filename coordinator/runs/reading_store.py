"""Storage for readings from devices that have no history.

A coordinator that starts later can use them to judge the burst.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from broadside.coordinator.core.judge.checks.counter_checks import COUNTER_LEAD_S
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry, merge_readings
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.source import RunSpan, TelemetryError
from broadside.coordinator.device.telemetry.telemetry_storage import dump_telemetry
from broadside.coordinator.runs.overlapping_runs import planned_bursts
from broadside.coordinator.runs.run_documents import read_telemetry
from broadside.exchange.records import Document, Records

# Time to include before and after a burst, in seconds.
MARGIN_S: Final = 60.0


async def save_readings(
    records: Records,
    run_id: str,
    burst: Burst,
    query: Callable[[datetime, datetime], Awaitable[DeviceTelemetry]],
) -> None:
    """Store readings of a burst, merged with those that are already stored.

    Args:
        records: Records to use for access to the tables.
        run_id: The id to look up.
        burst: The burst to use.
        query: Function to get the readings between two times.
    """
    margin = timedelta(seconds=MARGIN_S)
    telemetry = await query(burst.planned_start_at - margin, burst.planned_end_at + margin)
    stored = await read_telemetry(records, run_id, burst.index)
    if stored is not None:
        telemetry = merge_readings(stored, telemetry)
    document = dump_telemetry(telemetry)
    await records.private.save_document(run_id, Document.TELEMETRY, document, burst.index)


async def extend_with_stored(
    records: Records,
    read_plan: Callable[[str], Awaitable[Plan]],
    span: RunSpan,
    device_counter: CounterRecord,
    counter: DeviceCounter,
) -> CounterRecord:
    """Extend a polled device counter with stored readings from before this process started.

    The stored readings of the run itself and of earlier runs are used. Traffic of an earlier run
    could otherwise be taken for late traffic of this run. The longer record is used only if it
    covers enough time directly before the run.

    Args:
        records: Records to use for access to the tables.
        read_plan: Function to get the plan for a run id.
        span: Time span of the record.
        device_counter: The record that this process read.
        counter: The device counter.

    Returns:
        The extended record, or ``device_counter`` if it is long enough or cannot be extended.
    """
    if len(device_counter) and device_counter.start_s[0] <= span.from_at.timestamp():
        return device_counter
    telemetry = await counter.readings(span.from_at, span.before_at)
    for plan, burst in await planned_bursts(records, read_plan, span.from_at, span.before_at):
        stored = await read_telemetry(records, plan.run_id, burst.index)
        if stored is not None:
            telemetry = merge_readings(stored, telemetry)
    from_s, before_s = span.from_at.timestamp(), span.before_at.timestamp()
    within = (series.within(from_s, before_s) for series in telemetry.series)
    telemetry = replace(telemetry, series=tuple(series for series in within if len(series.at_s)))
    try:
        longer = counter.bins_of(telemetry)
    except TelemetryError:
        return device_counter
    if _known_s(longer, span.begun_at.timestamp()) < max(COUNTER_LEAD_S, longer.grain_s):
        return device_counter
    return replace(longer, notes=tuple(dict.fromkeys((*device_counter.notes, *longer.notes))))


def _known_s(device_counter: CounterRecord, before_s: float) -> float:
    """Return the time that is covered by complete bins directly before an instant, in seconds."""
    unknown = np.isnan(device_counter.bytes) & (device_counter.start_s < before_s)
    since_s = device_counter.end_s[unknown].max(initial=-np.inf)
    complete = (device_counter.start_s >= since_s) & (device_counter.end_s <= before_s)
    return float((device_counter.end_s - device_counter.start_s)[complete].sum())
