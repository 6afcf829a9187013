"""Chart routes. A chart of a run, burst or study is data in JSON, or a drawing in SVG."""

from typing import Annotated

from fastapi import Query, Response

from broadside.coordinator.api.chart_responses import AsDrawing, as_chart
from broadside.coordinator.api.dependencies import CurrentCoordinator, make_router
from broadside.coordinator.api.tabular_responses import rows_at
from broadside.coordinator.views.charts import Chart, ChartEntry, catalogue
from broadside.coordinator.views.charts.stored_charts import draw_stored
from broadside.exchange.messages import Message, RunId

router = make_router("charts")


class ChartList(Message):
    """List of charts that are available for a run.

    Attributes:
        bursts_count: Number of bursts. For `burst` charts, the parameter `burst` is from 1 to this
            number.
        charts: Charts that can be requested.
    """

    run_id: RunId
    bursts_count: int
    charts: tuple[ChartEntry, ...]


@router.get("/runs/{run_id}/charts", openapi_extra=rows_at("charts"))
async def list_run_charts(run_id: str, coordinator: CurrentCoordinator) -> ChartList:
    """List the charts of a run. Each shows one burst or the complete run."""
    plan = await coordinator.stored.read_plan(run_id)
    return ChartList(run_id=run_id, bursts_count=len(plan.bursts), charts=catalogue())


@router.get("/runs/{run_id}/charts/{name}", **as_chart(Chart))
async def read_run_chart(
    run_id: str,
    name: str,
    coordinator: CurrentCoordinator,
    drawing: AsDrawing,
    burst: Annotated[
        int | None,
        Query(ge=1, le=10_000, description="number from 1, for charts of one burst; default: 1"),
    ] = None,
) -> Response:
    """Return a chart as data, or as a drawing for `Accept: image/svg+xml`.

    Charts of a burst are available after the burst, charts of the run after its verdict.
    """
    plan = await coordinator.stored.read_plan(run_id)
    index = None if burst is None else burst - 1
    return await drawing.answer(await draw_stored(coordinator.fabric.records, plan, name, index))
