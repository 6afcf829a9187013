"""What a run that is over has cost, for the list of runs."""

from collections.abc import Mapping

from pydantic import ValidationError

from coordinator.core.live.status import due_at
from coordinator.core.plan.meter import Basis, Spending, measure
from coordinator.core.plan.price import Prices
from coordinator.core.plan.spec import Plan
from coordinator.runs.run_states import ClosedBurst
from coordinator.runs.stored import read_series
from exchange.messages import Control
from exchange.records import Document, Records


async def cost_of(
    records: Records, plan: Plan, control: Control | None, prices: Prices
) -> float | None:
    """USD at real scale, by the bytes of its bursts; None: what it was priced on is not there."""
    document = await records.private.read_document(plan.run_id, Document.PRICE)
    try:
        basis = Basis.model_validate_json(document or b"")
    except ValidationError:
        return None
    closed = await records.private.read_closed(plan.run_id, ClosedBurst)
    read = {
        burst.index: await payload_of(records, plan.run_id, burst.index, closed)
        for burst in plan.bursts
    }
    told = {
        index: payload_bytes for index, payload_bytes in read.items() if payload_bytes is not None
    }
    spending = Spending(
        plan=plan,
        basis=basis,
        payload_bytes=told,
        over=frozenset(told),
    )
    return measure(spending, prices, due_at(plan.bursts[-1]), control).spent.total_usd


async def payload_of(
    records: Records, run_id: str, index: int, closed: Mapping[int, ClosedBurst]
) -> int | None:
    """Payload bytes of a burst that is measured; an import's are told by its seconds."""
    if index in closed and (told := closed[index].payload_bytes) is not None:
        return told
    series = await read_series(records, run_id, index, with_pairs=False)
    return None if series is None else series.payload_bytes
