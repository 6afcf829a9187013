"""Price routes, for the estimate before a run and the cost so far."""

from typing import Annotated

from broadside.coordinator.api.dependencies import Service, kept, routes
from broadside.coordinator.api.row_answers import rows_in
from broadside.coordinator.core.plan.budget import PriceMeter
from broadside.coordinator.core.plan.cost_estimate import Appraisal
from broadside.coordinator.runs.spending import Budgets
from broadside.coordinator.views.requests import EstimateRequest

router = routes("prices")


There = Annotated[Budgets, kept("budgets")]


@router.post("/estimate", openapi_extra=rows_in("price.bill.lines"))
async def estimate_run(request: EstimateRequest, coordinator: Service, budgets: There) -> Appraisal:
    """Whether a run could be launched now, and what it would cost; nothing is stored."""
    return await budgets.appraise(request.resolve(), request.table(coordinator.prices))


@router.get("/runs/{run_id}/price", openapi_extra=rows_in("spent.lines"))
async def read_price(run_id: str, budgets: There) -> PriceMeter:
    """What a run has cost so far by the bytes it measured, and will have cost at its end."""
    return await budgets.read(run_id)
