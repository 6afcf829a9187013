"""Render a report as one HTML file without scripts and external links, for phones and paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from broadside.coordinator.core.formatting import instant
from broadside.coordinator.views.charts import NoChart, RunView, Theme, draw_burst, draw_run
from broadside.coordinator.views.charts.svg import draw, hatches, styles
from broadside.coordinator.views.report.document import ChartPlace, Report
from broadside.coordinator.views.report.path_drawing import topology_svg
from broadside.coordinator.views.report.stored_source import Source

# Widths of the two drawings of each chart, in px.
WIDE, NARROW = 920, 400
_HERE = Path(__file__).parent


def html(report: Report, source: Source) -> str:
    """Return the HTML page of a report. A line names the charts that have no data."""
    views = {view.summary.index: view for view in source.views}
    run = RunView(spec=source.plan.spec, summary=source.summary)

    def drawn(place: ChartPlace) -> Markup | None:
        try:
            chart = (
                draw_run(place.name, run, Theme.LIGHT)
                if place.burst_index is None
                else draw_burst(place.name, views[place.burst_index], Theme.LIGHT)
            )
        except NoChart:
            return None
        return drawings(dict(chart.figure), f"{place.name}-{place.burst_index or 0}")

    topology = Markup(topology_svg(report.plan))  # noqa: S704  # our own drawing, texts escaped
    return page("report.html.j2", report=report, drawn=drawn, topology=topology)


def page(template: str, **values: object) -> str:
    """Return a template from this folder, rendered with the values."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters["instant"] = instant
    return environment.get_template(template).render(
        style=Markup((_HERE / "report.css").read_text(encoding="utf-8")),  # noqa: S704  # ours
        light=Markup(styles(Theme.LIGHT)),  # noqa: S704  # our own palette
        dark=Markup(styles(Theme.DARK)),  # noqa: S704  # as above
        hatches=Markup(hatches()),  # noqa: S704  # our own drawing
        sides=_sides,
        **values,
    )


def drawings(figure: dict[str, Any], name: str, *, higher_px: float = 0.0) -> Markup:
    """Return a figure as two SVG drawings, for wide and narrow screens.

    Args:
        figure: Figure in plotly's JSON form.
        name: Prefix for the ids in the drawings.
        higher_px: Height to add, in px.
    """
    parts = []
    for kind, width in (("wide", WIDE), ("narrow", NARROW)):
        height = _height(figure, wide=kind == "wide") + higher_px
        drawing = draw(figure, width=width, height=height, name=f"{kind}-{name}")
        parts.append(f'<div class="{kind}">{drawing}</div>')
    return Markup("".join(parts))  # noqa: S704  # our own drawing, texts escaped


def _height(figure: dict[str, Any], *, wide: bool) -> float:
    """Return the height of a drawing in px. A heat map grows with its number of pairs."""
    cells: Sequence[Any] = figure["data"][0].get("z", ()) if figure["data"] else ()
    base = 280 if wide else 250
    return max(base, min(620, 110 + 7 * len(cells))) if cells else base


def _sides(numeric_from: int, place: int) -> str:
    return "figure" if place >= numeric_from else "words"
