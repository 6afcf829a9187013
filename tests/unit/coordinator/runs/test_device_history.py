"""Tests for the history of a device that estimates use."""

import pytest

from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.device_history import _between, read_history
from broadside.exchange.fabric import Fabric
from tests.synthetic import Plant
from tests.synthetic_runs import measured, store_run

PLANT = Plant(pairs=3, bursts=2, burst_s=40, noise=0.02)


async def test_history_has_bursts_of_the_same_device_and_traffic(fabric: Fabric) -> None:
    made, bursts, _ = measured(PLANT)
    read_plan = Coordinator(fabric).stored.read_plan
    spec = made.plan.spec
    assert await read_history(fabric.records, read_plan, spec) is None
    await store_run(fabric, made.plan.run_id, plant=PLANT)
    history = await read_history(fabric.records, read_plan, spec)
    assert history is not None
    assert history.bursts_count == 2
    rates = [burst.summary.fleet_received_bits_per_second or 0.0 for burst in bursts]
    assert history.payload_bits_per_second == pytest.approx(sum(rates) / 2, rel=0.01)
    assert 0 < history.scatter_ratio < 0.05
    assert 0 <= history.correlation <= 0.95
    for other in (
        spec.model_copy(update={"device": {"sku": "premium"}}),
        spec.model_copy(update={"pairs_count": 4}),
    ):
        assert await read_history(fabric.records, read_plan, other) is None


async def test_scatter_between_bursts_needs_three_and_ignores_slow_changes(fabric: Fabric) -> None:
    made, _, _ = measured(PLANT)
    read_plan = Coordinator(fabric).stored.read_plan
    spec = made.plan.spec
    await store_run(fabric, made.plan.run_id, plant=PLANT)
    history = await read_history(fabric.records, read_plan, spec)
    assert history is not None
    assert history.between_ratio is None
    await store_run(fabric, "20260107-another", plant=PLANT)
    history = await read_history(fabric.records, read_plan, spec)
    assert history is not None
    assert history.bursts_count == 4
    assert history.between_ratio is not None
    assert 0 < history.between_ratio < 0.02
    drifting = [100.0 + 0.1 * index for index in range(50)]
    assert (_between(drifting) or 0.0) < 0.001
    alternating = _between([99.0, 101.0] * 10)
    assert alternating == pytest.approx(0.0141, abs=0.0002)
