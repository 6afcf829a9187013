"""Charts of one burst by second. The x axis starts at the planned start."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core import formatting
from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.summary import Reconciliation
from broadside.coordinator.views.charts.chart_inputs import BurstView, scaled
from broadside.coordinator.views.charts.figure import (
    MILLISECONDS,
    PERCENT,
    Figure,
    Trace,
    Unit,
    frame,
    line,
    marks,
    numbers,
    rate_unit,
    time_unit,
    upright,
)
from broadside.coordinator.views.charts.theme import HEAT, Colour

# Larger bursts are drawn with means over several seconds.
HEAT_CELLS_MAX: Final = 200_000
# Tolerance for rounding of the stored coverage, relative to the planned pairs.
SPARE_RATIO: Final = 1e-4


def throughput(view: BurstView) -> Figure:
    """Return the fleet's rate at the target's layer, with the target and the firewall counter.

    The burst's header ratio converts payload to the IP layer. The firewall counter is shifted by
    its lag. The overhead ratio of its reconciliation converts it to the same layer.
    """
    spec, series = view.spec, view.series
    layer = spec.objective.layer
    factor = view.summary.header_ratio if layer is Layer.IP else 1.0
    received = _blanked(series.received_bytes * 8 * factor, series.coverage_ratio)
    sent = _sent(view) * factor
    target = spec.scaled_target_bits_per_second
    held = view.summary.reconciliation
    ledger = _ledger_steps(view, held, factor)
    unit = rate_unit([*received.tolist(), *sent.tolist(), target])
    time = time_unit(series.duration_s)
    at = _places(view)
    traces = []
    if ledger is not None:
        x, y, name = ledger
        traces.append(line(name, x / time.size, y, Colour.LEDGER, unit, steps=True))
    traces += [
        line("fleet sent", at, sent, Colour.SENT, unit, dash="dot", width=1.25),
        line("fleet received", at, received, Colour.FLEET, unit, width=2.25),
    ]
    inside = _inside(view, series.coverage_ratio)
    usual = np.nanmax(inside) if not np.isnan(inside).all() else 0.0
    partly = np.where(inside < usual - SPARE_RATIO, received, np.nan)
    if not np.isnan(partly).all():
        name = "fewer pairs on record than at best"
        traces.append(marks(name, at, partly, Colour.WARN, unit, size=5, symbol="circle-open"))
    shapes = []
    if series.window is not None:
        first, stop = (_offset(view) + np.array(series.window)) / time.size
        shapes.append(upright(float(first), float(stop), Colour.WINDOW))
    if target is not None:
        ends = np.array([at[0], at[-1]]) if len(at) else np.array([0.0, series.duration_s])
        aim = [target, target]
        traces.append(line("target", ends, aim, Colour.TARGET, unit, dash="dash", width=1.5))
    return _over_seconds(
        view,
        f"Throughput of the fleet, {_layer_name(layer)}{scaled(view.spec.scale)}",
        f"{unit.name}, {_layer_name(layer)}",
        traces,
        note="shaded: the window of the headline",
        shapes=shapes,
    )


def band(view: BurstView) -> Figure:
    """Return p5, median and p95 of the pairs in each second, with the flows one after another."""
    flows = view.series.flows
    unit = rate_unit(np.concatenate([flow.pair_p95_bits_per_second for flow in flows]).tolist())
    at = _places(view)
    traces: list[Trace] = []
    for number, flow in enumerate(flows):
        of = "" if len(flows) == 1 else f" {flow.flow.value}"
        group = flow.flow.value
        colour = Colour.FLEET if number == 0 else Colour.OTHER
        edge = {"width": 1, "dash": "dot" if number == 0 else "dashdot"}
        low, high, middle = (
            _inside(view, values)
            for values in (
                flow.pair_p5_bits_per_second,
                flow.pair_p95_bits_per_second,
                flow.pair_p50_bits_per_second,
            )
        )
        top = line(f"p95{of}", at, high, colour, unit, legendgroup=group)
        bottom = line(f"p5{of}", at, low, colour, unit, legendgroup=group)
        for trace in (top, bottom):
            trace["line"] |= edge
        if number == 0 and not _gaps(low) and not _gaps(high):
            # Plotly would fill across gaps, so a band with gaps is not filled.
            bottom |= {"fill": "tonexty", "fillcolor": Colour.FLEET_BAND}
        traces += [
            top,
            bottom,
            line(f"median{of}", at, middle, colour, unit, width=2.25, legendgroup=group),
        ]
    return _over_seconds(
        view,
        f"Pairs' rates: p5, median, p95, payload{scaled(view.spec.scale)}",
        f"{unit.name} a pair, payload",
        traces,
    )


def heatmap(view: BurstView) -> Figure:
    """Return the rate of each pair in each second, for all flows. Unknown seconds are empty."""
    series = view.series
    cells: NDArray[np.float64] = np.asarray(
        np.sum(series.pair_rates(len(view.summary.pairs)), axis=0, dtype=np.float64)
    )
    width = max(1, -(-cells.size // HEAT_CELLS_MAX))
    means = _column_means(cells, width)
    top = float(np.nanmax(means)) if not np.isnan(means).all() else 0.0
    unit = rate_unit([top])
    time = time_unit(series.duration_s)
    start = _offset(view) + np.arange(means.shape[1]) * width
    planned_s = series.duration_s + series.omit_s
    shown = (start + width > 0) & (start < planned_s)
    means, start = means[:, shown], start[shown]
    names = [str(pair.pair_index + 1) for pair in view.summary.pairs]
    trace: Trace = {
        "type": "heatmap",
        "x": numbers((start + width / 2) / time.size),
        "y": [int(name) for name in names] or list(range(1, len(means) + 1)),
        "z": [numbers(row, unit.size) for row in means],
        "zmin": 0,
        "zmax": top / unit.size,
        "colorscale": [list(stop) for stop in HEAT],
        "hoverongaps": False,
        "hovertemplate": "pair %{y}, second %{x}: %{z:.4~g} " + unit.name + "<extra></extra>",
        "colorbar": {"title": {"text": f"{unit.name}, payload"}, "thickness": 12},
    }
    each = "" if width == 1 else f"mean over {width} s; "
    return frame(
        f"Pairs by second, payload received{scaled(view.spec.scale)}",
        _x_title(time, f"{each}grey: not seen"),
        "pair",
        [trace],
        plot_bgcolor=Colour.UNKNOWN,
        hovermode="closest",
        x_axis={"range": [0.0, planned_s / time.size]},
        y_axis={
            "rangemode": "normal",
            "autorange": "reversed",
            "showgrid": False,
            "tickformat": "d",
        },
    )


def rtt(view: BurstView) -> Figure:
    """Return the mean round-trip time that the senders' kernels report."""
    return _by_flow(
        view,
        "Round-trip time, mean over the sending pairs (TCP)",
        "ms, TCP round trip",
        MILLISECONDS,
        [flow.rtt_mean_s for flow in view.series.flows],
    )


