"""List of all charts of runs and bursts by name, with their drawing functions.

Errors::

    NoChart
    └── UnknownChart
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.views.charts import pair_charts, run_charts, time_charts
from broadside.coordinator.views.charts.figure import Figure
from broadside.coordinator.views.charts.inputs import BurstView, RunView
from broadside.exchange.messages import Message, OptionalBurstIndex

ChartScope = Literal["burst", "run"]


class UnknownChart(NoChart):
    """There is no chart with this name."""


class ChartEntry(Message):
    """Name and description of a chart.

    Attributes:
        name: Name of the chart.
        kind: Chart of one burst or of the complete run.
        title: Title of the chart.
        description: Description of the chart in one sentence.
    """

    name: str
    kind: ChartScope
    title: str
    description: str


class Chart(ChartEntry):
    """Chart with its data.

    Attributes:
        name: Name of the chart.
        kind: Chart of one burst or of the complete run.
        title: Title of the chart.
        description: Description of the chart in one sentence.
        figure: Data of the chart.
    """

    # None for a chart of the complete run.
    burst_index: OptionalBurstIndex = None
    figure: Figure


class _BurstChart(NamedTuple):
    title: str
    description: str
    draw: Callable[[BurstView], Figure]


class _RunChart(NamedTuple):
    title: str
    description: str
    draw: Callable[[RunView], Figure]


_DEFINITIONS: Final[Mapping[str, _BurstChart | _RunChart]] = {
    "throughput": _BurstChart(
        "Throughput",
        "Rate that the receivers and the senders report in each second, the target, and the "
        "device counter without its lag.",
        time_charts.throughput,
    ),
    "parts": _BurstChart(
        "Traffic of a mixed run",
        "Received payload of each traffic in each second, relative to its highest second.",
        time_charts.parts,
    ),
    "band": _BurstChart(
        "Rates of the pairs",
        "5th percentile, median and 95th percentile of the pairs in each second.",
        time_charts.pair_percentiles,
    ),
    "heatmap": _BurstChart(
        "Pairs by second",
        "Rate of each pair (row) in each second (column). Grey seconds have no data.",
        time_charts.heat_map,
    ),
    "pairs": _BurstChart(
        "Mean rate of each pair",
        "Mean rate of each pair over the measurement window, by state of the pair.",
        pair_charts.pair_rates,
    ),
    "starts": _BurstChart(
        "Start errors",
        "Time of each pair's first data, relative to the planned start.",
        pair_charts.start_errors,
    ),
    "latency": _BurstChart(
        "Latency under load",
        "Round-trip time of each pair's probes, without and with load.",
        pair_charts.latency,
    ),
    "rtt": _BurstChart(
        "Round-trip time",
        "TCP round-trip time of the senders. An increase under load shows a queue in the path.",
        time_charts.rtt,
    ),
    "retransmits": _BurstChart(
        "Retransmissions",
        "TCP segments that were sent again because the path lost or delayed them.",
        time_charts.retransmits,
    ),
    "connections": _BurstChart(
        "Connections per second",
        "Connections that the clients attempted in each second, and their outcomes.",
        time_charts.connections,
    ),
    "connection-times": _BurstChart(
        "Handshake and first byte per second",
        "Percentiles of each second, from the time when a connection was due. The largest value "
        "of a pair is shown.",
        time_charts.connection_times,
    ),
    "cpu": _BurstChart(
        "CPU utilization",
        "CPU utilization of clients and servers. Near 100 %, a host can limit the rate.",
        time_charts.cpu,
    ),
    "device": _BurstChart(
        "Telemetry of the device",
        "Values that the device reported in each second, relative to the highest of the burst.",
        time_charts.device,
    ),
    "reconciliation": _BurstChart(
        "Device counter and fleet",
        "Rate of the device counter in each of its intervals, and the rate that the fleet's data "
        "predicts.",
        time_charts.reconciliation,
    ),
    "bursts": _RunChart(
        "Bursts",
        "Rate of the fleet and of the device counter in each burst, and the target.",
        run_charts.burst_rates,
    ),
    "completeness": _RunChart(
        "Completeness",
        "Planned pair-seconds of each burst by state.",
        run_charts.completeness,
    ),
    "residuals": _RunChart(
        "Residuals",
        "Difference between device counter and fleet in each burst, with its uncertainty.",
        run_charts.residuals,
    ),
}
CHARTS: Final[Sequence[str]] = tuple(_DEFINITIONS)


def catalogue() -> tuple[ChartEntry, ...]:
    """Return the entries of all charts."""
    return tuple(_entry(name) for name in CHARTS)


def _entry(name: str) -> ChartEntry:
    chart = _find(name)
    return ChartEntry(
        name=name, kind=kind_of(name), title=chart.title, description=chart.description
    )


def kind_of(name: str) -> ChartScope:
    """Return whether a chart shows a burst or a run.

    Raises:
        UnknownChart: There is no chart with this name.
    """
    return "burst" if isinstance(_find(name), _BurstChart) else "run"


def draw_burst(name: str, view: BurstView) -> Chart:
    """Return a chart of a burst.

    Args:
        name: Chart name.
        view: Burst to draw.

    Raises:
        NoChart: The burst has no data for this chart.
        UnknownChart: There is no chart with this name.
    """
    chart = _find(name)
    if isinstance(chart, _RunChart):
        raise NoChart(f"burst of chart {name}: the chart shows the complete run; omit it")
    index = view.summary.index
    return _chart(name, chart.draw(view), f"burst {index + 1}", index)


def draw_run(name: str, view: RunView) -> Chart:
    """Return a chart of a run.

    Args:
        name: Chart name.
        view: Run to draw.

    Raises:
        NoChart: The run has no data for this chart.
        UnknownChart: There is no chart with this name.
    """
    chart = _find(name)
    if isinstance(chart, _BurstChart):
        raise NoChart(f"chart {name}: the chart shows one burst; give the burst")
    return _chart(name, chart.draw(view), "the run")


def _chart(name: str, figure: Figure, source: str, burst_index: int | None = None) -> Chart:
    if figure.is_empty:
        raise NoChart(f"chart {name}: {source} has no data for it")
    return Chart(**dict(_entry(name)), burst_index=burst_index, figure=figure)


def _find(name: str) -> _BurstChart | _RunChart:
    if name not in _DEFINITIONS:
        close = difflib.get_close_matches(name, CHARTS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"charts: {', '.join(CHARTS)}"
        raise UnknownChart(f"chart {name!r}: unknown chart; {hint}")
    return _DEFINITIONS[name]
