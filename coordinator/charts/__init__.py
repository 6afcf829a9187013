"""Every chart of Broadside, defined once: plain JSON figures in plotly's dialect.

The live page hands them to plotly, the report draws them itself (:mod:`coordinator.charts.svg`),
and ``broadside chart`` makes PNGs of them. Nothing here needs plotly.
"""

from coordinator.charts.catalogue import (
    CHARTS,
    Chart,
    ChartEntry,
    Kind,
    NoChart,
    UnknownChart,
    catalogue,
    draw_burst,
    draw_run,
    kind_of,
)
from coordinator.charts.figure import Figure
from coordinator.charts.theme import Theme
from coordinator.charts.views import BurstView, RunView

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
