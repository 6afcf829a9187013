"""A synthetic run in an embedded table, as a coordinator leaves it."""

from coordinator.core.summary import canonical
from coordinator.device.ledgers.kept import dump_ledger
from exchange.fabric import Fabric
from exchange.messages import Control
from exchange.records import Document, RunHeader
from tests.synthetic import Plant
from tests.unit.coordinator.views.charts.views import FAULTY, ended


async def store_run(
    fabric: Fabric, plant: Plant = FAULTY, *, bursts_over: int | None = None
) -> str:
    """The run's id; with ``bursts_over`` only so many of its bursts are, and no verdict."""
    made, measured, summary = ended(plant)
    run_id = made.plan.run_id
    documents: dict[tuple[Document, int | None], bytes] = {}
    for part in measured[:bursts_over]:
        documents[Document.BURST, part.summary.index] = canonical(part.summary)
        documents[Document.SERIES, part.summary.index] = part.series.pack()
    if bursts_over is None:
        if made.ledger is not None:
            documents[Document.LEDGER, None] = dump_ledger(made.ledger)
        documents[Document.RUN, None] = canonical(summary)
    for (document, index), content in documents.items():
        await fabric.records.private.save_document(run_id, document, content, index)
    for evidence in made.evidence[:bursts_over]:
        for pair in evidence.pairs:
            if pair.report is not None:
                await fabric.records.bursts.save_report(pair.report)
            if pair.server_test is not None:
                await fabric.records.bursts.save_test(pair.server_test, (), ())
    await fabric.records.create_run(
        RunHeader(
            run_id=run_id, scenario="synthetic", created_at=made.plan.created_at, created_by="me"
        ),
        made.plan.model_dump_json().encode(),
        Control(run_id=run_id, lease_until_at=made.plan.created_at),
    )
    return run_id
