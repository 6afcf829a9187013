"""Ends running bursts as soon as their rate is certain (``objective.stop``)."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from pydantic import ValidationError

from broadside.coordinator.core.live.certainty_now import (
    Certainty,
    find_certainty,
    is_due,
    stop_at,
)
from broadside.coordinator.core.plan.budget import PriceBasis
from broadside.coordinator.core.plan.cost_estimate import required_units
from broadside.coordinator.core.plan.expected_usage import ip_bytes_of
from broadside.coordinator.core.plan.price import Usage, compute_bill, exactly
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.request_errors import UnknownRun
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.exchange.background import KeyedTaskRunner
from broadside.exchange.messages import BurstEnd, EndCause
from broadside.exchange.ports import ExchangeError
from broadside.exchange.records import Document

# Time between two looks at a burst.
LOOK_S: Final = 1.0
# Largest share of the time that reading and measuring a burst may use.
SHARE_RATIO: Final = 0.2

log = logging.getLogger(__name__)


class EarlyStops:
    """Service that looks at all running bursts that may be ended early.

    Any number of coordinators can do this at the same time, because only the first order for a
    burst is stored.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._records = coordinator.fabric.records
        self._now: Callable[[], datetime] = coordinator.now
        self._lanes = KeyedTaskRunner()
        # Monotonic time of the next look at a run.
        self._due_s: dict[str, float] = {}
        # Runs whose bursts never end early.
        self._done: set[str] = set()
        # Orders that are in the control row.
        self._pushed: set[tuple[str, int]] = set()

    async def run_forever(self, tick_s: float) -> None:
        """Look at all runs until cancelled.

        Args:
            tick_s: Time between two looks, in seconds. At most :data:`LOOK_S` is used.
        """
        try:
            while True:
                await self.look()
                await asyncio.sleep(min(tick_s, LOOK_S))
        finally:
            await self._lanes.end()

    async def look(self) -> None:
        """Look at each open run once, at the same time."""
        open_runs = set(await self._records.private.list_open())
        self._done &= open_runs
        self._due_s = {run: due_s for run, due_s in self._due_s.items() if run in open_runs}
        self._pushed = {key for key in self._pushed if key[0] in open_runs}
        due = {
            run_id: partial(self._try, run_id)
            for run_id in open_runs - self._done
            if time.monotonic() >= self._due_s.get(run_id, 0.0)
        }
        await self._lanes.go(due, LOOK_S)

    async def _try(self, run_id: str) -> None:
        extra = {"action": "early_stop", "run_id": run_id}
        began_s = time.monotonic()
        try:
            await self.examine(run_id)
        except UnknownRun:
            # The run has been removed in the meantime.
            return
        except ExchangeError as error:
            log.warning("early stop of %s: %s", run_id, error, extra=extra)
        # If a run cannot be read, we should still look at the other runs.
        except Exception:
            log.exception("early stop of %s", run_id, extra=extra)
        now_s = time.monotonic()
        # A thousand pairs take seconds to read.
        self._due_s[run_id] = now_s + (now_s - began_s) * (1 - SHARE_RATIO) / SHARE_RATIO

    async def examine(self, run_id: str) -> Certainty | None:
        """End the running burst of a run if its rate is certain.

        Returns:
            The decision, or None if the burst continues.
        """
        plan = await self._coordinator.stored.read_plan(run_id)
        if plan.spec.objective.stop is None:
            self._done.add(run_id)
            return None
        burst = next((burst for burst in plan.bursts if burst.planned_end_at > self._now()), None)
        if burst is None:
            return None
        if burst.end is not None and (run_id, burst.index) not in self._pushed:
            # The coordinator that stored the order may not have changed the control row.
            await self._records.runs.end_burst(run_id, burst.end)
            self._pushed.add((run_id, burst.index))
        if not is_due(plan, burst, self._now()):
            return None
        control = await self._records.runs.read_control(run_id)
        if control is None or control.cancelled_at is not None:
            return None
        evidence = await read_evidence(self._records, plan, burst)
        certainty = await asyncio.to_thread(find_certainty, plan, evidence, self._now())
        # Reading and measuring took some time.
        if certainty is None or not is_due(plan, burst, self._now()):
            return None
        at = stop_at(burst, self._now())
        end = BurstEnd(
            burst_index=burst.index,
            at=at,
            cause=EndCause.CERTAIN,
            reason=certainty.reason,
            decided_at=self._now(),
            saved_usd=await self._saved_usd(plan, burst, at, certainty.payload_bits_per_second),
        )
        end = await self._records.runs.end_burst(run_id, end)
        extra = {"action": "end_burst", "run_id": run_id}
        log.info("burst ended early: %s", end.reason, extra=extra)
        self._pushed.add((run_id, burst.index))
        return certainty

    async def _saved_usd(
        self, plan: Plan, burst: Burst, at: datetime, payload_bits_per_second: float
    ) -> float | None:
        """Return the cost of the rest of a burst at real scale and today's prices, or None.

        The hours of machines and firewall are included only for the last burst, because the start
        times of later bursts stay the same.
        """
        document = await self._records.private.read_document(plan.run_id, Document.PRICE)
        try:
            machines = PriceBasis.model_validate_json(document or b"").machines
        except ValidationError:
            return None
        rest_s = (burst.planned_end_at - at).total_seconds()
        rate = ip_bytes_of(plan.spec, payload_bits_per_second)
        usage = Usage(
            ip_bytes=exactly(rate * rest_s / 8),
            hours=rest_s / 3600 if burst is plan.bursts[-1] else 0.0,
            units_count=required_units(plan.spec, rate, self._coordinator.prices),
            machines={size or None: count for size, count in machines.items()},
            sku=plan.spec.sku,
        )
        return compute_bill(usage, self._coordinator.prices).total_usd
