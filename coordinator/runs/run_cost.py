"""Cost for finished runs, for the run list."""

from collections.abc import Sequence

from pydantic import ValidationError

from broadside.coordinator.core.plan.budget import PriceBasis, Spend, measure
from broadside.coordinator.core.plan.price import Prices
from broadside.coordinator.core.run_spec import Plan, due_at
from broadside.coordinator.runs.run_documents import read_measured
from broadside.coordinator.runs.run_states import ClosedBurst
from broadside.exchange.messages import Control
from broadside.exchange.records import Document, Records


async def cost_of(
    records: Records, plan: Plan, control: Control | None, prices: Prices
) -> float | None:
    """Return the cost for a run in USD at real scale, from the bytes of its bursts.

    Args:
        records: Records to use for access to the tables.
        plan: The plan to use.
        control: Control row for the run, or None.
        prices: The price list to use.

    Returns:
        The cost, or None if the stored basis of the price is absent or unreadable.
    """
    document = await records.private.read_document(plan.run_id, Document.PRICE)
    try:
        basis = PriceBasis.model_validate_json(document or b"")
    except ValidationError:
        return None
    payloads = await read_payloads(records, plan.run_id, [burst.index for burst in plan.bursts])
    spending = Spend(plan=plan, basis=basis, payload_bytes=payloads, over=frozenset(payloads))
    return measure(spending, prices, due_at(plan.bursts[-1]), control).spent.total_usd


async def read_payloads(records: Records, run_id: str, indexes: Sequence[int]) -> dict[int, int]:
    """Return the payload bytes of measured bursts by burst index.

    For imports, the bytes are computed from the stored seconds.

    Args:
        records: Records to use for access to the tables.
        run_id: The id to look up.
        indexes: Burst indices in ascending order.

    Returns:
        Payload bytes by burst index. Bursts without a measurement have no entry.
    """
    if not indexes:
        return {}
    closed = await records.private.read_closed(run_id, ClosedBurst, from_index=indexes[0])
    payloads: dict[int, int] = {}
    for index in indexes:
        payload_bytes = closed[index].payload_bytes if index in closed else None
        if payload_bytes is None:
            measured = await read_measured(records, run_id, index, with_pairs=False)
            payload_bytes = None if measured is None else measured.payload_bytes
        if payload_bytes is not None:
            payloads[index] = payload_bytes
    return payloads