def retransmits(view: BurstView) -> Figure:
    """Return the retransmitted segments of all pairs in each second."""
    return _by_flow(
        view,
        "Retransmitted segments of the fleet (TCP)",
        "segments a second, TCP",
        Unit(name="", size=1.0),
        [flow.retransmits_count for flow in view.series.flows],
    )


def cpu(view: BurstView) -> Figure:
    """Return the mean utilization of all cores, for clients and servers."""
    return _two_lines(
        view,
        "CPU, mean over hosts of all cores' busy share",
        "% of all cores, host",
        PERCENT,
        {"clients": view.series.client_cpu_ratio, "servers": view.series.server_cpu_ratio},
        y_axis={"range": [0, 100]},
    )


def _by_flow(
    view: BurstView, title: str, y_title: str, unit: Unit, values: Sequence[Floats]
) -> Figure:
    flows = view.series.flows
    names = [flow.flow.value for flow in flows] if len(flows) > 1 else [y_title.split(",")[0]]
    return _two_lines(view, title, y_title, unit, dict(zip(names, values, strict=True)))


def _two_lines(
    view: BurstView,
    title: str,
    y_title: str,
    unit: Unit,
    values: Mapping[str, Floats],
    **layout: Any,
) -> Figure:
    """Return a chart of at most two named quantities. The second line is dashed."""
    looks = ((Colour.FLEET, "solid"), (Colour.OTHER, "dash"))
    traces = [
        line(name, _places(view), _inside(view, of), colour, unit, dash=dash)
        for (name, of), (colour, dash) in zip(values.items(), looks, strict=False)
    ]
    return _over_seconds(view, title, y_title, traces, **layout)


