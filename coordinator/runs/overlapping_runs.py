"""Other runs that sent traffic through the same firewall during a run.

A device counter counts all traffic on the device. The traffic from other Broadside runs is known
for each second. It is read here, to be used when the run is judged.
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import (
    Neighbour,
    OverlappingBursts,
)
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.device.telemetry.run_span import RunSpan
from broadside.coordinator.runs.run_documents import read_series
from broadside.exchange.ports import ExchangeUnavailable
from broadside.exchange.records import Document, Records

log = logging.getLogger(__name__)

# Number of runs created before the span that are searched for overlaps.
OLDER_MAX_COUNT: Final = 200


async def planned_bursts(
    records: Records,
    read_plan: Callable[[str], Awaitable[Plan]],
    from_at: datetime,
    before_at: datetime,
) -> list[tuple[Plan, Burst]]:
    """Return the planned bursts of all runs in a time span. Unreadable runs are skipped.

    Args:
        records: Records to use for access to the tables.
        read_plan: Function to get the plan for a run id.
        from_at: Start of the span.
        before_at: End of the span.

    Raises:
        ExchangeUnavailable: The tables cannot be reached.
    """
    bursts: list[tuple[Plan, Burst]] = []
    async for run_id in _runs_in(records, from_at, before_at):
        try:
            plan = await read_plan(run_id)
        except ExchangeUnavailable:
            raise
        # find_overlapping_bursts logs a warning for the same run.
        except Exception as error:
            log.debug("%s: %s", run_id, error)
            continue
        bursts += [(plan, burst) for burst in _inside(plan, from_at, before_at)]
    return bursts


async def find_overlapping_bursts(
    records: Records,
    read_plan: Callable[[str], Awaitable[Plan]],
    span: RunSpan,
    device_counter: CounterRecord,
    *,
    begun_before_at: datetime,
) -> OverlappingBursts | None:
    """Find the measured bursts of other runs in the span of a device counter.

    Args:
        records: Records to use for access to the tables.
        read_plan: Function to get the plan for a run id.
        span: Time span of the device counter. Bursts of its own run are not included.
        device_counter: The device counter. Bursts before it started to count are not included.
        begun_before_at: End of the time in which another run shares bins with this run.

    Returns:
        The bursts, or None while a burst that began before ``begun_before_at`` is not measured. The
        caller should then try again later. An unreadable run is logged and left out.

    Raises:
        ExchangeUnavailable: The tables cannot be reached.
    """
    if device_counter.counts_from_s is not None:
        counts_from_at = datetime.fromtimestamp(device_counter.counts_from_s, UTC)
        span = replace(span, from_at=max(span.from_at, counts_from_at))
    neighbours: list[Neighbour] = []
    unknown_from_s: float | None = None
    async for run_id in _runs_in(records, span.from_at, span.before_at):
        if run_id == span.run_id:
            continue
        try:
            measured, unmeasured_at = await _read_one(
                records, read_plan, run_id, span, device_counter
            )
        except ExchangeUnavailable:
            raise
        # The run may be partly removed or of another version, which is no error of this run.
        except Exception as error:
            extra = {"action": "judge", "run_id": span.run_id}
            log.warning("overlapping run %s left out: %s", run_id, error, extra=extra)
            continue
        neighbours += measured
        if unmeasured_at is not None:
            if unmeasured_at < begun_before_at:
                return None
            began_s = unmeasured_at.timestamp()
            unknown_from_s = min(began_s, unknown_from_s or began_s)
    return OverlappingBursts(bursts=tuple(neighbours), unknown_from_s=unknown_from_s)


async def find_bursts_beside(
    records: Records, read_plan: Callable[[str], Awaitable[Plan]], span: RunSpan
) -> OverlappingBursts:
    """Return the bursts of other runs through the device in a span, with zero bytes.

    Args:
        records: Records to use for access to the tables.
        read_plan: Function to get the plan for a run id.
        span: Time span of the telemetry. Bursts of its own run are not included.

    Raises:
        ExchangeUnavailable: The tables cannot be reached.
    """
    bursts = []
    for plan, burst in await planned_bursts(records, read_plan, span.from_at, span.before_at):
        if plan.run_id == span.run_id or plan.spec.bypasses_device:
            continue
        if await records.private.read_document(plan.run_id, Document.IMPORT) is not None:
            continue
        if await _begun(records, plan, [burst]):
            bursts.append(_uncounted(plan.run_id, burst))
    return OverlappingBursts(bursts=tuple(bursts))


async def _runs_in(records: Records, from_at: datetime, before_at: datetime) -> AsyncIterator[str]:
    """Yield the ids of runs that may have sent traffic in a time span.

    These are runs that were created in the span or soon before it and did not end before it, and
    all open runs.
    """
    seen: set[str] = set()
    older_count = 0
    async for _, header in records.private.scan_runs(before_at=before_at):
        if header.created_at < from_at:
            older_count += 1
            if older_count > OLDER_MAX_COUNT:
                break
        seen.add(header.run_id)
        if header.outcome is None or header.outcome.ended_at > from_at:
            yield header.run_id
    for run_id in await records.private.list_open():
        if run_id not in seen:
            yield run_id


async def _read_one(
    records: Records,
    read_plan: Callable[[str], Awaitable[Plan]],
    run_id: str,
    span: RunSpan,
    device_counter: CounterRecord,
) -> tuple[list[Neighbour], datetime | None]:
    """Return the bursts of one run in the span, and the start of the first unmeasured burst.

    A burst that the device counter does not count (it bypasses the device or has the other
    direction) has zero bytes. Its acknowledgements and control connections may still cross the
    device, so that time is not quiet.
    """
    plan = await read_plan(run_id)
    bursts = _inside(plan, span.from_at, span.before_at)
    if not bursts or await records.private.read_document(run_id, Document.IMPORT) is not None:
        return [], None
    if plan.spec.bypasses_device:
        return [_uncounted(run_id, burst) for burst in bursts], None
    neighbours: list[Neighbour] = []
    unmeasured_at: datetime | None = None
    for burst in await _begun(records, plan, bursts):
        neighbour = _uncounted(run_id, burst)
        series = await read_series(records, run_id, burst.index, with_pairs=False)
        if series is None:
            unmeasured_at = min(burst.planned_start_at, unmeasured_at or burst.planned_start_at)
            continue
        counted = [
            flow.received_bytes for flow in series.flows if flow.flow in device_counter.flows
        ]
        if counted:
            received_bytes = np.asarray(np.nansum(counted, axis=0))
            neighbour = replace(neighbour, start_s=series.start_s, received_bytes=received_bytes)
        neighbours.append(neighbour)
    return neighbours, unmeasured_at


def _uncounted(run_id: str, burst: Burst) -> Neighbour:
    """Return a burst with zero bytes in each second."""
    start_s = math.floor(burst.planned_start_at.timestamp())
    seconds_count = math.ceil(burst.planned_end_at.timestamp()) - start_s
    return Neighbour(
        run_id=run_id,
        burst_index=burst.index,
        start_s=start_s,
        received_bytes=np.zeros(seconds_count),
    )


async def _begun(records: Records, plan: Plan, bursts: Sequence[Burst]) -> list[Burst]:
    """Return the bursts that a cancellation of their run did not prevent."""
    control = await records.runs.read_control(plan.run_id)
    stopped_at = control.cancelled_at if control else None
    return [one for one in bursts if stopped_at is None or one.planned_start_at < stopped_at]


def _inside(plan: Plan, from_at: datetime, before_at: datetime) -> list[Burst]:
    """Return a plan's bursts that overlap a time span."""
    return [
        burst
        for burst in plan.bursts
        if burst.planned_start_at < before_at and burst.planned_end_at > from_at
    ]
