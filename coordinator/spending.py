"""What runs cost while they go on, and the end of those that would cross their budget.

A run stops between two bursts: when the one before is over and the next would bring the run above
its budget, the bursts to come are cancelled, with the figures as the reason. Bursts that ran are
kept, and the verdict is over them. A soak of a few seconds' pause is decided shortly before the
next burst, on what was uploaded by then.
"""

import asyncio
import json
import logging
from datetime import timedelta
from typing import Final

import numpy as np

from coordinator.core.estimate import Estimate, estimate
from coordinator.core.meter import (
    STOPPED_BY,
    Basis,
    PriceMeter,
    Spending,
    basis,
    crossing,
    measure,
)
from coordinator.core.plan import Infeasible, Problem, live
from coordinator.core.plan import plan as make_plan
from coordinator.core.price import Prices
from coordinator.core.runs import Burst, Plan, RunSpec
from coordinator.core.series import BurstSeries
from coordinator.service import Coordinator, RunIsOver, UnknownRun
from coordinator.stored import read_series
from exchange.messages import Message
from exchange.ports import ExchangeError

log = logging.getLogger(__name__)

DECIDE_S: Final = 3.0  # s before a burst: time enough to reach agents that wait for the instant
_RUNS_LOOKED_AT: Final = 200  # newest runs among which those with a budget are looked for


class Appraisal(Message):
    """What launching a run now would mean."""

    feasible: bool  # on the fleet that is there, and within its budget
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    price: Estimate


class Budgets:
    """Meters of every run, and the guard of those that have a budget."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._records = coordinator.fabric.records
        self._now = coordinator.now
        self._bytes: dict[str, dict[int, int]] = {}  # payload of bursts that are over, by run
        self._done: set[str] = set()  # runs without a budget, or that are over

    async def read(self, run_id: str) -> PriceMeter:
        """What a run has cost so far. Raises :class:`~coordinator.service.UnknownRun`."""
        plan = await self._coordinator.read_plan(run_id)
        spending = await self._spending(plan)
        control = await self._records.read_control(run_id)
        return measure(spending, self._coordinator.prices, self._now(), control)

    async def appraise(self, spec: RunSpec, prices: Prices) -> Appraisal:
        """What launching a run now would mean; nothing is stored."""
        now = self._now()
        presences = await self._records.read_presences()
        price = estimate(spec, live(presences, now), prices)
        faults = [] if price.over_budget is None else [price.over_budget]
        warnings: tuple[str, ...] = ()
        try:
            warnings = make_plan(spec, presences, now, "estimate").warnings
        except Infeasible as error:
            faults = [*error.problems, *faults]
        return Appraisal(
            feasible=not faults, problems=tuple(faults), warnings=warnings, price=price
        )

    async def run_forever(self, tick_s: float) -> None:
        """Guard budgets until cancelled; an outage is waited out."""
        while True:
            try:
                await self.tick()
            except ExchangeError as error:
                log.warning("budgets not read: %s", error, extra={"action": "budget"})
            await asyncio.sleep(tick_s)

    async def tick(self) -> None:
        """One look at every run that has a budget and goes on."""
        for header in await self._coordinator.runs(limit=_RUNS_LOOKED_AT):
            if header.outcome is None and header.run_id not in self._done:
                try:
                    await self.guard(header.run_id)
                except UnknownRun:
                    continue  # pruned meanwhile
                except ExchangeError as error:
                    say = {"action": "budget", "run_id": header.run_id}
                    log.warning("budget of %s: %s", header.run_id, error, extra=say)
                except Exception:  # one that cannot be read here must not stop the others
                    say = {"action": "budget", "run_id": header.run_id}
                    log.exception("budget of %s", header.run_id, extra=say)

    async def guard(self, run_id: str) -> None:
        """Cancel what is to come of a run that would cross its budget in its next burst."""
        plan = await self._coordinator.read_plan(run_id)
        to_come = [burst for burst in plan.bursts if burst.planned_start_at > self._now()]
        control = await self._records.read_control(run_id)
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
        spending = await self._spending(plan)
        if before.index not in spending.over:
            if self._now() < decide_at:
                return
            spending = _as_if_over(spending, before)
        reason = crossing(spending, following, self._coordinator.prices)
        if reason is None:
            return
        try:
            await self._coordinator.cancel(run_id, by=STOPPED_BY, reason=reason)
        except RunIsOver:
            self._done.add(run_id)

    async def _spending(self, plan: Plan) -> Spending:
        over = await self._over_bytes(plan)
        begun = [burst for burst in plan.bursts if burst.planned_start_at <= self._now()]
        payload_bytes = dict(over)
        if begun and begun[-1].index not in over:
            progress = await self._coordinator.progress(plan.run_id)
            sent_bits = sum(second.fleet_bits_per_second for second in progress.seconds)
            payload_bytes[progress.burst_index] = round(sent_bits / 8)
        return Spending(
            plan=plan,
            basis=await self._basis(plan),
            payload_bytes=payload_bytes,
            over=frozenset(over),
        )

    async def _basis(self, plan: Plan) -> Basis:
        """As kept at the launch; a run of an older Broadside rests on the fleet of now."""
        document = await self._records.read_summary(plan.run_id, "price")
        if document is not None:
            return Basis.model_validate_json(document)
        presences = await self._records.read_presences()
        return basis(plan.spec, live(presences, self._now()))

    async def _over_bytes(self, plan: Plan) -> dict[int, int]:
        """Payload of every burst that was measured; each is added up once and kept."""
        run_id = plan.run_id
        if run_id not in self._bytes:
            document = await self._records.read_summary(run_id, "bytes")
            kept = {} if document is None else json.loads(document)
            self._bytes[run_id] = {int(index): count for index, count in kept.items()}
        known = self._bytes[run_id]
        now = self._now()
        fresh = [b for b in plan.bursts if b.index not in known and b.planned_end_at <= now]
        for burst in fresh:
            series = await read_series(self._records, run_id, burst.index)
            if series is not None:
                known[burst.index] = _payload_bytes(series)
        if any(burst.index in known for burst in fresh):
            document = json.dumps(known, sort_keys=True).encode()
            await self._records.save_summary(run_id, "bytes", document)
        return known


def _payload_bytes(series: BurstSeries) -> int:
    """What a burst sent, or what arrived where that is more: a sender may have died silent."""
    return round(
        sum(
            max(float(np.nansum(flow.sent_bytes)), float(np.nansum(flow.received_bytes)))
            for flow in series.flows
        )
    )


def _as_if_over(spending: Spending, burst: Burst) -> Spending:
    return Spending(
        plan=spending.plan,
        basis=spending.basis,
        payload_bytes=spending.payload_bytes,
        over=spending.over | {burst.index},
    )
