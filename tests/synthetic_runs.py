"""Runs in a fabric's table as a coordinator leaves them, without a fleet or a second of waiting."""

from datetime import datetime, timedelta
from functools import cache

from coordinator.core.judge.summarise import summarise_run
from coordinator.core.measure.measure_burst import measure_burst
from coordinator.core.measure.series import MeasuredBurst
from coordinator.core.summary import RunSummary, canonical
from coordinator.device.ledgers.kept import dump_ledger
from coordinator.runs.listing import outcome_of
from exchange.fabric import Fabric
from exchange.messages import Control
from exchange.records import Document, RunHeader
from tests.synthetic import Fleet, Plant, fleet

SMALL = Plant(pairs=4, bursts=2, burst_s=20, period_s=40, missing=1)


@cache
def measured(plant: Plant) -> tuple[Fleet, tuple[MeasuredBurst, ...], RunSummary]:
    """A synthetic fleet, what its bursts showed, and the verdict."""
    made = fleet(plant, target_bits_per_second=20e9)
    bursts = tuple(measure_burst(made.plan.spec, part, made.now) for part in made.evidence)
    return made, bursts, summarise_run(made.plan, bursts, made.ledger, made.now)


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
    """A run that is over, or (``bursts_over``) has so many bursts behind it.

    Without ``told`` its coordinator died before the list of runs knew.
    """
    made, bursts, summary = measured(plant)
    created_at = created_at or made.plan.created_at
    over = bursts[:bursts_over]
    plan = made.plan.model_copy(update={"run_id": run_id, "created_at": created_at})
    ended = bursts_over is None
    documents: dict[tuple[Document, int | None], bytes] = {}
    for part in over:
        documents[Document.BURST, part.summary.index] = canonical(part.summary)
        documents[Document.SERIES, part.summary.index] = part.series.pack()
    if ended:
        summary = summary.model_copy(update={"run_id": run_id})
        documents[Document.RUN, None] = canonical(summary)
        if made.ledger is not None:
            documents[Document.LEDGER, None] = dump_ledger(made.ledger)
    for (document, index), content in documents.items():
        await fabric.records.private.save_document(run_id, document, content, index)
    header = RunHeader(
        run_id=run_id,
        scenario=plan.spec.scenario,
        created_at=created_at,
        created_by="tests",
        labels=labels or {},
    )
    control = Control(run_id=run_id, lease_until_at=created_at + timedelta(seconds=60))
    await fabric.records.create_run(header, plan.model_dump_json().encode(), control)
    if ended and told:
        await fabric.records.private.save_outcome(run_id, outcome_of(summary, cancelled=False))
    return run_id
