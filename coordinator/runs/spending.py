"""What runs cost while they go on, and the end of those that would cross their budget.

A run stops between two bursts: when the one before is over and the next would bring the run above
its budget, the bursts to come are cancelled, with the figures as the reason. Bursts that ran are
kept, and the verdict is over them. While a burst is not measured (the next follows within seconds,
or an end is silent) that is decided shortly before the next one, on what was uploaded by then; a
burst of which nothing was counts as expected.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from broadside.coordinator.core.live.progress import Progress, progress
from broadside.coordinator.core.plan.cost_estimate import Appraisal, estimate
from broadside.coordinator.core.plan.meter import (
    STOPPED_BY,
    Basis,
    PriceMeter,
    Spending,
    basis,
    crossing,
    measure,
)
from broadside.coordinator.core.plan.planner import Infeasible, live
from broadside.coordinator.core.plan.price import Prices
from broadside.coordinator.core.plan.spec import Burst, Plan, RunSpec
from broadside.coordinator.refusals import RunIsOver, UnknownRun
from broadside.coordinator.runs.chunk_columns import readings_max_count, stream_columns
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.run_cost import read_payloads
from broadside.exchange.background import Lanes
from broadside.exchange.messages import Control
from broadside.exchange.ports import ExchangeError
from broadside.exchange.records import Document

log = logging.getLogger(__name__)

DECIDE_S: Final = 3.0  # s before a burst: time enough to reach agents that wait for the instant
LOOK_S: Final = 1.0  # s between looks at the runs that have a budget, at most


class Budgets:
    """Meters of every run, and the guard of those that have a budget."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._records = coordinator.fabric.records
        self._now = coordinator.now
        self._held: dict[str, dict[int, int]] = {}  # payload of bursts that nobody measured in time
        self._lanes = Lanes()
        self._done: set[str] = set()  # runs without a budget, or that are over

    async def read(self, run_id: str) -> PriceMeter:
        """What a run has cost so far. Raises
        :class:`~broadside.coordinator.refusals.UnknownRun`."""
        plan = await self._coordinator.stored.read_plan(run_id)
        control = await self._records.runs.read_control(run_id)
        begun = self._begun(plan, control)
        measured = await self._measured_bytes(plan, begun)
        spending = await self._spending(plan, begun, measured)
        meter = measure(spending, self._coordinator.prices, self._now(), control)
        if await self._records.private.read_document(run_id, Document.IMPORT) is None:
            return meter
        why = "it was imported: this is what its bytes would cost"
        return meter.model_copy(update={"charged": False, "not_charged_why": why})

    async def appraise(self, spec: RunSpec, prices: Prices) -> Appraisal:
        """What launching a run now would mean; nothing is stored."""
        now = self._now()
        presences = await self._records.fleet.read_presences()
        price = estimate(spec, live(presences, now), prices, now)
        faults = [] if price.over_budget is None else [price.over_budget]
        warnings: tuple[str, ...] = ()
        try:
            warnings = (await self._coordinator.draft(spec)).warnings
        except Infeasible as error:
            faults = [*error.problems, *faults]
        return Appraisal(
            feasible=not faults, problems=tuple(faults), warnings=warnings, price=price
        )

    async def run_forever(self, tick_s: float) -> None:
        """Guard budgets until cancelled; an outage is waited out.

        A tick that is longer than :data:`LOOK_S` would step over the moment to decide.
        """
        try:
            while True:
                try:
                    await self.tick()
                except ExchangeError as error:
                    log.warning("budgets not read: %s", error, extra={"action": "budget"})
                await asyncio.sleep(min(tick_s, LOOK_S))
        finally:
            await self._lanes.end()

    async def tick(self) -> None:
        """One look at every run that has a budget and goes on; none waits behind another's rows."""
        open_runs = await self._records.private.list_open()
        guards = {
            run_id: partial(self._try, run_id) for run_id in open_runs if run_id not in self._done
        }
        await self._lanes.go(guards, LOOK_S)

    async def _try(self, run_id: str) -> None:
        say = {"action": "budget", "run_id": run_id}
        try:
            await self.guard(run_id)
        except UnknownRun:
            return  # pruned meanwhile
        except ExchangeError as error:
            log.warning("budget of %s: %s", run_id, error, extra=say)
        except Exception:  # one that cannot be read here must not stop the others
            log.exception("budget of %s", run_id, extra=say)

    async def guard(self, run_id: str) -> None:
        """Cancel what is to come of a run that would cross its budget in its next burst."""
        plan = await self._coordinator.stored.read_plan(run_id)
        to_come = [burst for burst in plan.bursts if burst.planned_start_at > self._now()]
        control = await self._records.runs.read_control(run_id)
        cancelled = control is not None and control.cancelled_at is not None
        if plan.spec.budget_usd is None or cancelled or not to_come:
            self._done.add(run_id)
            return
        following = to_come[0]
        if following.index == 0:
            return  # its launch was within the budget
        before = plan.bursts[following.index - 1]
        if before.planned_end_at > self._now():
            return
        decide_at = following.planned_start_at - timedelta(seconds=DECIDE_S)
        begun = self._begun(plan, control)
        measured = await self._measured_bytes(plan, begun)
        if len(measured) < len(begun) and self._now() < decide_at:
            return
        spending = await self._spending(plan, begun, measured)
        reason = crossing(spending, following, self._coordinator.prices)
        if reason is None:
            return
        try:
            await self._coordinator.cancel(run_id, by=STOPPED_BY, reason=reason)
        except RunIsOver:
            self._done.add(run_id)

    def _begun(self, plan: Plan, control: Control | None) -> list[Burst]:
        """The bursts that began, before the run was cancelled if it was."""
        until_at = self._now()
        if control is not None and control.cancelled_at is not None:
            until_at = min(until_at, control.cancelled_at)
        return [burst for burst in plan.bursts if burst.planned_start_at <= until_at]

    async def _spending(
        self, plan: Plan, begun: Sequence[Burst], measured: Mapping[int, int]
    ) -> Spending:
        """What the bursts that began have sent, also those that nobody has measured yet."""
        now = self._now()
        payload_bytes = dict(measured)
        for burst in begun:
            if burst.index not in measured:
                sent_bytes = await self._sent_so_far(plan, burst)
                if sent_bytes:
                    payload_bytes[burst.index] = sent_bytes
        return Spending(
            plan=plan,
            basis=await self._basis(plan),
            payload_bytes=payload_bytes,
            over=frozenset(burst.index for burst in begun if burst.planned_end_at <= now),
        )

    async def _sent_so_far(self, plan: Plan, burst: Burst) -> int:
        """What was uploaded of a burst that is not measured; 0: nothing.

        One that another has followed is held open for somebody silent, and read once.
        """
        held = self._held.setdefault(plan.run_id, {})
        if burst.index not in held:
            later = plan.bursts[burst.index + 1 :]
            if not later or later[0].planned_start_at > self._now():
                return _sent_bytes(await self._coordinator.stored.progress(plan.run_id))
            most = readings_max_count(burst, plan.spec.traffic.interval_s)
            packed_ends = self._records.bursts.stream_seconds(plan.run_id, burst.index)
            ends = [c async for _, c in stream_columns(packed_ends, most) if c is not None]
            said = await asyncio.to_thread(progress, plan.run_id, burst, ends)
            held[burst.index] = _sent_bytes(said)
        return held[burst.index]

    async def _basis(self, plan: Plan) -> Basis:
        """As kept at the launch; an import rests on the fleet of now."""
        document = await self._records.private.read_document(plan.run_id, Document.PRICE)
        if document is not None:
            return Basis.model_validate_json(document)
        presences = await self._records.fleet.read_presences()
        return basis(plan.spec, live(presences, self._now()))

    async def _measured_bytes(self, plan: Plan, begun: Sequence[Burst]) -> dict[int, int]:
        """Payload of every burst that was measured."""
        over = [burst.index for burst in begun if burst.planned_end_at <= self._now()]
        return await read_payloads(self._records, plan.run_id, over)


def _sent_bytes(said: Progress) -> int:
    return round(sum(second.fleet_bits_per_second for second in said.seconds) / 8)
