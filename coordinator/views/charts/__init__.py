"""Charts of runs, bursts and studies.

The chart functions return a :class:`Figure`, which is the data of the chart.
:mod:`broadside.coordinator.views.charts.svg` draws it for reports, the page and files. The live
page draws its own charts while a run is in progress.
"""

from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.views.charts.catalogue import (
    CHARTS,
    Chart,
    ChartEntry,
    ChartScope,
    UnknownChart,
    catalogue,
    draw_burst,
    draw_run,
    kind_of,
)
from broadside.coordinator.views.charts.figure import Figure
from broadside.coordinator.views.charts.inputs import BurstView, RunView
from broadside.coordinator.views.charts.theme import Theme

__all__ = [
    "CHARTS",
    "BurstView",
    "Chart",
    "ChartEntry",
    "ChartScope",
    "Figure",
    "NoChart",
    "RunView",
    "Theme",
    "UnknownChart",
    "catalogue",
    "draw_burst",
    "draw_run",
    "kind_of",
]
