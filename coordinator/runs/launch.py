"""Launch of runs, from the request to the jobs on the queue.

A launch plans the run on the live agents, checks its budget, reserves its endpoints, stores plan
and control row, lists the run, starts to renew its lease and queues its jobs.

A request can have an idempotency key, which selects the run id. The key row is created before the
run is planned. When several requests use the same key, only one can select the id, and the others
will read it. The row contains a digest of the request, so that the same key with a different
request can be rejected. If a launch is rejected, the key will be released. If a launch is
interrupted, the row stays, and a retry will use the same id.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.guards import (
    Guard,
    blind_after_s,
    interval_of,
    slow_guard_warnings,
    worst_of,
)
from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.core.plan.budget import basis
from broadside.coordinator.core.plan.cost_estimate import LaunchEstimate, OverBudget, estimate
from broadside.coordinator.core.plan.early_stop_estimate import with_early_stop
from broadside.coordinator.core.plan.expected_usage import ExpectedUsage, expect_usage
from broadside.coordinator.core.plan.nightly_stop import NightlyStop
from broadside.coordinator.core.plan.planner import (
    Infeasible,
    PlanContext,
    Problem,
    live,
    without_ports,
)
from broadside.coordinator.core.plan.planner import plan as make_plan
from broadside.coordinator.core.plan.price import Prices
from broadside.coordinator.core.run_spec import CounterRequirement, Plan, RunSpec
from broadside.coordinator.device.telemetry.live_readings import LiveReadings
from broadside.coordinator.request_errors import KeyReused, LaunchInProgress, UnknownRun
from broadside.coordinator.runs.device_history import read_history
from broadside.coordinator.runs.dispatch import Dispatch
from broadside.coordinator.runs.leases import Leases, first_lease_until
from broadside.coordinator.runs.reservations import EndpointTaken, Reservations
from broadside.coordinator.runs.run_documents import dump_fleet
from broadside.coordinator.runs.run_ids import new_run_id
from broadside.exchange.messages import Control, Message, Presence, RunId, UtcDatetime
from broadside.exchange.pacing import control_copies_count
from broadside.exchange.ports import EntityExists, ExchangeError, Table
from broadside.exchange.records import Document, Records, RunHeader
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import LAUNCHES

log = logging.getLogger(__name__)

KEY_MAX_CHARS: Final = 255
# Time to wait for a run that another request is storing.
_STORED_WITHIN_S: Final = 10.0
_STORED_CHECK_S: Final = 0.1
# An attempt that stored no run in this time has failed.
_FAILED_AFTER: Final = timedelta(seconds=60)
# Time to wait for a server to report that the last test is over.
_IDLE_WITHIN_S: Final = 4.0
_IDLE_CHECK_S: Final = 0.3
# Number of planning attempts when concurrent launches take the same ports.
_ATTEMPTS_COUNT: Final = 12
# Factor of the random delay before each further attempt, so that launches do not collide again.
_ATTEMPT_PAUSE_S: Final = 0.05


class LaunchRecord(Message):
    """Stored decision for one key."""

    run_id: RunId
    request_sha256: str
    decided_at: UtcDatetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchKey:
    """Idempotency key of a request.

    Attributes:
        key: The key in the request.
        caller: Owner of the key. Keys of different callers are independent.
        request: Body of the request, which must be equal for an equal key.
    """

    key: str
    caller: str
    request: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposal:
    """Plan of a run that is not stored yet, with its inputs for the price.

    Attributes:
        plan: The plan.
        fleet: Live agents that it was made for.
        usage: Expected usage.
    """

    plan: Plan
    fleet: Sequence[Presence]
    usage: ExpectedUsage


@dataclass(slots=True, kw_only=True)
class Launcher:
    """Launches the runs of one coordinator.

    Attributes:
        private: Private table, with the idempotency keys.
        records: Records to use for access to the tables.
        read_plan: Returns the plan of a stored run, or raises ``UnknownRun``.
        cache_plan: Adds the plan of a new run to the cache of plans.
        reservations: Endpoints of open runs.
        dispatch: Sends the jobs.
        leases: Renews the leases.
        now: Returns the current time.
        prices: Price list for the budget.
        device_counter: Name of the configured device counter, or None.
        quantities: Telemetry quantities of each configured source.
        live: Newest telemetry, for guards.
        nightly_stop: When the VMs of the agents stop, or None.
    """

    private: Table
    records: Records
    read_plan: Callable[[str], Awaitable[Plan]]
    cache_plan: Callable[[Plan], None]
    reservations: Reservations
    dispatch: Dispatch
    leases: Leases
    now: Callable[[], datetime]
    prices: Prices
    device_counter: CounterRequirement | None
    quantities: Mapping[str, frozenset[Quantity]]
    live: LiveReadings
    nightly_stop: NightlyStop | None = None
    # Released runs with jobs that are not queued yet.
    _released: "asyncio.Queue[Plan]" = field(default_factory=asyncio.Queue)

    # Launch ------------------------------------------------------------------------------------

    async def launch(self, spec: RunSpec, *, by: str, run_id: str | None = None) -> Plan:
        """Plan a run on the live fleet, store it and queue the jobs.

        Args:
            spec: The run to launch.
            by: User who launches it.
            run_id: Run id. A caller that retries passes its own id, so that a retry cannot launch
                twice. None creates a new id.

        Returns:
            The stored plan.

        Raises:
            Infeasible: The fleet cannot run it. Nothing is stored.
            OverBudget: The estimated cost is above the budget. Nothing is stored.
            EntityExists: A run with this id exists, and its plan stays. Its documents of price and
                fleet are those of this launch.
        """
        plan = await self.prepare(spec, by=by, run_id=run_id, listed=True)
        self.cache_plan(plan)
        self.leases.hold(plan)
        log.info("run launched", extra={"action": "launch", "run_id": plan.run_id})
        await self.dispatch.queue_bursts(plan)
        return plan

    async def launch_once(self, spec: RunSpec, *, by: str, key: LaunchKey) -> str:
        """Launch a run, unless an earlier request with this key did.

        Args:
            spec: The run to launch.
            by: User who launches it.
            key: The idempotency key.

        Returns:
            Run id, launched now or earlier.

        Raises:
            KeyReused: The key was used with another request.
            LaunchInProgress: Another request with this key is storing the run.
            Infeasible, OverBudget: As in :meth:`launch`.
        """
        shelf, now = _keys(self.private), self.now()
        row = hashlib.sha256(f"{key.caller}\0{key.key}".encode()).hexdigest()
        record = LaunchRecord(
            run_id=new_run_id(spec.scenario, now),
            request_sha256=hashlib.sha256(key.request).hexdigest(),
            decided_at=now,
        )
        decided = record
        try:
            await shelf.create(row, record)
        except EntityExists:
            decided = await shelf.read(row) or record
            if decided.request_sha256 != record.request_sha256:
                raise KeyReused(
                    f"Idempotency-Key: it launched {decided.run_id} with another request; "
                    "use a new key for a new run"
                ) from None
            if await self._is_stored(decided.run_id):
                return decided.run_id
        try:
            await self.launch(spec, by=by, run_id=decided.run_id)
        except Infeasible:
            await shelf.delete(row)
            raise
        except EntityExists:
            await self._wait_until_stored(shelf, row, decided)
        # The key might have been released by another request that was rejected.
        with contextlib.suppress(EntityExists):
            await shelf.create(row, decided)
        return decided.run_id

    async def _wait_until_stored(
        self, shelf: Collection[LaunchRecord], row: str, decided: LaunchRecord
    ) -> None:
        """Wait for the run that another request is storing under the same id.

        If that request failed before it stored the whole run, this id cannot be used again. The key
        will then get a new id for the next attempt.
        """
        now = self.now()
        for _ in range(round(_STORED_WITHIN_S / _STORED_CHECK_S)):
            if await self._is_stored(decided.run_id):
                return
            await asyncio.sleep(_STORED_CHECK_S)
        if now - decided.decided_at > _FAILED_AFTER:
            scenario = decided.run_id.split("-", 2)[-1].rpartition("-")[0]
            update = {"run_id": new_run_id(scenario, now), "decided_at": now}
            fresh = decided.model_copy(update=update)
            await shelf.change(row, lambda stored: fresh if stored == decided else stored)
        raise LaunchInProgress(
            f"Idempotency-Key: another request with this key is storing {decided.run_id}; retry "
            "in a minute"
        )

    async def _is_stored(self, run_id: str) -> bool:
        try:
            await self.read_plan(run_id)
        except UnknownRun:
            return False
        return True

    # Plan --------------------------------------------------------------------------------------

    async def prepare(
        self, spec: RunSpec, *, by: str, run_id: str | None = None, listed: bool = False
    ) -> Plan:
        """Plan and store a run, but do not queue the jobs.

        Args:
            spec: The run to prepare.
            by: User who launches it.
            run_id: Run id. None creates a new id.
            listed: True lists the run, so that ticks process it. False hides it until
                :meth:`release`.

        Returns:
            The sealed plan, as it is stored.

        Raises:
            Infeasible, OverBudget, EntityExists: As in :meth:`launch`.
        """
        proposal = await self._reserve(spec, run_id)
        plan = proposal.plan
        header = RunHeader(
            run_id=plan.run_id,
            scenario=spec.scenario,
            created_at=plan.created_at,
            created_by=by,
            labels=spec.labels,
            device=spec.device,
            traffic_from_at=plan.bursts[0].planned_start_at,
            bursts_count=len(plan.bursts),
        )
        control = Control(
            run_id=plan.run_id,
            lease_until_at=first_lease_until(plan),
            copies_count=control_copies_count(len(plan.pairs)),
        )
        private = self.records.private
        price_basis = basis(spec, proposal.usage).to_json().encode()
        await private.save_document(plan.run_id, Document.PRICE, price_basis)
        await private.save_document(plan.run_id, Document.FLEET, dump_fleet(proposal.fleet))
        await self.records.create_run(header, plan.document, control, listed=listed)
        return plan

    async def _reserve(self, spec: RunSpec, run_id: str | None) -> _Proposal:
        """Plan a run and reserve the endpoints, so that no other open run will use them."""
        for attempt in range(_ATTEMPTS_COUNT):
            await asyncio.sleep(attempt * _ATTEMPT_PAUSE_S * random.random())  # noqa: S311 - jitter
            proposal = await self._plan_when_idle(spec, run_id)
            with contextlib.suppress(EndpointTaken):
                await self.reservations.take(proposal.plan)
                return proposal
        problem = Problem(
            field="pairs_count",
            message=f"concurrent launches reserved the same ports in {_ATTEMPTS_COUNT} attempts",
            fix="launch again in a few seconds",
        )
        raise Infeasible([problem])

    async def _plan_when_idle(self, spec: RunSpec, run_id: str | None) -> _Proposal:
        """Plan a run, and wait a few seconds for servers that still report their last test."""
        until_s = time.monotonic() + _IDLE_WITHIN_S
        while True:
            try:
                return await self._plan(spec, run_id)
            except Infeasible:
                fleet = live(await self.records.fleet.read_presences(), self.now())
                if time.monotonic() > until_s or not without_ports(spec, fleet):
                    raise
            await asyncio.sleep(_IDLE_CHECK_S)

    async def _plan(self, spec: RunSpec, run_id: str | None) -> _Proposal:
        """Plan a run within its budget. Raises Infeasible or OverBudget."""
        proposal = await self._draft(spec, run_id)
        over_budget = estimate(spec, proposal.usage, self.prices).over_budget
        if over_budget is not None:
            raise OverBudget([over_budget])
        return proposal

    async def _draft(self, spec: RunSpec, run_id: str | None) -> _Proposal:
        now = self.now()
        presences = await self.records.fleet.read_presences()
        plan = make_plan(
            spec,
            presences,
            now,
            run_id or new_run_id(spec.scenario, now),
            PlanContext(
                reserved=await self.reservations.in_force(but_of=run_id),
                device_counter=self.device_counter,
                telemetry=self.quantities,
                nightly_stop=self.nightly_stop,
            ),
        )
        if spec.guards:
            plan = await self._with_guards(plan)
        fleet = live(presences, now)
        return _Proposal(plan=plan, fleet=fleet, usage=expect_usage(spec, fleet, now))

    async def _with_guards(self, plan: Plan) -> Plan:
        """Return the plan with warnings about slow guards.

        Raises:
            Infeasible: A guard has no value, or its limit is already breached.
        """
        guards = plan.spec.guards
        await self.live.poll_once({guard.quantity for guard in guards})
        problems = [
            problem
            for guard in guards
            if not guard.is_probe and (problem := self._guard_problem(guard)) is not None
        ]
        if problems:
            raise Infeasible(problems)
        slow = slow_guard_warnings(guards, self.live.intervals_s)
        warnings = (*plan.warnings, *slow)
        return plan.model_copy(update={"warnings": warnings, "seal_sha256": None}).sealed()

    def _guard_problem(self, guard: Guard) -> Problem | None:
        # Polled sources have just been read, so a source with an old value does not respond.
        oldest_s = self.now().timestamp() - blind_after_s(interval_of(guard, self.live.intervals_s))
        values = [value for value in self.live.values_of(guard) if value.at_s >= oldest_s]
        if not values:
            return Problem(
                field="guards",
                message=f"{guard}: there is no value, so the guard cannot be armed",
                fix="check the source with `broadside doctor`, or remove the guard",
            )
        worst = worst_of(guard, values)
        if not guard.broken_by(worst.value):
            return None
        return Problem(
            field="guards",
            message=f"{guard}: {worst.source} has {guard.format(worst.value)} before the launch",
            fix="wait until the value is within the limit, or change the limit",
        )

    async def check(self, spec: RunSpec) -> None:
        """Raise the error that a launch of this run would raise now. Nothing is stored."""
        await self._plan(spec, "check")

    async def draft(self, spec: RunSpec) -> Plan:
        """Return the plan for the live fleet, with no check of the budget. Raises Infeasible."""
        return (await self._draft(spec, "estimate")).plan

    async def appraise(self, spec: RunSpec, prices: Prices) -> LaunchEstimate:
        """Return the problems, warnings and cost that a launch now would have. Nothing is stored.

        Args:
            spec: The run.
            prices: The price list to use.
        """
        now = self.now()
        fleet = live(await self.records.fleet.read_presences(), now)
        usage = expect_usage(spec, fleet, now)
        price = estimate(spec, usage, prices)
        if spec.objective.stop is not None:
            history = await read_history(self.records, self.read_plan, spec)
            price = await asyncio.to_thread(with_early_stop, price, spec, usage, prices, history)
        problems = [] if price.over_budget is None else [price.over_budget]
        warnings: tuple[str, ...] = ()
        try:
            warnings = (await self.draft(spec)).warnings
        except Infeasible as error:
            problems = [*error.problems, *problems]
        return LaunchEstimate(
            feasible=not problems, problems=tuple(problems), warnings=warnings, price=price
        )

    # Prepared runs -----------------------------------------------------------------------------

    async def release(self, run_id: str) -> None:
        """List a prepared run, so that the jobs will be queued soon. A second call has no effect.

        Raises:
            UnknownRun: If the id is unknown.
        """
        stored = await self.records.read_run(run_id)
        if stored is None:
            raise UnknownRun(run_id)
        plan = await self.read_plan(run_id)
        await self.records.private.show_run(stored[0])
        self.leases.hold(plan)
        log.info("run launched", extra={"action": "launch", "run_id": plan.run_id})
        self._released.put_nowait(plan)

    async def drop(self, run_id: str) -> None:
        """Delete a prepared run that was never released."""
        await self.records.drop_run(run_id)
        await self.reservations.release(run_id)

    async def queue_released(self) -> None:
        """Queue jobs for released runs at once, independent of the ticks, until cancelled.

        If this fails, a later tick will queue them.
        """
        while True:
            plan = await self._released.get()
            try:
                await self.dispatch.queue_bursts(plan)
            except ExchangeError as error:
                extra = {"action": "queue", "run_id": plan.run_id}
                log.warning("run %s is not queued yet: %s", plan.run_id, error, extra=extra)


async def delete_old_keys(table: Table, before_at: datetime) -> None:
    """Delete the idempotency keys that were decided before ``before_at``.

    Args:
        table: Table with the keys.
        before_at: Keys from this time on are not deleted.
    """
    shelf = _keys(table)
    for row in [row async for row, record in shelf.scan() if record.decided_at < before_at]:
        await shelf.delete(row)


def _keys(table: Table) -> Collection[LaunchRecord]:
    return Collection(table, LAUNCHES, LaunchRecord)
