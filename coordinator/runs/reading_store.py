"""Storage for telemetry of runs, and for readings from devices that have no history.

These readings are stored with each burst. A coordinator that starts later can use them to judge it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.judge.checks.counter_checks import COUNTER_LEAD_S
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    drop_invalid,
    merge_readings,
)
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.run_span import RunSpan
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.coordinator.device.telemetry.telemetry_storage import dump_telemetry, load_telemetry
from broadside.exchange.records import Document, Records

# Time to include before and after a burst, in seconds.
MARGIN_S: Final = 60.0


async def read_telemetry(
    records: Records, run_id: str, burst_index: int | None = None
) -> DeviceTelemetry | None:
    """Read stored telemetry.

    Args:
        records: Records to use for access to the tables.
        run_id: The id to look up.
        burst_index: Burst index for the polled readings stored at its end. None reads the telemetry
            with which the run was judged.

    Returns:
        The telemetry, or None if it is not stored.
    """
    document = await records.private.read_document(run_id, Document.TELEMETRY, burst_index)
    return None if document is None else await asyncio.to_thread(load_telemetry, document)


async def save_readings(
    records: Records,
    plan: Plan,
    burst: Burst,
    query: Callable[[datetime, datetime], Awaitable[DeviceTelemetry]],
) -> None:
    """Store readings of a burst, merged with those that are already stored.

    Args:
        records: Records to use for access to the tables.
        plan: The plan to use.
        burst: The burst to use.
        query: Function to get the readings between two times.
    """
    margin = timedelta(seconds=MARGIN_S)
    telemetry = await query(burst.planned_start_at - margin, burst.planned_end_at + margin)
    telemetry = await _with_stored(records, telemetry, [(plan, burst)])
    document = await asyncio.to_thread(dump_telemetry, telemetry)
    await records.private.save_document(plan.run_id, Document.TELEMETRY, document, burst.index)


async def save_telemetry(records: Records, plan: Plan, telemetry: DeviceTelemetry) -> None:
    """Store the telemetry of a run, merged with the stored readings of its bursts.

    Args:
        records: Records to use for access to the tables.
        plan: The plan to use.
        telemetry: Telemetry of all sources. Impossible values are not stored.
    """
    bursts = [(plan, burst) for burst in plan.bursts]
    telemetry = await _with_stored(records, telemetry, bursts)
    telemetry = drop_invalid(telemetry)
    document = await asyncio.to_thread(dump_telemetry, telemetry)
    await records.private.save_document(plan.run_id, Document.TELEMETRY, document)


async def extend_with_stored(
    records: Records,
    planned: Sequence[tuple[Plan, Burst]],
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
        planned: Bursts of all runs in the span.
        span: Time span of the record.
        device_counter: The record that this process read.
        counter: The device counter.

    Returns:
        The extended record, or ``device_counter`` if it is long enough or cannot be extended.
    """
    if len(device_counter) and device_counter.start_s[0] <= span.from_at.timestamp():
        return device_counter
    telemetry = await _with_stored(
        records, await counter.readings(span.from_at, span.before_at), planned
    )
    from_s, before_s = span.from_at.timestamp(), span.before_at.timestamp()
    within = (series.within(from_s, before_s) for series in telemetry.series)
    telemetry = replace(telemetry, series=tuple(series for series in within if len(series.at_s)))
    try:
        longer = counter.bins_of(telemetry)
    except TelemetryError:
        return device_counter
    if longer.known_s(span.begun_at.timestamp()) < max(COUNTER_LEAD_S, longer.grain_s):
        return device_counter
    return replace(longer, notes=tuple(dict.fromkeys((*device_counter.notes, *longer.notes))))


async def _with_stored(
    records: Records, telemetry: DeviceTelemetry, bursts: Sequence[tuple[Plan, Burst]]
) -> DeviceTelemetry:
    """Return telemetry merged with the stored readings of some bursts."""
    for plan, burst in bursts:
        stored = await read_telemetry(records, plan.run_id, burst.index)
        if stored is not None:
            telemetry = merge_readings(stored, telemetry)
    return telemetry
