"""Guards of running bursts: read live values, and stop all traffic when a limit is breached.

Each burst with guards has one task. It reads the values from some seconds before the start, checks
shortly before the start that each guard has a value, and cancels the run in the same way as an
abort. Afterwards it stores the values second by second.

Every coordinator guards every run. The first one that sees a breach stops the run.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from broadside.coordinator.core.guards import (
    ARMED_BEFORE_S,
    DRY_RUN,
    LOOK_S,
    PROBE_LOSS,
    PROBE_PAIRS_MAX_COUNT,
    PROBE_RTT,
    READ_AFTER_S,
    READ_BEFORE_S,
    STOPPED_BY,
    Breach,
    Guard,
    GuardLog,
    GuardRecord,
    GuardSecond,
    GuardState,
    GuardStop,
    LiveValue,
    interval_of,
    stop_within_s,
    worst_of,
)
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.device.telemetry.live_readings import LiveReadings
from broadside.coordinator.request_errors import RunIsOver, UnknownRun
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.background import KeyedTaskRunner
from broadside.exchange.messages import Claim, pair_name
from broadside.exchange.ports import ExchangeError
from broadside.exchange.records import Document, Records

log = logging.getLogger(__name__)

# Time between two looks at the list of open runs.
TICK_S: Final = 1.0
# Time between two reads of the control row, to see that a run was aborted.
CONTROL_S: Final = 1.0


class Guards:
    """Guards of all runs of a coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._records = coordinator.fabric.records
        self._lanes = KeyedTaskRunner()
        # Runs without guards, and runs that are over.
        self._done: set[str] = set()

    async def run_forever(self, tick_s: float) -> None:
        """Guard all runs until cancelled, and retry after outages.

        Args:
            tick_s: Longest time between two looks at the list of runs, in seconds.
        """
        try:
            while True:
                try:
                    await self.tick()
                except ExchangeError as error:
                    log.warning("guards not read: %s", error, extra={"action": "guard"})
                await asyncio.sleep(min(tick_s, TICK_S))
        finally:
            await self._lanes.end()

    async def tick(self) -> None:
        """Start a task for each open run with guards."""
        open_runs = await self._records.private.list_open()
        self._done &= set(open_runs)
        works = {
            run_id: partial(self._try, run_id) for run_id in open_runs if run_id not in self._done
        }
        await self._lanes.go(works, 0.0)

    async def _try(self, run_id: str) -> None:
        extra = {"action": "guard", "run_id": run_id}
        try:
            plan = await self._coordinator.stored.read_plan(run_id)
            if plan.spec.is_guarded:
                await self.guard(plan)
            self._done.add(run_id)
        except UnknownRun:
            self._done.add(run_id)
        except ExchangeError as error:
            log.warning("guards of %s: %s", run_id, error, extra=extra)
        # If a run cannot be guarded, we should still guard the others.
        except Exception:
            log.exception("guards of %s", run_id, extra=extra)

    async def guard(self, plan: Plan) -> None:
        """Guard all bursts of a run that are not over, and return when the run is over."""
        for burst in plan.bursts:
            now = self._coordinator.now()
            if burst.planned_end_at <= now:
                continue
            wait_s = (burst.planned_start_at - now).total_seconds() - READ_BEFORE_S
            await asyncio.sleep(max(0.0, wait_s))
            watch = BurstGuard(self._coordinator, plan, burst)
            if not await watch.run():
                return


