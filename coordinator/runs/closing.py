"""Closing of bursts and runs, where they are measured, judged and stored.

A finished burst is measured from the stored rows as soon as possible. A run will be judged when all
bursts are measured and the device counter no longer changes. All inputs for a verdict are stored
before the verdict, so that it can be computed again byte for byte.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.judge.summarise import judge_run
from broadside.coordinator.core.live.status import BurstPhase, RunStatus
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.mixed import measure_parts
from broadside.coordinator.core.measure.records.evidence import BurstEvidence
from broadside.coordinator.core.plan.budget import ran
from broadside.coordinator.core.run_spec import COLLECT_S, Burst, Plan, due_at
from broadside.coordinator.core.summary import RunSummary, canonical
from broadside.coordinator.device.telemetry.collector import TelemetryCollector
from broadside.coordinator.device.telemetry.run_span import run_span
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.coordinator.runs.guard_records import guards_pending
from broadside.coordinator.runs.input_collector import InputCollector
from broadside.coordinator.runs.outage_store import save_outages
from broadside.coordinator.runs.reading_store import save_readings
from broadside.coordinator.runs.run_states import RunStates
from broadside.coordinator.runs.stored_inputs import read_inputs
from broadside.exchange.fabric import Fabric
from broadside.exchange.records import Document, Judging

log = logging.getLogger(__name__)

# Seconds for which one coordinator reserves the judging of a run.
JUDGING_S: Final = 30.0


class Closing:
    """Service to measure finished bursts, and to judge runs from stored data."""

    def __init__(
        self,
        fabric: Fabric,
        states: RunStates,
        inputs: InputCollector,
        collector: TelemetryCollector | None,
        now: Callable[[], datetime],
    ) -> None:
        self._records = fabric.records
        self._states = states
        self._inputs = inputs
        self._collector = collector
        self._outages = fabric.troubles
        self._now = now
        self._owner = secrets.token_hex(4)
        # Monotonic time of the next look at a burst with open ends.
        self._again_s: dict[tuple[str, int], float] = {}

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
        if evidence.open_ends_count and self._now() < _reports_due_at(evidence):
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
        # The coordinator may fail before the run is judged, and these readings cannot be queried
        # later.
        if self._collector is not None:
            await save_readings(self._records, plan, burst, self._collector.polled_readings)
        await self._states.close(plan, evidence, measured)
        log.info("burst measured", extra={"action": "measure", "run_id": plan.run_id})
        return measured

    # Runs --------------------------------------------------------------------------------------

    async def judge(self, plan: Plan) -> RunSummary | None:
        """Judge a run when all inputs are final.

        The device counter must no longer change, and the traffic from other runs needs to be
        known. Only one coordinator can judge a run. A stored verdict and the inputs to it will
        never change.

        Returns:
            The stored summary, or None if the caller needs to try again later.
        """
        now = self._now()
        reservation = Judging(by=self._owner, until_at=now + timedelta(seconds=JUDGING_S))
        if not await self._records.private.acquire_judging(plan.run_id, reservation, now):
            return None
        span = run_span(plan, await self._records.runs.read_control(plan.run_id))
        if not await self._inputs.collect_inputs(plan, span):
            return None
        # The run may have been cancelled in the meantime.
        control = await self._records.runs.read_control(plan.run_id)
        if await guards_pending(self._records, plan, control, self._now()):
            return None
        part = ran(plan, control)
        bursts = [
            await self._states.read_complete(plan.run_id, burst.index)
            or await self._measure(part, await read_evidence(self._records, part, burst))
            for burst in part.bursts
        ]
        await save_outages(self._records, plan, self._outages, self._now())
        inputs = await read_inputs(self._records, plan, control)
        summary = await asyncio.to_thread(judge_run, plan, bursts, inputs, self._now())
        await self._records.private.save_document(plan.run_id, Document.RUN, canonical(summary))
        log.info("verdict %s", summary.verdict, extra={"action": "judge", "run_id": plan.run_id})
        return summary

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
        inputs = await read_inputs(self._records, plan, control)
        return await asyncio.to_thread(judge_run, plan, bursts, inputs, computed_at)


async def _measured(plan: Plan, evidence: BurstEvidence) -> BurstMeasurement:
    # We use a thread, because it will take seconds to do this for a thousand pairs, and the event
    # loop needs to renew leases.
    return await asyncio.to_thread(measure_parts, plan, evidence, due_at(evidence.burst))


def _reports_due_at(evidence: BurstEvidence) -> datetime:
    """Return the time by which both ends should have sent all their records."""
    due = due_at(evidence.burst)
    if evidence.cancelled_at is None:
        return due
    return min(due, evidence.cancelled_at + timedelta(seconds=COLLECT_S))
