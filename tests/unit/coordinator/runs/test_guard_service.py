"""Tests for the service that reads the guards of a burst and stops the run."""

import asyncio
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broadside.coordinator.core.guards import (
    ARMED_BEFORE_S,
    DRY_RUN,
    READ_AFTER_S,
    STOP_WITHIN_S,
    STOPPED_BY,
    Guard,
    GuardLog,
    LiveValue,
    stopped_by_guard,
)
from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.core.plan.planner import Infeasible
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.guard_records import read_log
from broadside.coordinator.runs.guard_service import BurstGuard, Guards, probe_values
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Claim, Control, JobPhase, LiveProbes
from broadside.exchange.ports import ExchangeError
from tests.synthetic import Plant, fleet
from tests.synthetic_runs import create_run
from tests.unit.coordinator.presences import fleet as agents

BURST_S = 20
MADE = fleet(Plant(pairs=2, bursts=1, burst_s=BURST_S))
QUIET, BUSY = 0.3, 0.97


def now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


class PlantedReadings:
    """Newest values of one device, as a function of the time from the start of the burst.

    A value of None means that the device does not answer.
    """

    def __init__(self, value_at: Callable[[float], float | None], zero_s: float) -> None:
        self._value_at, self._zero_s = value_at, zero_s
        self.intervals_s = {"cpu_ratio": 0.4}
        self._last: list[LiveValue] = []
        self.polled: Collection[str] = ()

    async def poll_once(self, quantities: Collection[str]) -> None:
        self.polled = quantities

    async def poll_forever(self, quantities: Collection[str]) -> None:
        self.polled = quantities
        await asyncio.Event().wait()

    def values_of(self, guard: Guard) -> list[LiveValue]:
        at_s = time.time()
        value = self._value_at(at_s - self._zero_s)
        if value is not None:
            self._last = [LiveValue(at_s, value, guard.device or "fw")]
        return self._last


class Bench:
    """A stored run that starts in some seconds, with planted values."""

    def __init__(self, fabric: Fabric) -> None:
        self.coordinator = Coordinator(fabric, now=now)
        self.records = fabric.records
        self.plan = MADE.plan

    async def store(
        self, *guards: str, value_at: Callable[[float], float | None], **fields: Any
    ) -> Plan:
        start_at = now() + timedelta(seconds=10)
        spec = self.plan.spec.model_copy(
            update={"guards": tuple(map(Guard.model_validate, guards)), **fields}
        )
        burst = self.plan.bursts[0].model_copy(update={"planned_start_at": start_at})
        self.plan = self.plan.model_copy(update={"spec": spec, "bursts": (burst,)})
        self.plan = self.plan.model_copy(update={"created_at": now(), "seal_sha256": None}).sealed()
        await create_run(self.records, self.plan)
        planted: Any = PlantedReadings(value_at, start_at.timestamp())
        self.coordinator.live = planted
        return self.plan

    async def run(self) -> bool:
        return await BurstGuard(self.coordinator, self.plan, self.plan.bursts[0]).run()

    async def log(self) -> GuardLog:
        log = await read_log(self.records, self.plan.run_id, 0)
        assert log is not None
        return log

    async def control(self) -> Control:
        control = await self.records.runs.read_control(self.plan.run_id)
        assert control is not None
        return control

    def second_of(self, at: datetime | None) -> float:
        assert at is not None
        return (at - self.plan.bursts[0].planned_start_at).total_seconds()


@pytest.fixture
def bench(fabric: Fabric) -> Bench:
    return Bench(fabric)


