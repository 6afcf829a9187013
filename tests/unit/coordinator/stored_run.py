"""Create a run to use in tests."""

from broadside.exchange.fabric import Fabric
from tests.synthetic import Plant
from tests.synthetic_runs import create_run, store_documents
from tests.unit.coordinator.views.charts.views import FAULTY, ended


async def store_run(
    fabric: Fabric, plant: Plant = FAULTY, *, bursts_over: int | None = None
) -> str:
    """Store a run and return the id.

    Args:
        fabric: The fabric to use.
        plant: The faults to add to the run.
        bursts_over: The number of completed bursts. If None, the run has ended
            and has a verdict.
    """
    run, measured, summary = ended(plant)
    run_id = run.plan.run_id
    evaluated = summary if bursts_over is None else None
    await store_documents(fabric, run_id, run, measured[:bursts_over], evaluated)
    for evidence in run.evidence[:bursts_over]:
        for pair in evidence.pairs:
            if pair.report is not None:
                await fabric.records.bursts.save_report(pair.report)
            if pair.server_test is not None:
                await fabric.records.bursts.save_test(pair.server_test, (), ())
    await create_run(fabric.records, run.plan, created_by="me")
    return run_id
