"""Synthetic run in an embedded table."""

from broadside.exchange.fabric import Fabric
from tests.synthetic import Plant
from tests.synthetic_runs import create_run, store_documents
from tests.unit.coordinator.views.charts.views import FAULTY, ended


async def store_run(
    fabric: Fabric, plant: Plant = FAULTY, *, bursts_over: int | None = None
) -> str:
    """Store a run and return the id.

    Args:
        fabric: The store.
        plant: The synthetic run.
        bursts_over: Number of ended bursts, without a verdict. None stores an ended run.
    """
    made, measured, summary = ended(plant)
    run_id = made.plan.run_id
    evaluated = summary if bursts_over is None else None
    await store_documents(fabric, run_id, made, measured[:bursts_over], evaluated)
    for evidence in made.evidence[:bursts_over]:
        for pair in evidence.pairs:
            if pair.report is not None:
                await fabric.records.bursts.save_report(pair.report)
            if pair.server_test is not None:
                await fabric.records.bursts.save_test(pair.server_test, (), ())
    await create_run(fabric.records, made.plan, created_by="me")
    return run_id
