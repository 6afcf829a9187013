"""Chart routes. Each chart is a plotly figure for a run or a burst, in a light or dark theme."""

from typing import Annotated

from fastapi import Query

from broadside.coordinator.api.dependencies import Service, routes
from broadside.coordinator.api.row_answers import rows_in
from broadside.coordinator.views.charts import Chart, ChartEntry, Theme, catalogue
from broadside.coordinator.views.charts.stored_views import draw_stored
from broadside.exchange.messages import Message, RunId

router = routes("charts")


class ChartList(Message):
    """The charts of one run."""

    run_id: RunId
    # For `burst` charts, the parameter `burst` is from 0 to `bursts_count` - 1.
    bursts_count: int
    charts: tuple[ChartEntry, ...]


@router.get("/runs/{run_id}/charts", openapi_extra=rows_in("charts"))
async def list_charts(run_id: str, coordinator: Service) -> ChartList:
    """The charts there are, of one burst or of the whole run."""
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
    """One chart as a plotly figure: `Plotly.newPlot(element, figure.data, figure.layout)`.

    Charts of one burst are there as soon as it is over, those of the run with its verdict.
    """
    plan = await coordinator.stored.read_plan(run_id)
    return await draw_stored(coordinator.fabric.records, plan, name, burst, theme)
