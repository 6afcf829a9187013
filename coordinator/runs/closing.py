"""Closing of bursts and runs, where they are measured, judged and stored.

A finished burst is measured from the stored rows as soon as possible. A run will be judged when all
bursts are measured and the firewall counter no longer changes. All inputs for a verdict are stored
before the verdict, so that it can be computed again byte for byte.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.judge.guard_report import with_guards
from broadside.coordinator.core.judge.summarise import RunContext, summarise_run
from broadside.coordinator.core.live.status import BurstPhase, BurstRows, RunStatus
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.mixed import measure_parts
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, CounterRecord
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    drop_invalid,
    merge_readings,
)
from broadside.coordinator.core.plan.budget import ran, with_abort, with_budget
from broadside.coordinator.core.run_spec import COLLECT_S, Burst, Plan, due_at
from broadside.coordinator.core.summary import RunSummary, canonical
from broadside.coordinator.device.telemetry.collector import TelemetryCollector
from broadside.coordinator.device.telemetry.source import RunSpan
from broadside.coordinator.device.telemetry.stabilization import StableReader
from broadside.coordinator.device.telemetry.telemetry_storage import (
    dump_counter,
    dump_telemetry,
    load_telemetry,
)
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.coordinator.runs.guard_records import guards_pending, read_guards
from broadside.coordinator.runs.outage_store import read_outages, save_outages
from broadside.coordinator.runs.overlapping_runs import (
    OverlappingRuns,
    find_bursts_beside,
    find_overlapping_runs,
    read_overlapping_runs,
)
from broadside.coordinator.runs.reading_store import extend_with_stored, save_readings
from broadside.coordinator.runs.run_documents import (
    read_counter,
    read_fleet,
    read_measured,
    read_telemetry,
)
from broadside.coordinator.runs.run_states import RunStates
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Control, Outcome, ServiceOutage
from broadside.exchange.records import Document, Judging, Records

_SENT: Final = (Outcome.MEASURED, Outcome.LATE, Outcome.ABANDONED)

log = logging.getLogger(__name__)

# Seconds for which one coordinator reserves the judging of a run.
JUDGING_S: Final = 30.0
# Seconds of the device counter that are stored before and after a run, for its lag and foreign
# traffic.
COUNTER_MARGIN_S: Final = 360.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReaders:
    """Readers of the device counter and of the telemetry, or None without a source."""

    counter: StableReader | None
    collector: TelemetryCollector | None


class Closing:
    """Service to measure finished bursts, and to judge runs from stored data."""

    def __init__(
        self,
        fabric: Fabric,
        states: RunStates,
        read_plan: Callable[[str], Awaitable[Plan]],
        device: DeviceReaders,
        now: Callable[[], datetime],
    ) -> None:
        self._records = fabric.records
        self._collector = device.collector
        self._states = states
        self._counter_reader = device.counter
        self._outages = fabric.troubles
        self._read_plan = read_plan
        self._now = now
        self._owner = secrets.token_hex(4)
        # Monotonic time of the next look at a burst with open ends.
        self._again_s: dict[tuple[str, int], float] = {}
        # Records that no longer change, for runs that wait until overlapping runs are measured.
        self._final_counters: dict[str, CounterRecord] = {}

    # Bursts ------------------------------------------------------------------------------------

    async def measure(self, plan: Plan, status: RunStatus, *, waits: bool) -> int:
        """Measure the bursts that are over and not measured yet.

        A burst will also stay open while a server record is open, until the burst is due. Such a
        server waits for a client that has stopped sending.

        Args:
            plan: The plan to use.
            status: The current status.
            waits: True if an outage may have delayed reports. A burst with missing reports then
                stays open.

        Returns:
            Number of bursts that are measured now, including earlier calls.
        """
        closed = await self._states.closed(plan.run_id)
        closed_count = 0
        for burst, burst_status in zip(plan.bursts, status.bursts, strict=True):
            if burst_status.phase is not BurstPhase.OVER:
                continue
            missing = burst_status.reported_count < burst_status.claimed_count
            if burst.index not in closed and (
                (waits and missing) or not await self._close(plan, burst)
            ):
                continue
            closed_count += 1
        return closed_count

    async def _close(self, plan: Plan, burst: Burst) -> bool:
        """Measure a burst and return True, or return False while a record of an end is open."""
        key = (plan.run_id, burst.index)
        if time.monotonic() < self._again_s.get(key, 0.0):
            return False
        began_s = time.monotonic()
        evidence = await read_evidence(self._records, plan, burst)
        if _open_ends(evidence) and self._now() < _reports_due_at(evidence):
            # A thousand pairs take seconds to read. Wait at least as long before the next read.
            self._again_s[key] = 2 * time.monotonic() - began_s
            return False
        self._again_s.pop(key, None)
        await self._measure(plan, evidence)
        return True

    async def _measure(self, plan: Plan, evidence: BurstEvidence) -> BurstMeasurement:
        """Measure a burst and store the summary and series, even if it was closed before."""
        burst = evidence.burst
        measured = await _measured(plan, evidence)
        await self._records.private.save_document(
            plan.run_id, Document.SERIES, measured.series.pack(), burst.index
        )
        await self._records.private.save_document(
            plan.run_id, Document.BURST, canonical(measured.summary), burst.index
        )
        await self._save_readings(plan, burst)
        await self._states.close(
            plan, burst, measured, _rows(evidence), open_ends_count=_open_ends(evidence)
        )
        log.info("burst measured", extra={"action": "measure", "run_id": plan.run_id})
        return measured

    async def _load_or_measure(self, plan: Plan, burst: Burst) -> BurstMeasurement:
        """Return the stored burst, or measure it again if rows were missing when it was closed."""
        closed = (await self._states.closed(plan.run_id)).get(burst.index)
        if closed is not None and closed.is_complete:
            stored = await read_measured(self._records, plan.run_id, burst.index, with_pairs=False)
            if stored is not None:
                return stored
        return await self._measure(plan, await read_evidence(self._records, plan, burst))

    # Runs --------------------------------------------------------------------------------------

    async def judge(self, plan: Plan) -> RunSummary | None:
        """Judge a run when all inputs are final.

        The firewall counter must no longer change, and the traffic from other runs needs to be
        known. Only one coordinator can judge a run. A stored verdict and the inputs to it will
        never change.

        Returns:
            The stored summary, or None if the caller needs to try again later.
        """
        now = self._now()
        reservation = Judging(by=self._owner, until_at=now + timedelta(seconds=JUDGING_S))
        if not await self._records.private.acquire_judging(plan.run_id, reservation, now):
            return None
        inputs = await self._collect(plan)
        control = await self._records.runs.read_control(plan.run_id)
        if inputs is None or await guards_pending(self._records, plan, control, self._now()):
            return None
        part = ran(plan, control)
        bursts = [await self._load_or_measure(part, burst) for burst in part.bursts]
        outages = await save_outages(self._records, plan, self._outages, self._now())
        inputs = replace(inputs, outages=outages)
        summary = await self._verdict(plan, control, bursts, inputs, self._now())
        await self._records.private.save_document(plan.run_id, Document.RUN, canonical(summary))
        log.info("verdict %s", summary.verdict, extra={"action": "judge", "run_id": plan.run_id})
        return summary

    async def _collect(self, plan: Plan) -> "_Inputs | None":
        """Store and return the inputs of a verdict, or None while one of them may change."""
        inputs = await _read_inputs(self._records, plan.run_id)
        if inputs.device_counter is None and self._counter_reader is not None:
            stable = await self._read_counter(plan, self._counter_reader)
            if stable is None:
                return None
            device_counter, overlapping = stable
            inputs = replace(inputs, device_counter=device_counter, overlapping=overlapping)
        if inputs.telemetry is None and self._collector is not None:
            telemetry = await self._collect_telemetry(plan, self._collector)
            if telemetry is None:
                return None
            overlapping = await read_overlapping_runs(self._records, plan.run_id)
            inputs = replace(inputs, telemetry=telemetry, overlapping=overlapping)
        return inputs

    async def _read_counter(
        self, plan: Plan, reader: StableReader
    ) -> tuple[CounterRecord, OverlappingRuns] | None:
        """Store and return the final counter and overlapping runs, or None while it may change."""
        span = await self.counter_span(plan)
        device_counter = self._final_counters.get(plan.run_id)
        if device_counter is None:
            device_counter = await reader.read(span)
            if device_counter is None:
                return None
            if reader.counter.is_polled:
                # We need to store them again, because a counter might need some time to report
                # after the traffic.
                await self._save_readings(plan, plan.bursts[-1])
                device_counter = await extend_with_stored(
                    self._records, self._read_plan, span, device_counter, reader.counter
                )
            self._final_counters[plan.run_id] = device_counter
        lag = timedelta(seconds=reader.counter.latency.lag_s)
        overlapping = await find_overlapping_runs(
            self._records,
            self._read_plan,
            span.since(device_counter.counts_from_s),
            device_counter.flows,
            begun_before_at=span.ended_at + lag,
        )
        if overlapping is None:
            return None
        device_counter = overlapping.trim(device_counter)
        # Write the device counter last, to show that the overlapping runs have been stored too.
        await self._records.private.save_document(
            plan.run_id, Document.NEIGHBOURS, overlapping.dump()
        )
        await self._records.private.save_document(
            plan.run_id, Document.COUNTER, dump_counter(device_counter)
        )
        del self._final_counters[plan.run_id]
        return device_counter, overlapping

    async def _save_readings(self, plan: Plan, burst: Burst) -> None:
        """Store the readings for a burst from devices that have no history.

        The coordinator may fail before the run is judged, and these readings cannot be queried
        later.
        """
        if self._collector is not None:
            await save_readings(self._records, plan.run_id, burst, self._collector.polled_readings)

    async def _collect_telemetry(
        self, plan: Plan, collector: TelemetryCollector
    ) -> DeviceTelemetry | None:
        """Store and return the telemetry of all sources, or None while more may arrive."""
        span = await self.counter_span(plan)
        telemetry = await collector.collect(span)
        if telemetry is None:
            return None
        if self._counter_reader is None:
            beside = await find_bursts_beside(self._records, self._read_plan, span)
            await self._records.private.save_document(
                plan.run_id, Document.NEIGHBOURS, beside.dump()
            )
        for burst in plan.bursts:
            stored = await read_telemetry(self._records, plan.run_id, burst.index)
            if stored is not None:
                telemetry = merge_readings(stored, telemetry)
        packed = await asyncio.to_thread(dump_telemetry, drop_invalid(telemetry))
        await self._records.private.save_document(plan.run_id, Document.TELEMETRY, packed)
        # We return the stored form, so that you will get the same bytes if you compute the verdict
        # again.
        return load_telemetry(packed)

    async def judge_again(self, plan: Plan, computed_at: datetime) -> RunSummary:
        """Compute the verdict from the stored rows. Nothing is written.

        Args:
            plan: The plan to use.
            computed_at: Time to store with the verdict.

        Returns:
            The summary from the stored evidence, with the ``computed_at`` that was given.
        """
        control = await self._records.runs.read_control(plan.run_id)
        part = ran(plan, control)
        bursts = [
            await _measured(plan, await read_evidence(self._records, plan, burst))
            for burst in part.bursts
        ]
        inputs = await _read_inputs(self._records, plan.run_id)
        inputs = replace(inputs, outages=await read_outages(self._records, plan.run_id))
        return await self._verdict(plan, control, bursts, inputs, computed_at)

    async def _verdict(
        self,
        plan: Plan,
        control: Control | None,
        bursts: Sequence[BurstMeasurement],
        inputs: "_Inputs",
        at: datetime,
    ) -> RunSummary:
        """Return the summary of the bursts that ran."""
        summary = await asyncio.to_thread(
            summarise_run,
            ran(plan, control),
            bursts,
            inputs.device_counter,
            at,
            RunContext(
                telemetry=inputs.telemetry,
                fleet=await read_fleet(self._records, plan.run_id),
                troubles=inputs.outages,
                neighbours=inputs.overlapping.bursts,
            ),
        )
        guards = await read_guards(self._records, plan, control, bursts)
        summary = with_abort(with_budget(summary, plan, control), control)
        return with_guards(summary, plan, control, guards)

    async def counter_span(self, plan: Plan) -> RunSpan:
        """Return the time span of device counter data that a run needs."""
        control = await self._records.runs.read_control(plan.run_id)
        cancelled_at = control.cancelled_at if control else None
        begun_at, ends_at = plan.bursts[0].planned_start_at, plan.bursts[-1].planned_end_at
        margin = timedelta(seconds=COUNTER_MARGIN_S)
        return RunSpan(
            run_id=plan.run_id,
            from_at=begun_at - margin,
            before_at=ends_at + margin,
            begun_at=begun_at,
            ended_at=min(filter(None, (ends_at, cancelled_at))),
            direction=plan.spec.traffic.direction,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """Inputs of a verdict in addition to the bursts, which are stored before the verdict."""

    device_counter: CounterRecord | None
    overlapping: OverlappingRuns
    telemetry: DeviceTelemetry | None
    outages: Sequence[ServiceOutage] = ()


async def _read_inputs(records: Records, run_id: str) -> _Inputs:
    """Return the stored inputs of a verdict."""
    return _Inputs(
        device_counter=await read_counter(records, run_id),
        overlapping=await read_overlapping_runs(records, run_id),
        telemetry=await read_telemetry(records, run_id),
    )


async def _measured(plan: Plan, evidence: BurstEvidence) -> BurstMeasurement:
    # We use a thread, because it will take seconds to do this for a thousand pairs, and the event
    # loop needs to renew leases.
    return await asyncio.to_thread(measure_parts, plan, evidence, due_at(evidence.burst))


def _rows(evidence: BurstEvidence) -> BurstRows:
    return BurstRows(
        claims={p.pair_index: p.claim for p in evidence.pairs if p.claim is not None},
        reports={p.pair_index: p.report for p in evidence.pairs if p.report is not None},
    )


def _reports_due_at(evidence: BurstEvidence) -> datetime:
    """Return the time by which both ends should have sent all their records."""
    due = due_at(evidence.burst)
    if evidence.cancelled_at is None:
        return due
    return min(due, evidence.cancelled_at + timedelta(seconds=COLLECT_S))


def _open_ends(evidence: BurstEvidence) -> int:
    """Count pairs with an open server record, or with a client that sent and no server record."""
    return sum(
        pair.server_test.ended_at is None
        if pair.server_test is not None
        else pair.report is not None and pair.report.outcome in _SENT
        for pair in evidence.pairs
    )
