"""Tests for the service that ends bursts when their rate is certain."""

from datetime import timedelta

import pytest

from broadside.coordinator.core.measure.records.evidence import BurstEvidence
from broadside.coordinator.core.plan.budget import basis
from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.core.summary import Verdict
from broadside.coordinator.runs import early_stops
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.early_stops import EarlyStops
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import BurstEnd, EndCause
from broadside.exchange.records import Document, Records
from tests.synthetic_runs import create_run
from tests.unit.coordinator.core.live.test_certainty_now import CLEAN, plan_for, with_claims
from tests.unit.coordinator.core.live.test_live_view import until
from tests.unit.coordinator.presences import Clock


class Bench:
    """A stored run at a given second of its burst."""

    def __init__(self, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fabric = fabric
        self.clock = Clock(CLEAN.plan.bursts[0].planned_start_at)
        self.coordinator = Coordinator(fabric, now=self.clock)
        self.stops = EarlyStops(self.coordinator)
        self.second = 0.0

        async def read_evidence(records: Records, plan: Plan, burst: Burst) -> BurstEvidence:
            return with_claims(until(CLEAN, self.second), CLEAN)

        monkeypatch.setattr(early_stops, "read_evidence", read_evidence)

    async def store(self, margin: float, **objective: object) -> Plan:
        plan = plan_for(CLEAN, margin, **objective)
        await create_run(self.fabric.records, plan, created_by="tests")
        return plan

    def at(self, second: float) -> None:
        """Set the time, at which data until 4 s before has been reported."""
        self.second = second - 4
        self.clock.at = CLEAN.plan.bursts[0].planned_start_at + timedelta(seconds=second)


@pytest.fixture
def bench(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(fabric, monkeypatch)


async def test_ends_a_certain_burst_once(bench: Bench) -> None:
    plan = await bench.store(0.05)
    price = basis(plan.spec, expect_usage(plan.spec, ()))
    await bench.fabric.records.private.save_document(
        plan.run_id, Document.PRICE, price.to_json().encode()
    )
    bench.at(50)
    assert await bench.stops.examine(plan.run_id) is None
    bench.at(68)
    certainty = await bench.stops.examine(plan.run_id)
    assert certainty is not None
    assert certainty.verdict is Verdict.PASS
    control = await bench.fabric.records.runs.read_control(plan.run_id)
    assert control is not None
    assert control.burst_end is not None
    assert control.burst_end.at - plan.bursts[0].planned_start_at == timedelta(seconds=72)
    assert control.burst_end.saved_usd is not None
    assert control.burst_end.saved_usd > 0
    burst = (await bench.coordinator.stored.read_plan(plan.run_id)).bursts[0]
    assert burst.duration_s == 72
    bench.at(70)
    assert await bench.stops.examine(plan.run_id) is None


async def test_does_not_end_other_bursts(bench: Bench) -> None:
    plan = await bench.store(0.05, stop=None)
    bench.at(70)
    assert await bench.stops.examine(plan.run_id) is None
    assert await bench.fabric.records.runs.read_ends(plan.run_id) == []


async def test_uncertain_and_cancelled_bursts_go_on(bench: Bench) -> None:
    plan = await bench.store(0.001)
    bench.at(100)
    assert await bench.stops.examine(plan.run_id) is None
    await bench.coordinator.cancel(plan.run_id, by="ann", reason="enough")
    assert await bench.stops.examine(plan.run_id) is None
    assert await bench.fabric.records.runs.read_ends(plan.run_id) == []


async def test_repeats_an_order_that_another_coordinator_did_not_finish(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await bench.store(0.05)
    start_at = plan.bursts[0].planned_start_at
    end = BurstEnd(
        burst_index=0,
        at=start_at + timedelta(seconds=80),
        cause=EndCause.CERTAIN,
        reason="certain",
        decided_at=start_at + timedelta(seconds=74),
    )
    runs = bench.fabric.records.runs

    async def fails(*_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as broken:
        broken.setattr(runs, "_change_control", fails)
        with pytest.raises(ConnectionError):
            await runs.end_burst(plan.run_id, end)
    bench.at(76)
    assert await bench.stops.examine(plan.run_id) is None
    control = await runs.read_control(plan.run_id)
    assert control is not None
    assert control.burst_end == end