def _over_seconds(
    view: BurstView,
    title: str,
    y_title: str,
    traces: Sequence[Trace],
    *,
    note: str = "",
    **layout: Any,
) -> Figure:
    time = time_unit(view.series.duration_s)
    record_interval = {"range": _range(view, time)}
    return frame(title, _x_title(time, note), y_title, traces, x_axis=record_interval, **layout)


def _layer_name(layer: Layer) -> str:
    return "IP layer" if layer is Layer.IP else "payload"


def _x_title(time: Unit, note: str = "") -> str:
    return f"{time.name} since the planned start" + (f" ({note})" if note else "")


def _offset(view: BurstView) -> float:
    """Return the time from the planned start to the first second of the grid, in s."""
    return view.series.start_s - view.series.planned_start_s


def _middles(view: BurstView) -> Floats:
    """Return the middle of each second, in s after the planned start."""
    count = len(view.series.coverage_ratio)
    return np.asarray(_offset(view) + np.arange(count, dtype=np.float64) + 0.5)


def _places(view: BurstView) -> Floats:
    """Return the middle of each second on the x axis."""
    return _middles(view) / time_unit(view.series.duration_s).size


def _range(view: BurstView, time: Unit) -> list[float]:
    """Return the range of the x axis, from the planned burst to a little after its end.

    The tail of a late pair is not shown.
    """
    planned_s = view.series.duration_s + view.series.omit_s
    return [min(0.0, _offset(view)) / time.size, (planned_s + max(2, planned_s // 20)) / time.size]


def _inside(view: BurstView, values: Floats) -> Floats:
    """Blank the seconds that are not wholly inside the planned burst, because they are partial."""
    middles = _middles(view)
    planned_s = view.series.duration_s + view.series.omit_s
    return np.where((middles > 0) & (middles < planned_s), values, np.nan)


def _blanked(values: Floats, coverage: Floats) -> Floats:
    """Blank the seconds without data of any pair, because they are unknown and not zero."""
    return np.where(coverage > 0, values, np.nan)


def _sent(view: BurstView) -> Floats:
    """Return the sent payload in bit/s. It is unknown in seconds without sender data."""
    return np.asarray(np.sum([flow.sent_bytes for flow in view.series.flows], axis=0) * 8)


def _ledger_steps(
    view: BurstView, held: Reconciliation | None, factor: float
) -> tuple[Floats, Floats, str] | None:
    """Return the counter samples near the burst as steps, with a legend label.

    Returns:
        x in s, y in bit/s at the chart's layer, and label. None without samples.
    """
    ledger = view.ledger
    if ledger is None or held is None:
        return None
    lag_s = held.lag_s if held.lag_s is not None else (ledger.lag_hint_s or 0.0)
    start = ledger.start_s - lag_s - view.series.planned_start_s
    end = ledger.end_s - lag_s - view.series.planned_start_s
    time = time_unit(view.series.duration_s)
    first, last = (edge * time.size for edge in _range(view, time))
    near = (end > first) & (start < last)
    if not near.any():
        return None
    rate = ledger.bytes[near] * 8 / (end[near] - start[near]) / held.overhead_ratio * factor
    # Each sample is a separate step, so gaps between samples remain visible.
    x = np.column_stack((start[near].clip(first), end[near].clip(None, last))).ravel()
    y = np.column_stack((rate, rate)).ravel()
    shift = "lag unknown" if held.lag_s is None else f"{formatting.time(lag_s)} lag taken off"
    return x, y, f"firewall ledger ({held.source}, {shift})"


def _column_means(cells: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return means of ``width`` adjacent columns over known cells. NaN if all are unknown."""
    if width == 1:
        return cells
    count = -(-cells.shape[1] // width)
    padded = np.full((cells.shape[0], count * width), np.nan)
    padded[:, : cells.shape[1]] = cells
    grouped = padded.reshape(cells.shape[0], count, width)
    known = (~np.isnan(grouped)).sum(axis=2)
    total = np.nansum(grouped, axis=2)
    means: NDArray[np.float64] = np.full(total.shape, np.nan)
    np.divide(total, known, out=means, where=known > 0)
    return means


def _gaps(values: Floats) -> bool:
    """Return True if there is an unknown value between known ones, or no known value."""
    known = np.flatnonzero(~np.isnan(values))
    return not len(known) or len(known) <= known[-1] - known[0]
