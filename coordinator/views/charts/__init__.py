"""Definitions of all charts, as plain JSON figures in plotly's format.

The live page draws them with plotly. The report draws them as SVG
(:mod:`broadside.coordinator.views.charts.svg`), and ``broadside chart`` creates PNG files. This
package does not need plotly.
"""

from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.views.charts.catalogue import (
    CHARTS,
    Chart,
    ChartEntry,
    Kind,
    UnknownChart,
    catalogue,
    draw_burst,
    draw_run,
    kind_of,
)
from broadside.coordinator.views.charts.chart_inputs import BurstView, RunView
from broadside.coordinator.views.charts.figure import Figure
from broadside.coordinator.views.charts.theme import Theme

__all__ = [
    "CHARTS",
    "BurstView",
    "Chart",
    "ChartEntry",
    "Figure",
    "Kind",
    "NoChart",
    "RunView",
    "Theme",
    "UnknownChart",
    "catalogue",
    "draw_burst",
    "draw_run",
    "kind_of",
]
