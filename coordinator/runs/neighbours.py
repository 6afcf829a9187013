"""Other runs that crossed the same firewall while a run's ledger was kept.

A ledger counts whatever its device carried. What our own fleets sent through it is known to the
second, so it is read and put beside the run that is judged; what is not known yet is cut off, so
that nobody's bytes are taken for another's.
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

from broadside.coordinator.core.judge.device_prediction import Neighbour
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.plan.spec import Burst, Plan
from broadside.coordinator.device.ledgers.settle import Span
from broadside.coordinator.runs.stored import read_series
from broadside.exchange.messages import Flow
from broadside.exchange.ports import ExchangeUnavailable
from broadside.exchange.records import Document, Records

log = logging.getLogger(__name__)

OLDER_LOOKED_AT: Final = 200  # runs created before a span among which neighbours are sought


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What is known of the neighbours' bursts, and from when on it is not."""

    bursts: tuple[Neighbour, ...] = ()
    unknown_from_s: float | None = None  # epoch s; a burst began then that is not measured yet

    def cut(self, ledger: FirewallLedger) -> FirewallLedger:
        """The ledger without what an unmeasured neighbour may have added to it."""
        if self.unknown_from_s is None:
            return ledger
        label_s = self.unknown_from_s + max(0.0, ledger.lag_hint_s or 0.0)
        if not (ledger.end_s > label_s).any():
            return ledger
        note = "the ledger is taken up to where another run began that was not measured yet"
        return replace(
            ledger,
            bytes=np.where(ledger.end_s > label_s, np.nan, ledger.bytes),
            notes=(*ledger.notes, note),
        )

    def dump(self) -> bytes:
        """A compressed document."""
        bursts = [
            [each.run_id, each.burst_index, each.start_s, each.received_bytes.tolist()]
            for each in self.bursts
        ]
        document = {"bursts": bursts, "unknown_from_s": self.unknown_from_s}
        return zlib.compress(json.dumps(document).encode())

    @classmethod
    def load(cls, document: bytes) -> "Neighbours":
        """What :meth:`dump` wrote."""
        kept = json.loads(zlib.decompress(document))
        bursts = tuple(
            Neighbour(
                run_id=run_id,
                burst_index=index,
                start_s=start_s,
                received_bytes=np.array(received, dtype=float),
            )
            for run_id, index, start_s, received in kept["bursts"]
        )
        return cls(bursts=bursts, unknown_from_s=kept["unknown_from_s"])


async def read_neighbours(records: Records, run_id: str) -> Neighbours:
    """Those that a run was judged beside; none without a firewall's figures."""
    document = await records.private.read_document(run_id, Document.NEIGHBOURS)
    return Neighbours() if document is None else Neighbours.load(document)


async def bursts_within(
    records: Records,
    read_plan: Callable[[str], Awaitable[Plan]],
    from_at: datetime,
    before_at: datetime,
) -> list[tuple[Plan, Burst]]:
    """The planned bursts of all runs in a span; a run that cannot be read has none."""
    found: list[tuple[Plan, Burst]] = []
    async for run_id in _runs_in(records, from_at, before_at):
        try:
            plan = await read_plan(run_id)
        except ExchangeUnavailable:
            raise
        except Exception as error:  # as in find_neighbours, which says so
            log.debug("%s: %s", run_id, error)
            continue
        found += [(plan, burst) for burst in _inside(plan, from_at, before_at)]
    return found


async def find_neighbours(
    records: Records,
    read_plan: Callable[[str], Awaitable[Plan]],
    span: Span,
    flows: Sequence[Flow],
    *,
    begun_before_at: datetime,
) -> Neighbours | None:
    """The neighbours in a span of the ledger, as far as they are measured by now.

    None while one that began before ``begun_before_at`` is not: it is worth coming back, since it
    shares bins with the run itself. ``flows`` are those that the ledger counts. A run that cannot
    be read is left out, and logged.
    """
    found: list[Neighbour] = []
    unknown_from_s: float | None = None
    async for run_id in _runs_in(records, span.from_at, span.before_at):
        if run_id == span.run_id:
            continue
        try:
            measured, unmeasured_at = await _read_one(records, read_plan, run_id, span, flows)
        except ExchangeUnavailable:
            raise
        except Exception as error:  # half removed, or of another version: not this run's fault
            say = {"action": "judge", "run_id": span.run_id}
            log.warning("neighbour %s left out: %s", run_id, error, extra=say)
            continue
        found += measured
        if unmeasured_at is not None:
            if unmeasured_at < begun_before_at:
                return None
            began_s = unmeasured_at.timestamp()
            unknown_from_s = min(began_s, unknown_from_s or began_s)
    return Neighbours(bursts=tuple(found), unknown_from_s=unknown_from_s)


async def _runs_in(records: Records, from_at: datetime, before_at: datetime) -> AsyncIterator[str]:
    """Runs that may have sent in a span: created in it or soon before it, and not over by then, or
    open still."""
    looked_at: set[str] = set()
    older_count = 0
    async for _, header in records.private.scan_runs(before_at=before_at):
        if header.created_at < from_at:
            older_count += 1
            if older_count > OLDER_LOOKED_AT:
                break
        looked_at.add(header.run_id)
        if header.outcome is None or header.outcome.ended_at > from_at:
            yield header.run_id
    for run_id in await records.private.list_open():
        if run_id not in looked_at:
            yield run_id


async def _read_one(
    records: Records,
    read_plan: Callable[[str], Awaitable[Plan]],
    run_id: str,
    span: Span,
    flows: Sequence[Flow],
) -> tuple[list[Neighbour], datetime | None]:
    """One other run's bursts in the span, and when the first began that is not measured yet.

    What the ledger counts none of (a run round the device, or the other way) stays as a time at
    which it is not quiet: acknowledgements and control connections cross it still.
    """
    plan = await read_plan(run_id)
    bursts = _inside(plan, span.from_at, span.before_at)
    if not bursts or await records.private.read_document(run_id, Document.IMPORT) is not None:
        return [], None
    if plan.spec.bypasses_device:
        return [_uncounted(run_id, burst) for burst in bursts], None
    control = await records.runs.read_control(run_id)
    stopped_at = control.cancelled_at if control else None
    found: list[Neighbour] = []
    unmeasured_at: datetime | None = None
    for burst in bursts:
        if stopped_at is not None and burst.planned_start_at >= stopped_at:
            continue
        series = await read_series(records, run_id, burst.index, with_pairs=False)
        if series is None:
            unmeasured_at = min(burst.planned_start_at, unmeasured_at or burst.planned_start_at)
            continue
        counted = [flow.received_bytes for flow in series.flows if flow.flow in flows]
        if not counted:
            found.append(_uncounted(run_id, burst))
            continue
        found.append(
            Neighbour(
                run_id=run_id,
                burst_index=burst.index,
                start_s=series.start_s,
                received_bytes=np.asarray(np.nansum(counted, axis=0)),
            )
        )
    return found, unmeasured_at


def _uncounted(run_id: str, burst: Burst) -> Neighbour:
    start_s = math.floor(burst.planned_start_at.timestamp())
    seconds_count = math.ceil(burst.planned_end_at.timestamp()) - start_s
    return Neighbour(
        run_id=run_id,
        burst_index=burst.index,
        start_s=start_s,
        received_bytes=np.zeros(seconds_count),
    )


def _inside(plan: Plan, from_at: datetime, before_at: datetime) -> list[Burst]:
    """A plan's bursts that lie in a span."""
    return [
        burst
        for burst in plan.bursts
        if burst.planned_start_at < before_at and burst.planned_end_at > from_at
    ]
