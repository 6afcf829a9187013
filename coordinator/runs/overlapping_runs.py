"""Other runs that sent traffic through the same firewall during a run.

A firewall counter counts all traffic on the device. The traffic from other Broadside runs is known
for each second. It is read here, to be used when the run is judged. From the start of the first
burst that has not been measured yet, all bins are set to unknown, because these bytes could be
attributed to the wrong run.
"""

import json
import logging
import math
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import numpy as np

from broadside.coordinator.core.judge.reconciliation.device_prediction import Neighbour
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.device.telemetry.source import RunSpan
from broadside.coordinator.runs.run_documents import read_series
from broadside.exchange.messages import Flow
from broadside.exchange.ports import ExchangeUnavailable
from broadside.exchange.records import Document, Records

log = logging.getLogger(__name__)

# Number of runs created before the span that are searched for overlaps.
OLDER_MAX_COUNT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlappingRuns:
    """Bursts in other runs that overlap a device counter.

    Attributes:
        bursts: Measured bursts.
        unknown_from_s: Start of the first burst that is not measured yet, as epoch seconds.
    """

    bursts: tuple[Neighbour, ...] = ()
    unknown_from_s: float | None = None

    def trim(self, device_counter: CounterRecord) -> CounterRecord:
        """Return the device counter with unknown bins from the first unmeasured burst on."""
        if self.unknown_from_s is None:
            return device_counter
        label_s = self.unknown_from_s + max(0.0, device_counter.lag_hint_s or 0.0)
        if not (device_counter.end_s > label_s).any():
            return device_counter
        note = (
            "its values are used only until another run started, because that run was not "
            "measured yet"
        )
        return replace(
            device_counter,
            bytes=np.where(device_counter.end_s > label_s, np.nan, device_counter.bytes),
            notes=(*device_counter.notes, note),
        )

    def dump(self) -> bytes:
        """Return a compressed document."""
        bursts = [
            [burst.run_id, burst.burst_index, burst.start_s, burst.received_bytes.tolist()]
            for burst in self.bursts
        ]
        document = {"bursts": bursts, "unknown_from_s": self.unknown_from_s}
        return zlib.compress(json.dumps(document).encode())

    @classmethod
    def load(cls, document: bytes) -> "OverlappingRuns":
        """Read a document from :meth:`dump`."""
        stored = json.loads(zlib.decompress(document))
        bursts = tuple(
            Neighbour(
                run_id=run_id,
                burst_index=index,
                start_s=start_s,
                received_bytes=np.array(received, dtype=float),
            )
            for run_id, index, start_s, received in stored["bursts"]
        )
        return cls(bursts=bursts, unknown_from_s=stored["unknown_from_s"])


async def read_overlapping_runs(records: Records, run_id: str) -> OverlappingRuns:
    """Return the overlapping bursts that are stored for a run.

    The result is empty if no counter is configured.

    Args:
        records: Records to read from.
        run_id: The run id.
    """
    document = await records.private.read_document(run_id, Document.NEIGHBOURS)
    return OverlappingRuns() if document is None else OverlappingRuns.load(document)


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
        # find_neighbours logs a warning for the same run.
        except Exception as error:
            log.debug("%s: %s", run_id, error)
            continue
        bursts += [(plan, burst) for burst in _inside(plan, from_at, before_at)]
    return bursts


async def find_overlapping_runs(
    records: Records,
    read_plan: Callable[[str], Awaitable[Plan]],
    span: RunSpan,
    flows: Sequence[Flow],
    *,
    begun_before_at: datetime,
) -> OverlappingRuns | None:
    """Find the measured bursts of other runs in the span of a device counter.

    Args:
        records: Records to use for access to the tables.
        read_plan: Function to get the plan for a run id.
        span: Time span of the device counter. Bursts of its own run are not included.
        flows: Flows that the device counter counts.
        begun_before_at: End of the time in which another run shares bins with this run.

    Returns:
        The bursts, or None while a burst that began before ``begun_before_at`` is not measured. The
        caller should then try again later. An unreadable run is logged and left out.

    Raises:
        ExchangeUnavailable: The tables cannot be reached.
    """
    neighbours: list[Neighbour] = []
    unknown_from_s: float | None = None
    async for run_id in _runs_in(records, span.from_at, span.before_at):
        if run_id == span.run_id:
            continue
        try:
            measured, unmeasured_at = await _read_one(records, read_plan, run_id, span, flows)
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
    return OverlappingRuns(bursts=tuple(neighbours), unknown_from_s=unknown_from_s)


async def find_bursts_beside(
    records: Records, read_plan: Callable[[str], Awaitable[Plan]], span: RunSpan
) -> OverlappingRuns:
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
        control = await records.runs.read_control(plan.run_id)
        stopped_at = control.cancelled_at if control else None
        if stopped_at is None or burst.planned_start_at < stopped_at:
            bursts.append(_uncounted(plan.run_id, burst))
    return OverlappingRuns(bursts=tuple(bursts))


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
    flows: Sequence[Flow],
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
    control = await records.runs.read_control(run_id)
    stopped_at = control.cancelled_at if control else None
    neighbours: list[Neighbour] = []
    unmeasured_at: datetime | None = None
    for burst in bursts:
        if stopped_at is not None and burst.planned_start_at >= stopped_at:
            continue
        series = await read_series(records, run_id, burst.index, with_pairs=False)
        if series is None:
            unmeasured_at = min(burst.planned_start_at, unmeasured_at or burst.planned_start_at)
            continue
        counted = [flow.received_bytes for flow in series.flows if flow.flow in flows]
        neighbour = _uncounted(run_id, burst)
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


def _inside(plan: Plan, from_at: datetime, before_at: datetime) -> list[Burst]:
    """Return a plan's bursts that overlap a time span."""
    return [
        burst
        for burst in plan.bursts
        if burst.planned_start_at < before_at and burst.planned_end_at > from_at
    ]
