"""Response of a chart route: data in JSON, or a drawing in SVG."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Response

from broadside.coordinator.views.charts import Chart, Theme
from broadside.coordinator.views.charts.study_charts import StudyChart
from broadside.coordinator.views.charts.svg import height_of, standalone
from broadside.coordinator.views.tables.formats import JSON, chosen_format
from broadside.exchange.messages import Message

SVG: Final = "image/svg+xml"


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
            return Response(chart.answer_json(), media_type=JSON, headers={"Vary": "Accept"})
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
