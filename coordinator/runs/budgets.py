"""Costs while runs are in progress, and cancellation of runs that would exceed their budget.

If the next burst would exceed the budget, the remaining bursts are cancelled with the figures as
the reason. A burst in progress is stopped when its bytes have spent the budget, for example because
unpaced traffic is faster than expected. Completed bursts are not changed, and the verdict covers
them.

If a burst is not measured in time, the decision will need to be made shortly before the next burst.
It will then use the bytes that have been uploaded so far. A burst that has no uploaded data counts
with the expected bytes.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from broadside.coordinator.core.plan.budget import (
    STOPPED_BY,
    PriceBasis,
    PriceMeter,
    Spend,
    basis,
    measure,
    over_budget_reason,
    overspent_reason,
)
from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.core.plan.planner import live
from broadside.coordinator.core.plan.price import no_bill
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.request_errors import RunIsOver, UnknownRun
from broadside.coordinator.runs.run_cost import read_payloads
from broadside.coordinator.runs.run_states import read_uploaded
from broadside.exchange.background import KeyedTaskRunner
from broadside.exchange.messages import Control
from broadside.exchange.ports import ExchangeError
from broadside.exchange.records import Document

if TYPE_CHECKING:
    from broadside.coordinator.runs.coordinator import Coordinator

log = logging.getLogger(__name__)

# Seconds before a burst at which the decision is made. Waiting agents can still be reached.
DECIDE_S: Final = 3.0
# Longest time between looks at runs with a budget, in seconds.
LOOK_S: Final = 1.0


class Budgets:
    """Cost meters of all runs, and the guard of runs with a budget."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator
        self._records = coordinator.fabric.records
        self._now = coordinator.now
        # Payload bytes by run and burst, of bursts that were not measured in time.
        self._unmeasured: dict[str, dict[int, int]] = {}
        self._lanes = KeyedTaskRunner()
        # Runs that have no budget, or that are over.
        self._done: set[str] = set()

    async def read(self, run_id: str) -> PriceMeter:
        """Return the cost for a run so far.

        Raises:
            UnknownRun: If the id is unknown.
        """
        plan = await self._coordinator.stored.read_plan(run_id)
        control = await self._records.runs.read_control(run_id)
        begun = self._begun(plan, control)
        measured = await self._measured_bytes(plan, begun)
        spending = await self._spending(plan, begun, measured)
        meter = measure(spending, self._coordinator.prices, self._now(), control)
        if await self._records.private.read_document(run_id, Document.IMPORT) is None:
            return meter
        nothing = no_bill()
        return meter.model_copy(
            update={
                "charged": False,
                "not_charged_why": "an imported run costs nothing",
                "spent": nothing,
                "projected": nothing,
            }
        )

    async def run_forever(self, tick_s: float) -> None:
        """Check budgets until cancelled, and retry after outages.

        A tick longer than :data:`LOOK_S` is shortened, because it could miss the time of decision.

        Args:
            tick_s: Time between two checks, in seconds.
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
        """Check every open run with a budget concurrently."""
        open_runs = await self._records.private.list_open()
        guards = {
            run_id: partial(self._try, run_id) for run_id in open_runs if run_id not in self._done
        }
        await self._lanes.go(guards, LOOK_S)

    async def _try(self, run_id: str) -> None:
        extra = {"action": "budget", "run_id": run_id}
        try:
            await self.guard(run_id)
        except UnknownRun:
            # The run has been removed in the meantime.
            return
        except ExchangeError as error:
            log.warning("budget of %s: %s", run_id, error, extra=extra)
        # If a run cannot be read, we should still check other runs.
        except Exception:
            log.exception("budget of %s", run_id, extra=extra)

    async def guard(self, run_id: str) -> None:
        """Stop a run if it has spent its budget, or if the next burst would exceed it."""
        plan = await self._coordinator.stored.read_plan(run_id)
        now = self._now()
        to_come = [burst for burst in plan.bursts if burst.planned_end_at > now]
        control = await self._records.runs.read_control(run_id)
        cancelled = control is not None and control.cancelled_at is not None
        if plan.spec.budget_usd is None or cancelled or not to_come:
            self._done.add(run_id)
            return
        following = to_come[0]
        begun = self._begun(plan, control)
        if following in begun:
            spending = await self._spending(plan, begun, await self._measured_bytes(plan, begun))
            reason = overspent_reason(spending, following, self._coordinator.prices, now)
        elif not begun:
            # The launch checked the budget for the first burst.
            return
        else:
            reason = await self._reason_before(plan, begun, following)
        if reason is None:
            return
        try:
            await self._coordinator.cancel(run_id, by=STOPPED_BY, reason=reason)
        except RunIsOver:
            self._done.add(run_id)

    async def _reason_before(
        self, plan: Plan, begun: Sequence[Burst], following: Burst
    ) -> str | None:
        """Return the reason not to start a burst, or None if there is none or not yet."""
        decide_at = following.planned_start_at - timedelta(seconds=DECIDE_S)
        measured = await self._measured_bytes(plan, begun)
        if len(measured) < len(begun) and self._now() < decide_at:
            return None
        spending = await self._spending(plan, begun, measured)
        return over_budget_reason(spending, following, self._coordinator.prices)

    def _begun(self, plan: Plan, control: Control | None) -> list[Burst]:
        """Return the bursts that began, before the cancellation of a cancelled run."""
        until_at = self._now()
        if control is not None and control.cancelled_at is not None:
            until_at = min(until_at, control.cancelled_at)
        return [burst for burst in plan.bursts if burst.planned_start_at <= until_at]

    async def _spending(
        self, plan: Plan, begun: Sequence[Burst], measured: Mapping[int, int]
    ) -> Spend:
        """Return the bytes of all bursts that began, including those that are not measured yet."""
        now = self._now()
        payload_bytes = dict(measured)
        for burst in begun:
            if burst.index not in measured:
                sent_bytes = await self._sent_so_far(plan, burst)
                if sent_bytes:
                    payload_bytes[burst.index] = sent_bytes
        return Spend(
            plan=plan,
            basis=await self._basis(plan),
            payload_bytes=payload_bytes,
            over=frozenset(burst.index for burst in begun if burst.planned_end_at <= now),
        )

    async def _sent_so_far(self, plan: Plan, burst: Burst) -> int:
        """Return the payload bytes that have been uploaded for an unmeasured burst, or 0.

        If the next burst has begun, an end is silent, and the burst is read only once.
        """
        payloads = self._unmeasured.setdefault(plan.run_id, {})
        if burst.index not in payloads:
            later = plan.bursts[burst.index + 1 :]
            if not later or later[0].planned_start_at > self._now():
                return (await self._coordinator.stored.progress(plan.run_id)).sent_bytes
            uploaded = await read_uploaded(self._records, plan, burst)
            payloads[burst.index] = uploaded.sent_bytes
        return payloads[burst.index]

    async def _basis(self, plan: Plan) -> PriceBasis:
        """Return the stored price basis. For an import, compute it from the present fleet."""
        document = await self._records.private.read_document(plan.run_id, Document.PRICE)
        if document is not None:
            return PriceBasis.model_validate_json(document)
        presences = await self._records.fleet.read_presences()
        return basis(plan.spec, expect_usage(plan.spec, live(presences, self._now())))

    async def _measured_bytes(self, plan: Plan, begun: Sequence[Burst]) -> dict[int, int]:
        """Return the payload bytes of every measured burst."""
        over = [burst.index for burst in begun if burst.planned_end_at <= self._now()]
        return await read_payloads(self._records, plan.run_id, over)
