"""The charts by name, what each needs, and how to draw one.

::

    NoChart
    └── UnknownChart
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from coordinator.refusals import NoChart
from coordinator.views.charts import burst_charts as bursts
from coordinator.views.charts import ledger_charts as ledgers
from coordinator.views.charts import pair_charts as pairs
from coordinator.views.charts import second_charts as seconds
from coordinator.views.charts.chart_inputs import BurstView, RunView
from coordinator.views.charts.figure import Figure
from coordinator.views.charts.theme import Theme
from exchange.messages import Message

Kind = Literal["burst", "run"]


class UnknownChart(NoChart):
    """There is no chart of that name."""


class ChartEntry(Message):
    """One chart that there is."""

    name: str
    kind: Kind  # of one burst, or of the whole run
    title: str
    says: str  # what a reader sees in it, in one sentence


class Chart(ChartEntry):
    """A chart, drawn."""

    burst_index: int | None = None  # None: of the whole run
    theme: Theme
    figure: Mapping[str, Any]  # plotly's `data` and `layout`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Definition:
    entry: ChartEntry
    of_burst: Callable[[BurstView, Theme], Figure] | None = None
    of_run: Callable[[RunView, Theme], Figure] | None = None
    bursts_min: int = 1


def _burst_bins(view: BurstView, theme: Theme) -> Figure:
    held = view.summary.reconciliation
    if view.ledger is None or held is None:
        raise NoChart(f"reconciliation: burst {view.summary.index + 1} was held against no ledger")
    return ledgers.bins((view.series,), view.ledger, held, theme, view.spec.scale)


def _latency(view: BurstView, theme: Theme) -> Figure:
    if view.summary.latency is None:
        raise NoChart(f"latency: burst {view.summary.index + 1} has no probes (traffic.probe=udp)")
    return pairs.latency(view, theme)


def _residuals(view: RunView, theme: Theme) -> Figure:
    held = [burst.reconciliation for burst in view.summary.bursts]
    if not any(each is not None and each.residual_ratio is not None for each in held):
        raise NoChart("residuals: the run was held against no ledger")
    return ledgers.residuals(view, theme)


def _defined(
    name: str,
    kind: Kind,
    title: str,
    says: str,
    **how: Any,
) -> tuple[str, _Definition]:
    return name, _Definition(entry=ChartEntry(name=name, kind=kind, title=title, says=says), **how)


_DEFINITIONS: Final[Mapping[str, _Definition]] = dict(
    (
        _defined(
            "throughput",
            "burst",
            "Throughput",
            "The fleet's receivers second by second, its senders, the target, and the firewall's "
            "own ledger with its lag taken off.",
            of_burst=seconds.throughput,
        ),
        _defined(
            "band",
            "burst",
            "Spread over pairs",
            "The slowest, middle and fastest pairs of each second.",
            of_burst=seconds.band,
        ),
        _defined(
            "heatmap",
            "burst",
            "Pairs by second",
            "One row a pair, one column a second; grey is what nobody saw.",
            of_burst=seconds.heatmap,
        ),
        _defined(
            "pairs",
            "burst",
            "Rate of each pair",
            "Each pair's mean over the window; pairs that were not measured are named.",
            of_burst=pairs.pair_rates,
        ),
        _defined(
            "starts",
            "burst",
            "Start offsets",
            "When each pair's first data came, against the planned instant.",
            of_burst=pairs.starts,
        ),
        _defined(
            "latency",
            "burst",
            "Latency under load",
            "What each pair's probes took on the idle path, and under the load.",
            of_burst=_latency,
        ),
        _defined(
            "rtt",
            "burst",
            "Round-trip time",
            "A round trip above its smallest value is a queue in the path.",
            of_burst=seconds.rtt,
        ),
        _defined(
            "retransmits",
            "burst",
            "Retransmits",
            "Segments sent again: what the path dropped.",
            of_burst=seconds.retransmits,
        ),
        _defined(
            "cpu",
            "burst",
            "CPU of the hosts",
            "Hosts near 100 % would be the limit themselves.",
            of_burst=seconds.cpu,
        ),
        _defined(
            "reconciliation",
            "burst",
            "The two ledgers",
            "The firewall's own bins beside what the fleet says should be in them.",
            of_burst=_burst_bins,
        ),
        _defined(
            "bursts",
            "run",
            "Bursts",
            "Each burst's rate, the firewall's beside it, and the target.",
            of_run=bursts.burst_rates,
        ),
        _defined(
            "trend",
            "run",
            "Trend",
            "Whether the rate drifts over a run of many bursts.",
            of_run=bursts.trend,
            bursts_min=3,
        ),
        _defined(
            "completeness",
            "run",
            "Completeness",
            "What became of every planned pair-second.",
            of_run=bursts.completeness,
        ),
        _defined(
            "residuals",
            "run",
            "Residuals",
            "What is left between the ledgers in each burst, with its uncertainty.",
            of_run=_residuals,
        ),
    )
)
_NO_DATA: Final = ("target", pairs.NOTHING)  # traces that alone are no chart
CHARTS: Final[Sequence[str]] = tuple(_DEFINITIONS)


def catalogue() -> tuple[ChartEntry, ...]:
    """Every chart that there is."""
    return tuple(definition.entry for definition in _DEFINITIONS.values())


def kind_of(name: str) -> Kind:
    """What a chart is of. Raises :class:`UnknownChart`."""
    return _find(name).entry.kind


def draw_burst(name: str, view: BurstView, theme: Theme) -> Chart:
    """One burst's chart. Raises :class:`NoChart`, :class:`UnknownChart`."""
    found = _find(name)
    if found.of_burst is None:
        raise NoChart(f"burst of chart {name}: of whole runs, not of one burst; leave it out")
    figure = found.of_burst(view, theme)
    index = view.summary.index
    _check_data(name, figure, f"burst {index + 1}")
    return Chart(**dict(found.entry), burst_index=index, theme=theme, figure=figure)


def draw_run(name: str, view: RunView, theme: Theme) -> Chart:
    """A run's chart. Raises :class:`NoChart`, :class:`UnknownChart`."""
    found = _find(name)
    if found.of_run is None:
        raise NoChart(f"chart {name}: of one burst; name one")
    count = len(view.summary.bursts)
    if count < found.bursts_min:
        raise NoChart(f"chart {name}: needs {found.bursts_min} bursts, the run has {count}")
    figure = found.of_run(view, theme)
    _check_data(name, figure, "the run")
    return Chart(**dict(found.entry), theme=theme, figure=figure)


def _check_data(name: str, figure: Figure, whose: str) -> None:
    """No axes without data. Raises :class:`NoChart`."""
    traces = [trace for trace in figure["data"] if trace.get("name") not in _NO_DATA]
    rows = [row for trace in traces for row in trace.get("z", [trace["y"]])]
    if all(value is None for row in rows for value in row):
        raise NoChart(f"chart {name}: nothing that it shows is on record of {whose}")


def _find(name: str) -> _Definition:
    if name not in _DEFINITIONS:
        near = difflib.get_close_matches(name, CHARTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(CHARTS)}"
        raise UnknownChart(f"chart {name!r}: no such chart; {hint}")
    return _DEFINITIONS[name]