@dataclass(slots=True)
class _Seconds:
    """Worst values by second of the burst."""

    guards: Sequence[Guard]
    zero_s: float
    rows: dict[int, list[float | None]] = field(default_factory=dict)

    def add(self, index: int, value: LiveValue) -> None:
        second = int((value.at_s - self.zero_s) // 1)
        row = self.rows.setdefault(second, [None] * len(self.guards))
        known, guard = row[index], self.guards[index]
        others = [] if known is None else [LiveValue(0.0, known, "")]
        row[index] = worst_of(guard, [value, *others]).value

    def dump(self) -> tuple[GuardSecond, ...]:
        return tuple(
            GuardSecond(second=second, values=tuple(row))
            for second, row in sorted(self.rows.items())
        )


class BurstGuard:
    """Guards of one burst."""

    def __init__(self, coordinator: Coordinator, plan: Plan, burst: Burst) -> None:
        self._coordinator = coordinator
        self._records: Records = coordinator.fabric.records
        self._live: LiveReadings = coordinator.live
        self._plan = plan
        self._burst = burst
        self._zero_s = burst.planned_start_at.timestamp()
        self._end_s = burst.planned_end_at.timestamp()
        now_s, intervals_s = self._now_s(), self._live.intervals_s
        self._states = [
            GuardState(
                guard=guard,
                index=index,
                interval_s=interval_of(guard, intervals_s),
                since_s=now_s,
            )
            for index, guard in enumerate(plan.spec.guards)
        ]
        self._seconds = _Seconds(plan.spec.guards, self._zero_s)
        self._started = False
        self._claims: Sequence[Claim | None] = ()
        self._control_at_s = time.monotonic()

    def _now_s(self) -> float:
        return self._coordinator.now().timestamp()

    async def run(self) -> bool:
        """Guard the burst until it is over, and store the values.

        Returns:
            False if the run was stopped or aborted.
        """
        quantities = {guard.quantity for guard in self._plan.spec.guards}
        tasks = [asyncio.create_task(self._live.poll_forever(quantities))]
        if any(state.guard.is_probe for state in self._states):
            tasks.append(asyncio.create_task(self._read_claims_forever()))
        try:
            stop, aborted = await self._watch()
            if stop is not None:
                await self._follow(READ_AFTER_S)
            await self._save(stop)
            return stop is None and not aborted
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> tuple[GuardStop | None, bool]:
        """Return the stop, if any, and True if a user aborted the run."""
        while (now_s := self._now_s()) < self._end_s:
            self._read()
            now_s = self._now_s()
            if (breach := self._judge(now_s)) is not None:
                return await self._stop(breach), False
            if self._plan.spec.dry_run and now_s >= self._zero_s - ARMED_BEFORE_S:
                breach = Breach(
                    index=-1, reason=DRY_RUN, value=None, source=None, breached_at_s=now_s
                )
                return await self._stop(breach), False
            if await self._is_aborted():
                return None, True
            await asyncio.sleep(LOOK_S)
        return None, False

    def _judge(self, now_s: float) -> Breach | None:
        """Return the first breach. Before the start, this is a guard that cannot be armed."""
        if now_s < self._zero_s - ARMED_BEFORE_S:
            return None
        judge: Callable[[GuardState], Breach | None] = (
            (lambda state: state.judge(now_s))
            if self._started
            else (lambda state: state.judge_start(now_s))
        )
        self._started = True
        return next(filter(None, map(judge, self._states)), None)

    def _read(self) -> None:
        """Store the newest value of each guard."""
        for state in self._states:
            guard = state.guard
            values = (
                probe_values(guard, self._claims) if guard.is_probe else self._live.values_of(guard)
            )
            if (value := state.add(values)) is not None:
                self._seconds.add(state.index, value)

    async def _read_claims_forever(self) -> None:
        """Read the live values of the probes. A slow table does not delay the other guards."""
        pairs = range(min(len(self._plan.pairs), PROBE_PAIRS_MAX_COUNT))
        while True:
            with contextlib.suppress(ExchangeError):
                by_pair = await self._records.bursts.read_claims(
                    self._plan.run_id, self._burst.index, pairs
                )
                self._claims = [by_pair.get(index) for index in pairs]
            await asyncio.sleep(LOOK_S)

    async def _is_aborted(self) -> bool:
        if time.monotonic() - self._control_at_s < CONTROL_S:
            return False
        self._control_at_s = time.monotonic()
        with contextlib.suppress(ExchangeError):
            control = await self._records.runs.read_control(self._plan.run_id)
            return control is not None and control.cancelled_at is not None
        return False

    async def _stop(self, breach: Breach) -> GuardStop:
        """Stop all traffic of the run. Agents stop first, and the queue is cleared after that."""
        now, run_id = self._coordinator.now(), self._plan.run_id
        reason = f"stopped by guard: {breach.reason}"
        while True:
            try:
                await self._records.runs.cancel_run(run_id, at=now, by=STOPPED_BY, reason=reason)
                break
            except ExchangeError as error:
                log.warning("guard: %s", error, extra={"action": "guard", "run_id": run_id})
                await asyncio.sleep(LOOK_S)
        log.warning("%s", reason, extra={"action": "guard", "run_id": run_id})
        # The tick of the coordinator finishes this if it fails here.
        with contextlib.suppress(RunIsOver, ExchangeError):
            await self._coordinator.cancel(run_id, by=STOPPED_BY, reason=reason)
        return GuardStop(
            burst_index=self._burst.index,
            guard_index=None if breach.index < 0 else breach.index,
            reason=breach.reason,
            is_before_start=now.timestamp() < self._zero_s,
            breached_at=datetime.fromtimestamp(breach.breached_at_s, UTC),
            stop_requested_at=now,
        )

    async def _follow(self, within_s: float) -> None:
        """Read on after a stop, so that the record shows the recovery."""
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            self._read()
            await asyncio.sleep(LOOK_S)

    async def _save(self, stop: GuardStop | None) -> None:
        """Store the values of the burst once, unless the run has a verdict already."""
        private, run_id = self._records.private, self._plan.run_id
        if await private.read_document(run_id, Document.RUN) is not None:
            return
        index = self._burst.index
        if await private.read_document(run_id, Document.GUARDS, index) is not None:
            return
        document = GuardLog(
            burst_index=index,
            guards=tuple(map(record_of, self._states)),
            stop=stop,
            seconds=self._seconds.dump(),
        )
        await private.save_document(run_id, Document.GUARDS, document.to_json().encode(), index)


def record_of(state: GuardState) -> GuardRecord:
    """Return the stored record of a guard."""
    return GuardRecord(
        guard=str(state.guard),
        quantity=state.guard.quantity,
        limit=state.guard.limit,
        last=None if state.last is None else state.last.value,
        worst=state.worst,
        readings_count=state.readings_count,
        stop_within_s=stop_within_s(state.guard, state.interval_s),
    )


def probe_values(guard: Guard, claims: Iterable[Claim | None]) -> list[LiveValue]:
    """Return the newest values from the probes, one per pair.

    Args:
        guard: The guard.
        claims: Claims in the order of the pairs.
    """
    values = []
    for index, claim in enumerate(claims):
        if claim is None or claim.probes is None:
            continue
        by_name = {PROBE_RTT: claim.probes.rtt_s, PROBE_LOSS: claim.probes.loss_ratio}
        value = by_name[guard.quantity]
        if value is not None:
            values.append(LiveValue(claim.probes.at.timestamp(), value, pair_name(index)))
    return values
