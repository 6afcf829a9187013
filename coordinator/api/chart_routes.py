"""Chart routes. Each chart is a plotly figure for a run or a burst, in a light or dark theme."""

from typing import Annotated

from fastapi import Query

from broadside.coordinator.api.dependencies import Service, make_router
from broadside.coordinator.api.tabular_responses import rows_at
from broadside.coordinator.views.charts import Chart, ChartEntry, Theme, catalogue
from broadside.coordinator.views.charts.stored_views import draw_stored
from broadside.exchange.messages import Message, RunId

router = make_router("charts")


class ChartList(Message):
    """List of charts that are available for a run."""

    run_id: RunId
    # For `burst` charts, the parameter `burst` is from 0 to `bursts_count` - 1.
    bursts_count: int
    charts: tuple[ChartEntry, ...]


@router.get("/runs/{run_id}/charts", openapi_extra=rows_at("charts"))
async def list_charts(run_id: str, coordinator: Service) -> ChartList:
    """List the charts of a run. Each shows one burst or the complete run."""
    plan = await coordinator.stored.read_plan(run_id)
    return ChartList(run_id=run_id, bursts_count=len(plan.bursts), charts=catalogue())


@router.get("/runs/{run_id}/charts/{name}")
async def read_chart(
    run_id: str,
    name: str,
    coordinator: Service,
    burst: Annotated[
        int | None,
        Query(ge=0, le=9999, description="index from 0, for charts of one burst; default: 0"),
    ] = None,
    theme: Theme = Theme.LIGHT,
) -> Chart:
    """Return one chart as a plotly figure.

    Draw it with `Plotly.newPlot(element, figure.data, figure.layout)`. Charts of a burst are
    available when the burst is finished, charts of the run when it has a verdict.
    """
    plan = await coordinator.stored.read_plan(run_id)
    return await draw_stored(coordinator.fabric.records, plan, name, burst, theme)