async def test_a_breach_stops_the_run_and_the_recovery_is_recorded(bench: Bench) -> None:
    await bench.store("cpu_ratio > 80%", value_at=lambda second: BUSY if second >= 5 else QUIET)
    assert not await bench.run()
    control = await bench.control()
    assert stopped_by_guard(control)
    assert 5 <= bench.second_of(control.cancelled_at) < 5 + STOP_WITHIN_S
    assert control.cancel_reason == (
        "stopped by guard: cpu_ratio of fw was 97.0 %, above the limit 80.0 %"
    )
    log = await bench.log()
    assert log.stop is not None
    assert (log.stop.guard_index, log.stop.is_before_start) == (0, False)
    [record] = log.guards
    assert (record.last, record.worst) == (BUSY, BUSY)
    values = {row.second: row.values for row in log.seconds}
    assert values[4] == (QUIET,)
    assert values[5] == (BUSY,)
    assert max(values) >= 5 + READ_AFTER_S - 1


async def test_a_source_without_a_value_stops_the_run_before_the_first_byte(bench: Bench) -> None:
    await bench.store("cpu_ratio > 80%", value_at=lambda _: None)
    assert not await bench.run()
    control, log = await bench.control(), await bench.log()
    assert -ARMED_BEFORE_S <= bench.second_of(control.cancelled_at) < 0
    assert "cpu_ratio has no value, so the guard cannot be armed" in (control.cancel_reason or "")
    assert log.stop is not None
    assert log.stop.is_before_start
    assert log.guards[0].last is None


async def test_a_breach_before_the_start_stops_the_run_before_the_first_byte(bench: Bench) -> None:
    await bench.store("cpu_ratio > 80%", value_at=lambda second: BUSY if second > -4 else QUIET)
    assert not await bench.run()
    assert bench.second_of((await bench.control()).cancelled_at) < 0


async def test_a_source_that_becomes_silent_stops_the_run(bench: Bench) -> None:
    await bench.store("cpu_ratio > 80%", value_at=lambda second: None if second > 3 else QUIET)
    assert not await bench.run()
    control = await bench.control()
    assert "cpu_ratio had no new value for 5 s" in (control.cancel_reason or "")
    assert bench.second_of(control.cancelled_at) > 7


async def test_a_quiet_burst_is_recorded_and_not_stopped(bench: Bench) -> None:
    # A breach that is shorter than the time of the guard does not count.
    await bench.store(
        "cpu_ratio > 80% for 2s", value_at=lambda second: BUSY if 5 <= second < 6 else QUIET
    )
    assert await bench.run()
    assert (await bench.control()).cancelled_at is None
    log = await bench.log()
    assert log.stop is None
    assert log.guards[0].worst == BUSY
    assert {0, BURST_S - 1} <= {row.second for row in log.seconds}


async def test_a_dry_run_stops_before_the_first_byte(bench: Bench) -> None:
    await bench.store("cpu_ratio > 80%", value_at=lambda _: QUIET, dry_run=True)
    assert not await bench.run()
    control, log = await bench.control(), await bench.log()
    assert control.cancelled_by == STOPPED_BY
    assert -ARMED_BEFORE_S <= bench.second_of(control.cancelled_at) < 0
    assert log.stop is not None
    assert (log.stop.reason, log.stop.guard_index) == (DRY_RUN, None)


async def test_an_abort_by_a_user_is_no_stop_by_a_guard(bench: Bench) -> None:
    plan = await bench.store("cpu_ratio > 80%", value_at=lambda _: QUIET)
    burst = asyncio.create_task(bench.run())
    await asyncio.sleep(12)
    await bench.coordinator.cancel(plan.run_id, by="ann", reason="enough")
    assert not await burst
    assert (await bench.control()).cancelled_by == "ann"
    assert (await bench.log()).stop is None


async def test_the_stop_is_repeated_until_the_store_accepts_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.store("cpu_ratio > 80%", value_at=lambda second: BUSY if second >= 5 else QUIET)
    runs, calls = bench.records.runs, []
    cancel = runs.cancel_run

    async def fails_twice(*arguments: Any, **fields: Any) -> Control:
        calls.append(time.time())
        if len(calls) <= 2:
            raise ExchangeError("the table does not answer")
        return await cancel(*arguments, **fields)

    monkeypatch.setattr(runs, "cancel_run", fails_twice)
    assert not await bench.run()
    assert len(calls) >= 3
    assert stopped_by_guard(await bench.control())


