"""Render a report as one HTML file without scripts and external links, for phones and paper."""

import re
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup, escape

from broadside.coordinator.core.formatting import instant
from broadside.coordinator.views.charts import (
    Figure,
    NoChart,
    RunView,
    Theme,
    draw_burst,
    draw_run,
)
from broadside.coordinator.views.charts.svg import draw, hatches, height_of, styles
from broadside.coordinator.views.report.document import ChartPlace, Report
from broadside.coordinator.views.report.network_path import network_path
from broadside.coordinator.views.report.stored_source import Source

# Widths of the two drawings of each chart, in px.
_WIDTHS: Final = {"wide": 920, "narrow": 400}
_CODE: Final = re.compile(r"`([^`]+)`")
_HERE: Final = Path(__file__).parent


def html(report: Report, source: Source) -> str:
    """Return the HTML page of a report. A line names the charts that have no data.

    Args:
        report: Report to show.
        source: Plan, summary and views of the run, for the charts.
    """
    views = {view.summary.index: view for view in source.views}
    run = RunView(spec=source.plan.spec, summary=source.summary)

    def drawn(place: ChartPlace) -> Markup | None:
        try:
            chart = (
                draw_run(place.name, run)
                if place.burst_index is None
                else draw_burst(place.name, views[place.burst_index])
            )
        except NoChart:
            return None
        return drawings(chart.figure, f"{place.name}-{place.burst_index or 0}")

    return page("report.html.j2", report=report, drawn=drawn, path=network_path(report.plan))


def page(template: str, **values: object) -> str:
    """Return a template from this folder, rendered with the values.

    Args:
        template: File name of the template.
        **values: Values by the names that the template uses.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters["instant"] = instant
    environment.filters["code"] = _code
    return environment.get_template(template).render(
        style=Markup((_HERE / "report.css").read_text(encoding="utf-8")),  # noqa: S704  # ours
        light=Markup(styles(Theme.LIGHT)),  # noqa: S704  # our own palette
        dark=Markup(styles(Theme.DARK)),  # noqa: S704  # as above
        hatches=Markup(hatches()),  # noqa: S704  # our own drawing
        **values,
    )


def _code(text: str) -> Markup:
    """Return a text as HTML, with the parts between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  # escaped


def drawings(figure: Figure, name: str) -> Markup:
    """Return a figure as two SVG drawings, for wide and narrow screens.

    Args:
        figure: Figure to draw.
        name: Prefix for the ids in the drawings.
    """
    parts = []
    for kind, width in _WIDTHS.items():
        height = height_of(figure, width)
        drawing = draw(figure, width=width, height=height, name=f"{kind}-{name}")
        parts.append(f'<div class="{kind}">{drawing}</div>')
    return Markup("".join(parts))  # noqa: S704  # our own drawing, texts escaped
