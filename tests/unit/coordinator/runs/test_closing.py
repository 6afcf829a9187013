"""Tests to judge a run when rows are late."""

from datetime import timedelta
from typing import Any

import pytest

from broadside.coordinator.core.run_spec import Burst, Plan, due_at
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views.burst_responses import recomputed
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Control
from broadside.exchange.records import PrivateRecords, RunHeader
from tests.seconds_as_columns import host_rows, track_rows
from tests.synthetic import Plant
from tests.synthetic import fleet as synthetic
from tests.unit.coordinator.presences import Clock

PLANT = Plant(pairs=3, bursts=2, burst_s=10, period_s=60, device_counter=False)


async def store_run(fabric: Fabric, plan: Plan) -> None:
    header = RunHeader(
        run_id=plan.run_id, scenario="t", created_at=plan.created_at, created_by="tests"
    )
    control = Control(run_id=plan.run_id, lease_until_at=plan.created_at)
    await fabric.records.create_run(header, plan.model_dump_json().encode(), control)


async def store_client(
    fabric: Fabric, plan: Plan, burst: Burst, pair: Any, *, reported: bool = True
) -> None:
    records, job = fabric.records, list(plan.jobs(burst))[pair.pair_index]
    await records.bursts.claim(job, pair.claim)
    tracks = [track_rows(track) for track in pair.client_tracks]
    await records.bursts.save_seconds(job, tracks, host_rows(pair.client_host))
    if reported:
        await records.bursts.save_report(pair.report)


async def store_server(fabric: Fabric, pair: Any) -> None:
    tracks = [track_rows(track) for track in pair.server_tracks]
    await fabric.records.bursts.save_test(pair.server_test, tracks, host_rows(pair.server_host))


async def test_verdict_includes_rows_delayed_by_an_outage(fabric: Fabric) -> None:
    """The record for a burst can be sent when the next burst is running."""
    made = synthetic(PLANT)
    plan = made.plan
    await store_run(fabric, plan)
    for evidence in made.evidence:
        for pair in evidence.pairs:
            await store_client(fabric, plan, evidence.burst, pair)
            if (evidence.burst.index, pair.pair_index) != (0, 1):
                await store_server(fabric, pair)
    clock = Clock(due_at(plan.bursts[0]) + timedelta(seconds=1))
    coordinator = Coordinator(fabric, now=clock)
    await coordinator.advance(plan.run_id)
    assert await coordinator.stored.summary(plan.run_id) is None
    await store_server(fabric, made.evidence[0].pairs[1])
    clock.at = due_at(plan.bursts[1]) + timedelta(seconds=1)
    await coordinator.advance(plan.run_id)
    summary = await coordinator.stored.summary(plan.run_id)
    assert summary is not None
    assert all(pair.joined_by is not None for burst in summary.bursts for pair in burst.pairs)
    again = await recomputed(coordinator, plan.run_id)
    assert again.differences == ()


async def test_verdict_includes_a_report_that_arrives_during_measurement(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a row is stored after all rows were read, it is not used as measured."""
    made = synthetic(PLANT)
    plan, (first, _) = made.plan, made.evidence
    await store_run(fabric, plan)
    late = first.pairs[0]
    for evidence in made.evidence:
        for pair in evidence.pairs:
            await store_client(fabric, plan, evidence.burst, pair, reported=pair is not late)
            if pair is not late:
                await store_server(fabric, pair)
    save = PrivateRecords.save_document

    async def save_late(records: PrivateRecords, run_id: str, *rest: Any) -> None:
        if late.report is not None:
            await fabric.records.bursts.save_report(late.report)
        await save(records, run_id, *rest)

    monkeypatch.setattr(PrivateRecords, "save_document", save_late)
    clock = Clock(due_at(plan.bursts[0]) + timedelta(seconds=1))
    coordinator = Coordinator(fabric, now=clock)
    await coordinator.advance(plan.run_id)
    clock.at = due_at(plan.bursts[1]) + timedelta(seconds=1)
    await coordinator.advance(plan.run_id)
    assert await coordinator.stored.summary(plan.run_id) is not None
    assert await coordinator.recompute(plan.run_id) == await coordinator.stored.summary(plan.run_id)
