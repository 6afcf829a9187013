"""Stored runs as a coordinator leaves them, without a fleet and without waiting."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import RunSummary, canonical
from broadside.coordinator.device.telemetry.telemetry_storage import dump_counter
from broadside.coordinator.runs.listing import outcome_of
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Control
from broadside.exchange.records import Document, Records, RunHeader
from tests.synthetic import Fleet, Plant, fleet

SMALL = Plant(pairs=4, bursts=2, burst_s=20, period_s=40, missing=1)


@cache
def measured(plant: Plant) -> tuple[Fleet, tuple[BurstMeasurement, ...], RunSummary]:
    """Return a synthetic fleet, its measured bursts and its summary."""
    made = fleet(plant, target_bits_per_second=20e9)
    bursts = tuple(measure_burst(made.plan.spec, part, made.now) for part in made.evidence)
    return made, bursts, summarise_run(made.plan, bursts, made.device_counter, made.now)


async def create_run(records: Records, plan: Plan, **header: Any) -> None:
    """Store the header, plan and control row of a run. ``header`` holds other header fields."""
    reported = RunHeader(
        run_id=plan.run_id,
        scenario=plan.spec.scenario,
        created_at=plan.created_at,
        **{"created_by": "tests", **header},
    )
    control = Control(run_id=plan.run_id, lease_until_at=plan.bursts[-1].planned_end_at)
    await records.create_run(reported, plan.model_dump_json().encode(), control)


async def store_documents(
    fabric: Fabric,
    run_id: str,
    made: Fleet,
    bursts: Sequence[BurstMeasurement],
    summary: RunSummary | None,
) -> None:
    """Store the documents of ended bursts, and of the run if it is judged."""
    documents: dict[tuple[Document, int | None], bytes] = {}
    for part in bursts:
        documents[Document.BURST, part.summary.index] = canonical(part.summary)
        documents[Document.SERIES, part.summary.index] = part.series.pack()
    if summary is not None:
        documents[Document.RUN, None] = canonical(summary)
        if made.device_counter is not None:
            documents[Document.COUNTER, None] = dump_counter(made.device_counter)
    for (document, index), content in documents.items():
        await fabric.records.private.save_document(run_id, document, content, index)


async def store_run(
    fabric: Fabric,
    run_id: str,
    *,
    plant: Plant = SMALL,
    created_at: datetime | None = None,
    labels: dict[str, str] | None = None,
    bursts_over: int | None = None,
    told: bool = True,
) -> str:
    """Store an ended run, or with ``bursts_over`` one with that many ended bursts.

    Without ``told`` the coordinator stopped before it updated the list of runs.
    """
    made, bursts, summary = measured(plant)
    evaluated = summary.model_copy(update={"run_id": run_id}) if bursts_over is None else None
    await store_documents(fabric, run_id, made, bursts[:bursts_over], evaluated)
    begun_at = created_at or made.plan.created_at
    plan = made.plan.model_copy(update={"run_id": run_id, "created_at": begun_at})
    await create_run(fabric.records, plan, labels=labels or {})
    if evaluated is not None and told:
        await fabric.records.private.save_outcome(run_id, outcome_of(evaluated, cancelled=False))
    return run_id
