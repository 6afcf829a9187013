"""What a run that is over has cost, for the list of runs."""

from pydantic import ValidationError

from coordinator.core.live.status import due_at
from coordinator.core.plan.meter import Basis, Spending, measure
from coordinator.core.plan.price import Prices
from coordinator.core.plan.spec import Plan
from coordinator.runs.run_states import ClosedBurst
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
    told = {
        i: burst.payload_bytes for i, burst in closed.items() if burst.payload_bytes is not None
    }
    spending = Spending(
        plan=plan,
        basis=basis,
        payload_bytes=told,
        over=frozenset(closed),
    )
    return measure(spending, prices, due_at(plan.bursts[-1]), control).spent.total_usd