async def test_the_first_record_of_a_burst_is_stored(bench: Bench) -> None:
    """Another coordinator that guarded the same burst must not replace the record."""
    await bench.store("cpu_ratio > 80%", value_at=lambda second: BUSY if second >= 5 else QUIET)
    first, second = await asyncio.gather(bench.run(), bench.run())
    assert (first, second) == (False, False)
    log = await bench.log()
    assert log.stop is not None
    await bench.run()
    assert await bench.log() == log


@pytest.mark.parametrize(
    ("value_at", "words"),
    [
        (lambda _: None, "there is no value, so the guard cannot be armed"),
        # The device answered some time ago, and is silent now.
        (lambda second: QUIET if second < 5 else None, "there is no value"),
        (lambda second: BUSY if second >= 5 else QUIET, "fw has 97.0 % before the launch"),
        (lambda _: QUIET, None),
    ],
)
async def test_a_launch_needs_new_values_within_the_limit(
    bench: Bench, value_at: Callable[[float], float | None], words: str | None
) -> None:
    guard = Guard.model_validate("cpu_ratio > 80%")
    planted: Any = PlantedReadings(value_at, time.time())
    launcher = bench.coordinator.launcher
    launcher.live, launcher.quantities = planted, {"rest fw": frozenset({Quantity.CPU})}
    planted.values_of(guard)
    await asyncio.sleep(15)
    for presence in agents(2, beat_at=now(), started_at=now()):
        await bench.records.fleet.beat(presence)
    spec = bench.plan.spec.model_copy(update={"guards": (guard,), "lead_s": 12})
    if words is None:
        await launcher.check(spec)
    else:
        with pytest.raises(Infeasible, match=words):
            await launcher.check(spec)
    assert planted.polled == {"cpu_ratio"}


async def test_the_service_guards_every_guarded_run_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await bench.store("cpu_ratio > 80%", value_at=lambda _: QUIET)
    spec = plan.spec.model_copy(update={"guards": ()})
    other = plan.model_copy(update={"run_id": "unguarded", "spec": spec})
    await create_run(bench.records, other)
    guards, guarded = Guards(bench.coordinator), []

    async def guard(which: Plan) -> None:
        guarded.append(which.run_id)

    monkeypatch.setattr(guards, "guard", guard)
    for _ in range(3):
        await guards.tick()
        await asyncio.sleep(1)
    assert guarded == [plan.run_id]


async def test_a_run_that_cannot_be_guarded_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.store("cpu_ratio > 80%", value_at=lambda _: QUIET)
    guards, tries = Guards(bench.coordinator), []

    async def guard(which: Plan) -> None:
        tries.append(which.run_id)
        if len(tries) == 1:
            raise RuntimeError

    monkeypatch.setattr(guards, "guard", guard)
    for _ in range(3):
        await guards.tick()
        await asyncio.sleep(1)
    assert len(tries) == 2


def test_values_of_probes_are_those_of_pairs_that_have_some() -> None:
    at = now()

    def claim(probes: LiveProbes | None) -> Claim:
        return Claim(
            job_id="r.0.0", agent_id="c", phase=JobPhase.RUNNING, claimed_at=at, probes=probes
        )

    claims = [
        None,
        claim(None),
        claim(LiveProbes(at=at, rtt_s=0.02, loss_ratio=None)),
        claim(LiveProbes(at=at, rtt_s=0.4, loss_ratio=0.5)),
    ]
    rtt = probe_values(Guard.model_validate("probe_rtt_s > 50ms"), claims)
    assert [value.value for value in rtt] == [0.02, 0.4]
    loss = probe_values(Guard.model_validate("probe_loss_ratio > 10%"), claims)
    assert [value.value for value in loss] == [0.5]
    assert loss[0].source == rtt[1].source
