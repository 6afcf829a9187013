"""Price routes, for the estimate before a run and the cost so far."""

from typing import Annotated

from broadside.coordinator.api.dependencies import CurrentCoordinator, app_state, make_router
from broadside.coordinator.api.tabular_responses import rows_at
from broadside.coordinator.core.plan.budget import PriceMeter
from broadside.coordinator.core.plan.cost_estimate import LaunchEstimate
from broadside.coordinator.runs.budgets import Budgets
from broadside.coordinator.runs.requests import EstimateRequest

router = make_router("prices")


@router.post("/estimate", openapi_extra=rows_at("price.bill.lines"))
async def estimate_run(request: EstimateRequest, coordinator: CurrentCoordinator) -> LaunchEstimate:
    """Check if a run could be launched now, and estimate its cost. Nothing is stored."""
    return await coordinator.launcher.appraise(request.resolve(), request.table(coordinator.prices))


@router.get("/runs/{run_id}/price", openapi_extra=rows_at("spent.lines"))
async def read_run_price(
    run_id: str, budgets: Annotated[Budgets, app_state("budgets")]
) -> PriceMeter:
    """Return the cost of a run so far, and the expected total.

    The cost so far is computed from the measured bytes.
    """
    return await budgets.read(run_id)
