"""Every chart of Broadside, defined once: plain JSON figures in plotly's dialect.

The live page hands them to plotly, the report draws them itself
(:mod:`coordinator.views.charts.svg`), and ``broadside chart`` makes PNGs of them. Nothing here
needs plotly.
"""

from coordinator.refusals import NoChart
from coordinator.views.charts.catalogue import (
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
from coordinator.views.charts.chart_inputs import BurstView, RunView
from coordinator.views.charts.figure import Figure
from coordinator.views.charts.theme import Theme

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
