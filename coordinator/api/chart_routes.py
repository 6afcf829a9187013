"""Chart routes. A chart of a run, burst or study is data in JSON, or a drawing in SVG."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Response

from broadside.coordinator.api.dependencies import Service, make_router
from broadside.coordinator.api.tabular_responses import rows_at
from broadside.coordinator.views.charts import Chart, ChartEntry, Theme, catalogue
from broadside.coordinator.views.charts.stored_charts import draw_stored
from broadside.coordinator.views.charts.study_charts import StudyChart
from broadside.coordinator.views.charts.svg import height_of, standalone
from broadside.coordinator.views.tables.formats import JSON, chosen_format
from broadside.exchange.messages import Message, RunId

router = make_router("charts")

SVG: Final = "image/svg+xml"


class ChartList(Message):
    """List of charts that are available for a run."""

    run_id: RunId
    # For `burst` charts, the parameter `burst` is from 0 to `bursts_count` - 1.
    bursts_count: int
    charts: tuple[ChartEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Parameters of a drawing. JSON does not depend on them."""

    theme: Theme = Theme.LIGHT
    width: Annotated[int, Query(ge=200, le=4000)] = 920
    height: Annotated[int | None, Query(ge=150, le=4000)] = None
    accept: Annotated[str | None, Header(include_in_schema=False)] = None

    async def answer(self, chart: Chart | StudyChart) -> Response:
        """Return a chart as JSON or SVG, depending on ``Accept``."""
        if chosen_format(self.accept, (JSON, SVG)) == JSON:
            return Response(chart.model_dump_json(), media_type=JSON, headers={"Vary": "Accept"})
        height = self.height or height_of(chart.figure, self.width)
        size: dict[str, Any] = {"width": self.width, "height": height, "theme": self.theme}
        drawn = await asyncio.to_thread(standalone, chart.figure, **size)
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        headers = {"Content-Security-Policy": policy, "Vary": "Accept"}
        return Response(drawn, media_type=SVG, headers=headers)


AsDrawing = Annotated[Drawing, Depends()]


def as_chart(model: type[Message]) -> dict[str, Any]:
    """Return the route arguments for a response that is the ``model`` as JSON, or a drawing."""
    content = {SVG: {"schema": {"type": "string"}}}
    return {
        "response_class": Response,
        "responses": {200: {"description": "The chart", "model": model, "content": content}},
    }


@router.get("/runs/{run_id}/charts", openapi_extra=rows_at("charts"))
async def list_charts(run_id: str, coordinator: Service) -> ChartList:
    """List the charts of a run. Each shows one burst or the complete run."""
    plan = await coordinator.stored.read_plan(run_id)
    return ChartList(run_id=run_id, bursts_count=len(plan.bursts), charts=catalogue())


@router.get("/runs/{run_id}/charts/{name}", **as_chart(Chart))
async def read_chart(
    run_id: str,
    name: str,
    coordinator: Service,
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
