"""Coordinator that launches runs, renews their leases and closes bursts that are over.

All state is in the tables. Another coordinator can replace one that fails at any point:

- The plan is stored before a job is queued.
- A job that is queued twice is dropped by its id, or its second copy cannot be claimed.
- A summary is computed from stored rows and written in one piece.

Any number of coordinators may therefore run. They may do the same work twice, but they never do
conflicting work.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from broadside.coordinator.core.live.status import BurstPhase, RunState, RunStatus
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.plan.cost_estimate import not_charged_why
from broadside.coordinator.core.plan.nightly_stop import NightlyStop
from broadside.coordinator.core.plan.price import Prices
from broadside.coordinator.core.run_spec import COLLECT_S, CounterRequirement, Plan, due_at
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.device.telemetry.collector import TelemetryCollector
from broadside.coordinator.device.telemetry.device_counter import open_counter
from broadside.coordinator.device.telemetry.live_readings import LiveReadings
from broadside.coordinator.device.telemetry.run_span import run_span
from broadside.coordinator.device.telemetry.source import TelemetrySource
from broadside.coordinator.device.telemetry.stabilization import StableReader
from broadside.coordinator.imports.stored_imports import recompute_import
from broadside.coordinator.prices import load as load_prices
from broadside.coordinator.request_errors import RunIsOver, UnknownRun
from broadside.coordinator.runs.closing import Closing
from broadside.coordinator.runs.dead_letters import DeadLetters
from broadside.coordinator.runs.dispatch import Dispatch
from broadside.coordinator.runs.failover import FailoverController
from broadside.coordinator.runs.input_collector import InputCollector
from broadside.coordinator.runs.launch import Launcher
from broadside.coordinator.runs.leases import Leases
from broadside.coordinator.runs.listing import outcome_of
from broadside.coordinator.runs.outage_store import watch_queue
from broadside.coordinator.runs.reservations import Reservations
from broadside.coordinator.runs.run_cost import cost_of
from broadside.coordinator.runs.run_documents import read_counter
from broadside.coordinator.runs.stored_runs import StoredRuns
from broadside.exchange.background import restart_on_error
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import BurstEnd, EndCause, OutageKind
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import ExchangeError, ExchangeUnavailable
from broadside.exchange.records import Document

log = logging.getLogger(__name__)

# Time between two looks at a run when agents need to send reports.
_SOON_S: Final = 0.1
# Time that one look may spend on queuing jobs for one run. Other runs have to wait.
_QUEUE_WITHIN_S: Final = 2.0


class BackgroundService(Protocol):
    """Background service of the coordinator, such as studies or schedules."""

    async def run_forever(self, tick_s: float) -> None:
        """Run until cancelled, and retry after outages.

        Args:
            tick_s: Time between two looks, in seconds.
        """


class Coordinator:
    """Service that launches runs and takes them to their verdict over one fabric.

    Attributes:
        fabric: Queue and tables.
        launcher: Launches runs.
        prices: Price list for estimates and costs.
        stored: Read access to stored runs.
        dead_letters: Dead letters of the queue.
        live: Newest telemetry, for guards.
        ticked_at: Time at which all runs were last processed, or None before the first time.
        companions: Background services that run beside the coordinator.
    """

    def __init__(
        self,
        fabric: Fabric,
        sources: Sequence[TelemetrySource] = (),
        *,
        now: Callable[[], datetime] = utc_now,
        prices: Prices | None = None,
        nightly_stop: NightlyStop | None = None,
    ) -> None:
        self.fabric = fabric
        self._queue = fabric.queue
        self._records = fabric.records
        counter = open_counter(sources)
        self._counter_reader = None if counter is None else StableReader(counter, now)
        self._collector = TelemetryCollector(sources, now)
        collector = self._collector if self._collector.quantities else None
        self.live = LiveReadings(sources)
        self._now = now
        self.prices = prices or load_prices()
        # Seconds until the last tick expects work.
        self._expects_s = math.inf
        # Runs that the last tick processed.
        self._under_way: set[str] = set()
        # Cancelled runs that have no more messages on the queue.
        self._taken_off: set[str] = set()
        # Last error of each run, by run id.
        self._failing: dict[str, str] = {}
        # Rows that an outage delayed may still arrive until this time.
        self._late_until_at = now()
        self.stored = StoredRuns(self._records, now)
        self._closing = Closing(
            fabric,
            self.stored.states,
            InputCollector(self._records, self.stored.read_plan, self._counter_reader, collector),
            collector,
            now,
        )
        self._leases = Leases(
            self._records,
            now,
            fabric.troubles,
            # A clock that is passed in is set by the caller, so elapsed time needs to be read from
            # it too.
            monotonic_s=time.monotonic if now is utc_now else lambda: now().timestamp(),
        )
        self._dispatch = Dispatch(self._queue, self._records, now)
        self._reservations = Reservations(fabric.private, now)
        self._replacements = FailoverController(
            self._records, self._dispatch, self._reservations, fabric.troubles, now
        )
        self.dead_letters = DeadLetters(self._queue, self._records, now)
        self.launcher = launcher = Launcher(
            private=fabric.private,
            records=self._records,
            read_plan=self.stored.read_plan,
            cache_plan=self.stored.keep,
            reservations=self._reservations,
            dispatch=self._dispatch,
            leases=self._leases,
            now=now,
            prices=self.prices,
            device_counter=None if counter is None else CounterRequirement(source=counter.name),
            quantities=self._collector.quantities,
            live=self.live,
            nightly_stop=nightly_stop,
        )
        self.launch, self.prepare, self.release = (
            launcher.launch,
            launcher.prepare,
            launcher.release,
        )
        self.drop, self.check, self.draft = launcher.drop, launcher.check, launcher.draft
        self.ticked_at: datetime | None = None
        self.companions: list[BackgroundService] = []

    # Operator actions --------------------------------------------------------------------------

    async def ended_at(self, run_id: str) -> datetime | None:
        """Return the time at which a run ended, or None while it continues.

        A run that was removed returns the earliest possible time.
        """
        try:
            plan = await self.stored.read_plan(run_id)
        except UnknownRun:
            return datetime.min.replace(tzinfo=UTC)
        now, last = self._now(), plan.bursts[-1]
        control = await self._records.runs.read_control(run_id)
        cancelled_at = control.cancelled_at if control else None
        if now < due_at(last):
            if cancelled_at is None and now < last.planned_end_at:
                return None
            status = await self.stored.status(run_id)
            if status.state not in (RunState.FINISHED, RunState.CANCELLED):
                return None
        return min(now, due_at(last), cancelled_at or now)

    async def cancel(self, run_id: str, *, by: str, reason: str) -> None:
        """Cancel a run, so that agents stop within seconds and later bursts leave the queue.

        A second call will finish a cancellation that was interrupted.

        Args:
            run_id: The id to look up.
            by: User who cancels the run.
            reason: Text to store.

        Raises:
            UnknownRun: If the id is unknown.
            RunIsOver: The run already has a verdict.
        """
        plan = await self.stored.read_plan(run_id)
        control = await self._records.runs.read_control(run_id)
        cancelled = control is not None and control.cancelled_at is not None
        if (
            not cancelled
            and await self._records.private.read_document(run_id, Document.RUN) is not None
        ):
            raise RunIsOver(run_id)
        await self._records.runs.cancel_run(run_id, at=self._now(), by=by, reason=reason)
        self._leases.release(run_id)
        await self._dispatch.remove_jobs(plan)
        await self._reservations.release(run_id)
        log.info("run cancelled", extra={"action": "cancel", "run_id": run_id})

    async def end_burst(
        self,
        run_id: str,
        burst_index: int,
        *,
        cause: EndCause,
        reason: str,
        at: datetime | None = None,
    ) -> BurstEnd:
        """End the traffic of all pairs of a running burst before its planned end.

        This is a planned end: no pair is aborted, and the burst is measured with its shorter
        duration. Agents read the order within their poll interval of 1 s by default. With a time at
        least 3 s ahead, all pairs stop at the same time.

        Args:
            run_id: The run id.
            burst_index: Burst index, starting at 0.
            cause: Why the burst ends.
            reason: Text to store.
            at: Time when the pairs stop. None to stop as soon as possible.

        Returns:
            The order that is in force. It is another one if the burst was already ended.

        Raises:
            UnknownRun: If the id is unknown.
            ValueError: The jobs of this run must not end early, or the burst is not running.
        """
        plan, now = await self.stored.read_plan(run_id), self._now()
        burst = plan.bursts[burst_index]
        if not plan.spec.may_end_early:
            raise ValueError(f"run {run_id}: its jobs do not allow an early end")
        if not burst.planned_start_at <= now < burst.planned_end_at:
            raise ValueError(f"run {run_id}: burst {burst_index + 1} is not running")
        end = BurstEnd(
            burst_index=burst_index,
            at=at or now,
            cause=cause,
            reason=reason,
            decided_at=now,
        )
        end = await self._records.runs.end_burst(run_id, end)
        log.info("burst ended early: %s", reason, extra={"action": "end_burst", "run_id": run_id})
        return end

    @property
    def has_counter(self) -> bool:
        """True if a device counter is configured, so that runs are compared with it."""
        return self._counter_reader is not None

    # Data for viewers (broadside.coordinator.views.feeds) --------------------------------------

    def now(self) -> datetime:
        """Return the current time on the coordinator's clock."""
        return self._now()

    async def counter_so_far(self, plan: Plan) -> tuple[CounterRecord | None, float]:
        """Return the device counter's data for a run as they are now.

        Returns:
            The record of the device counter and the number of seconds after which it may change.
            For a judged run this is the stored record and infinity. The record is None if no
            counter is configured.

        Raises:
            TelemetryError: The counter cannot be read.
        """
        stored = await read_counter(self._records, plan.run_id)
        if stored is not None or self._counter_reader is None:
            return stored, math.inf
        counter = self._counter_reader.counter
        span = run_span(plan, await self._records.runs.read_control(plan.run_id))
        before_at = min(span.before_at, self._now())
        device_counter = await counter.read(span.from_at, before_at, span.direction)
        return device_counter, counter.latency.reread_s or 0.0

    # Main loop ---------------------------------------------------------------------------------

    async def run_forever(self, tick_s: float) -> None:
        """Process unfinished runs and run the companions until cancelled."""
        works: list[Callable[[], Awaitable[None]]] = [
            partial(self._process_runs, tick_s),
            self._leases.renew_forever,
            self.launcher.queue_released,
            partial(watch_queue, self._queue, lambda: bool(self._under_way)),
            self._collector.poll_forever,
            *(partial(companion.run_forever, tick_s) for companion in self.companions),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for work in works:
                    group.create_task(restart_on_error(work))
        finally:
            if self._counter_reader is not None:
                await self._counter_reader.close()
            await self._collector.close()

    async def _process_runs(self, tick_s: float) -> None:
        """Call :meth:`tick` forever, and record the time until which delayed rows may arrive."""
        self._late_until_at = self._now() + timedelta(seconds=COLLECT_S)
        while True:
            began_s = time.monotonic()
            try:
                await self.tick()
                self.ticked_at = self._now()
                self.fabric.troubles.record_success(OutageKind.TICK_FAILED)
            except ExchangeError as error:
                self.fabric.troubles.failed(OutageKind.TICK_FAILED)
                self._late_until_at = self._now() + timedelta(seconds=COLLECT_S)
                log.warning("tick failed: %s", error, extra={"action": "tick"})
            took_s = time.monotonic() - began_s
            await asyncio.sleep(min(tick_s, max(self._expects_s, took_s)))

    async def tick(self) -> None:
        """Process every unfinished run once, to queue jobs, renew leases and close finished bursts.

        An error of one run is logged, and the other runs are still processed.

        Raises:
            ExchangeUnavailable: The tables or the queue were unavailable for at least one run. It
                is raised after all runs were processed.
        """
        run_ids = await self._records.private.list_open()
        self._under_way = set(run_ids)
        outage: ExchangeUnavailable | None = None
        self._expects_s = math.inf
        for run_id in run_ids:
            try:
                status = await self.advance(run_id)
                self._expects_s = min(self._expects_s, _expects_s(status, self._now()))
            # The run has been removed in the meantime.
            except UnknownRun:
                await self._records.private.drop_open(run_id)
            # If there is an error in a run, we should not stop the other runs.
            except Exception as error:
                self._log_error(run_id, error)
                if isinstance(error, ExchangeUnavailable):
                    outage = error
            else:
                self._failing.pop(run_id, None)
        if outage is not None:
            raise outage

    def _log_error(self, run_id: str, error: Exception) -> None:
        """Log an error of a run once, because each tick repeats the attempt."""
        if self._failing.get(run_id) != repr(error):
            self._failing[run_id] = repr(error)
            unexpected = not isinstance(error, ExchangeError)
            extra = {"action": "tick", "run_id": run_id}
            log.warning("run %s: %s", run_id, error, exc_info=unexpected, extra=extra)

    async def advance(self, run_id: str) -> RunStatus:
        """Do everything that is due for one run now.

        Finished bursts will be measured and judged even if the queue is unavailable. An error from
        the queue is raised after that, and the next tick will try again.
        """
        plan = await self.stored.read_plan(run_id)
        summary = await self.stored.summary(run_id)
        status = await self.stored.status(run_id)
        failed: Exception | None = None
        try:
            await self._tend(plan, status)
        except Exception as error:
            failed = error
        waits = self._now() < self._late_until_at
        if summary is None and (
            await self._closing.measure(plan, status, waits=waits) == len(plan.bursts)
        ):
            self._leases.release(run_id)
            await self._reservations.release(run_id)
            summary = await self._closing.judge(plan)
        if failed is not None:
            raise failed
        if summary is not None:
            await self._save_outcome(summary)
            self._dispatch.forget(run_id)
            self._replacements.forget(run_id)
            self._taken_off.discard(run_id)
        return status

    async def _tend(self, plan: Plan, status: RunStatus) -> None:
        """Renew the lease for a run, and add or remove messages on the queue."""
        if status.cancelled_by is not None:
            self._leases.release(plan.run_id)
            # The coordinator that cancelled the run may have failed before this step.
            if plan.run_id not in self._taken_off:
                await self._dispatch.remove_jobs(plan)
                self._taken_off.add(plan.run_id)
        elif status.state is not RunState.FINISHED:
            self._leases.hold(plan)
            await self._leases.renew()
            await self._dispatch.queue_bursts(plan, within_s=_QUEUE_WITHIN_S)
            await self._replacements.replace_silent(plan)

    async def recompute(self, run_id: str) -> RunSummary | None:
        """Compute the verdict again from the stored rows. Nothing is written.

        The result equals the stored summary byte for byte, unless rows were added or removed since.

        Returns:
            The summary, or None while the run continues.

        Raises:
            UnknownRun: If the id is unknown.
        """
        stored = await self.stored.summary(run_id)
        if stored is None:
            return None
        plan = await self.stored.read_plan(run_id)
        imported = await self.stored.imported(run_id)
        if imported is not None:
            return await recompute_import(plan, imported, stored.computed_at)
        return await self._closing.judge_again(plan, stored.computed_at)

    async def _save_outcome(self, summary: RunSummary) -> None:
        """Write the outcome into the run list. This is the last step of a run."""
        control = await self._records.runs.read_control(summary.run_id)
        cancelled = control is not None and control.cancelled_at is not None
        plan = await self.stored.read_plan(summary.run_id)
        outcome = outcome_of(
            summary,
            cancelled=cancelled,
            cost_usd=await cost_of(self._records, plan, control, self.prices),
            charged=not_charged_why(plan.spec) is None,
        )
        await self._records.private.save_outcome(summary.run_id, outcome)
        self._under_way.discard(summary.run_id)


def _expects_s(status: RunStatus, now: datetime) -> float:
    """Return the seconds until a run needs the next look, or infinity."""
    for burst in status.bursts:
        if burst.phase is BurstPhase.RUNNING:
            return max(_SOON_S, (burst.planned_end_at - now).total_seconds())
    waits = status.state in (RunState.COLLECTING, RunState.FINISHED, RunState.CANCELLED)
    return _SOON_S if waits and now < status.ends_at else math.inf
