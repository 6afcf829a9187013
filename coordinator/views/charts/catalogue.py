"""List of all charts by name, with their input and their drawing function.

Errors::

    NoChart
    └── UnknownChart
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.views.charts import burst_charts as bursts
from broadside.coordinator.views.charts import ledger_charts as ledgers
from broadside.coordinator.views.charts import pair_charts as pairs
from broadside.coordinator.views.charts import second_charts as seconds
from broadside.coordinator.views.charts.chart_inputs import BurstView, RunView
from broadside.coordinator.views.charts.figure import Figure, painted
from broadside.coordinator.views.charts.theme import Theme
from broadside.exchange.messages import Message

Kind = Literal["burst", "run"]


class UnknownChart(NoChart):
    """There is no chart of that name."""


class ChartEntry(Message):
    """One chart that there is."""

    name: str
    # Chart of one burst or of the whole run.
    kind: Kind
    title: str
    # Description of the chart in one sentence.
    says: str


class Chart(ChartEntry):
    """A chart, drawn."""

    # None for a chart of the whole run.
    burst_index: int | None = None
    theme: Theme
    # `data` and `layout` of plotly.
    figure: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Definition:
    title: str
    says: str
    of_burst: Callable[[BurstView], Figure] | None = None
    of_run: Callable[[RunView], Figure] | None = None
    bursts_min: int = 1

    @property
    def kind(self) -> Kind:
        return "run" if self.of_burst is None else "burst"


_DEFINITIONS: Final[Mapping[str, _Definition]] = {
    "throughput": _Definition(
        title="Throughput",
        says="The fleet's receivers second by second, its senders, the target, and the "
        "firewall's own ledger with its lag taken off.",
        of_burst=seconds.throughput,
    ),
    "band": _Definition(
        title="Spread over pairs",
        says="The slowest, middle and fastest pairs of each second.",
        of_burst=seconds.band,
    ),
    "heatmap": _Definition(
        title="Pairs by second",
        says="One row a pair, one column a second; grey is what nobody saw.",
        of_burst=seconds.heatmap,
    ),
    "pairs": _Definition(
        title="Rate of each pair",
        says="Each pair's mean over the window; pairs that were not measured are named.",
        of_burst=pairs.pair_rates,
    ),
    "starts": _Definition(
        title="Start offsets",
        says="When each pair's first data came, against the planned instant.",
        of_burst=pairs.starts,
    ),
    "latency": _Definition(
        title="Latency under load",
        says="What each pair's probes took on the idle path, and under the load.",
        of_burst=pairs.latency,
    ),
    "rtt": _Definition(
        title="Round-trip time",
        says="A round trip above its smallest value is a queue in the path.",
        of_burst=seconds.rtt,
    ),
    "retransmits": _Definition(
        title="Retransmits",
        says="Segments sent again: what the path dropped.",
        of_burst=seconds.retransmits,
    ),
    "cpu": _Definition(
        title="CPU of the hosts",
        says="Hosts near 100 % would be the limit themselves.",
        of_burst=seconds.cpu,
    ),
    "reconciliation": _Definition(
        title="The two ledgers",
        says="The firewall's own bins beside what the fleet says should be in them.",
        of_burst=ledgers.bins,
    ),
    "bursts": _Definition(
        title="Bursts",
        says="Each burst's rate, the firewall's beside it, and the target.",
        of_run=bursts.burst_rates,
    ),
    "trend": _Definition(
        title="Trend",
        says="Whether the rate drifts over a run of many bursts.",
        of_run=bursts.trend,
        bursts_min=3,
    ),
    "completeness": _Definition(
        title="Completeness",
        says="What became of every planned pair-second.",
        of_run=bursts.completeness,
    ),
    "residuals": _Definition(
        title="Residuals",
        says="What is left between the ledgers in each burst, with its uncertainty.",
        of_run=ledgers.residuals,
    ),
}
# Traces that alone are not worth a chart.
_NO_DATA: Final = ("target", pairs.NOTHING)
CHARTS: Final[Sequence[str]] = tuple(_DEFINITIONS)


def catalogue() -> tuple[ChartEntry, ...]:
    """Return the entries of all charts."""
    return tuple(_entry(name) for name in CHARTS)


def _entry(name: str) -> ChartEntry:
    found = _find(name)
    return ChartEntry(name=name, kind=found.kind, title=found.title, says=found.says)


def kind_of(name: str) -> Kind:
    """Return whether a chart shows a burst or a run.

    Raises:
        UnknownChart: There is no chart with this name.
    """
    return _find(name).kind


def draw_burst(name: str, view: BurstView, theme: Theme) -> Chart:
    """Draw a chart of a burst.

    Args:
        name: Chart name.
        view: Burst to draw.
        theme: Light or dark theme.

    Raises:
        NoChart: The burst has no data for this chart.
        UnknownChart: There is no chart with this name.
    """
    found = _find(name)
    if found.of_burst is None:
        raise NoChart(f"burst of chart {name}: of whole runs, not of one burst; leave it out")
    index = view.summary.index
    figure = painted(_checked(name, found.of_burst(view), f"burst {index + 1}"), theme)
    return Chart(**dict(_entry(name)), burst_index=index, theme=theme, figure=figure)


def draw_run(name: str, view: RunView, theme: Theme) -> Chart:
    """Draw a chart of a run.

    Args:
        name: Chart name.
        view: Run to draw.
        theme: Light or dark theme.

    Raises:
        NoChart: The run has no data for this chart.
        UnknownChart: There is no chart with this name.
    """
    found = _find(name)
    if found.of_run is None:
        raise NoChart(f"chart {name}: of one burst; name one")
    count = len(view.summary.bursts)
    if count < found.bursts_min:
        raise NoChart(f"chart {name}: needs {found.bursts_min} bursts, the run has {count}")
    figure = painted(_checked(name, found.of_run(view), "the run"), theme)
    return Chart(**dict(_entry(name)), theme=theme, figure=figure)


def _checked(name: str, figure: Figure, whose: str) -> Figure:
    """Return the figure. Raises ``NoChart`` if it has no data."""
    traces = [trace for trace in figure["data"] if trace.get("name") not in _NO_DATA]
    rows = [row for trace in traces for row in trace.get("z", [trace["y"]])]
    if all(value is None for row in rows for value in row):
        raise NoChart(f"chart {name}: nothing that it shows is on record of {whose}")
    return figure


def _find(name: str) -> _Definition:
    if name not in _DEFINITIONS:
        near = difflib.get_close_matches(name, CHARTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(CHARTS)}"
        raise UnknownChart(f"chart {name!r}: no such chart; {hint}")
    return _DEFINITIONS[name]
