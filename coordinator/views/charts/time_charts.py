"""Charts of one burst by second. The x axis starts at the planned start."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core import formatting
from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.reconciliation.counter_bins import fleet_curve
from broadside.coordinator.core.measure.device.device_metrics import seconds_of_devices
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import KINDS, Quantity
from broadside.coordinator.core.metrics import Layer, layer_label
from broadside.coordinator.core.summary import BurstPart, Reconciliation
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.views.charts.figure import (
    MILLISECONDS,
    PERCENT,
    ChartAxis,
    ChartSeries,
    DisplayUnit,
    Figure,
    HeatMap,
    line_series,
    numbers,
    point_series,
    rate_unit,
    time_unit,
)
from broadside.coordinator.views.charts.inputs import BurstView, scale_note
from broadside.coordinator.views.charts.theme import Colour
from broadside.exchange.chunks import MICROSECONDS

# Larger bursts are drawn with means over several seconds.
HEAT_CELLS_MAX: Final = 200_000
_COLOURS: Final = (Colour.FLEET, Colour.OTHER, Colour.SENT, Colour.TARGET, Colour.WARN)
# The chart of the device counter shows bits with their layer, and the section of units shows units.
_OTHER_CHARTS: Final = (Quantity.RECEIVED, Quantity.SENT, Quantity.SEEN_UNITS)
# Tolerance for rounding of the stored coverage, relative to the planned pairs.
COVERAGE_TOLERANCE_RATIO: Final = 1e-4


def throughput(view: BurstView) -> Figure:
    """Return the fleet's rate at the target's layer, with the target and the device counter.

    The burst's header ratio converts payload to the IP layer. The device counter is shifted by its
    lag. The overhead ratio of its reconciliation converts it to the same layer.
    """
    spec, data = view.spec, view.series
    layer = spec.objective.layer
    factor = view.summary.header_ratio if layer is Layer.IP else 1.0
    # Seconds without data of any pair are unknown and not zero.
    received = np.where(data.coverage_ratio > 0, data.received_bytes * 8 * factor, np.nan)
    sent = np.asarray(np.sum([flow.sent_bytes for flow in data.flows], axis=0) * 8) * factor
    target = spec.scaled_target_bits_per_second
    unit = rate_unit([*received.tolist(), *sent.tolist(), target])
    time = time_unit(data.duration_s)
    x = _seconds(view)
    drawn = _counter_series(view, factor, unit)
    drawn += [
        line_series("fleet sent", x, sent, Colour.SENT, unit, dash="dot", width=1.25),
        line_series("fleet received", x, received, Colour.FLEET, unit, width=2.25),
    ]
    coverage = _in_burst(view, data.coverage_ratio)
    best = np.nanmax(coverage) if not np.isnan(coverage).all() else 0.0
    partial = np.where(coverage < best - COVERAGE_TOLERANCE_RATIO, received, np.nan)
    if not np.isnan(partial).all():
        name = "seconds without data of some pairs"
        drawn.append(point_series(name, x, partial, Colour.WARN, unit, size=5, symbol="ring"))
    spans = []
    if data.window is not None:
        first, stop = (_offset_s(view) + np.array(data.window)) / time.size
        spans = [(float(first), float(stop))]
    if target is not None:
        ends = np.array([x[0], x[-1]]) if len(x) else np.array([0.0, data.duration_s])
        constant = [target, target]
        drawn.append(line_series("target", ends, constant, Colour.TARGET, unit, dash="dash"))
    return _by_second(
        view,
        f"Throughput of the fleet, {layer_label(layer)}{scale_note(spec.scale)}",
        ChartAxis(title=f"{unit.name}, {layer_label(layer)}"),
        drawn,
        shaded=("measurement window", spans),
    )


def parts(view: BurstView) -> Figure:
    """Return the rate and the connections of each traffic, relative to the highest second.

    A run that is not mixed has no lines here: the throughput shows its rate.
    """
    data = view.series
    received = np.where(data.coverage_ratio > 0, data.received_bytes * 8, np.nan)
    lines = []
    if view.summary.parts:
        lines.append((view.spec.part_names[0], _seconds(view), _in_burst(view, received), False))
    for part in view.summary.parts:
        lines += _lines_of_part(part, data)
    drawn = []
    for number, (name, x, values, is_count) in enumerate(lines):
        best = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
        # A single connection shows nothing.
        if best > is_count:
            text = formatting.count(best) if is_count else formatting.rate(best)
            # Both lines of a part have its colour.
            colour = _COLOURS[(number + 1) // 2 % len(_COLOURS)]
            style: dict[str, Any] = {"dash": "dash" if is_count else "solid", "width": 2.0}
            title = f"{name} (100 %: {text})"
            drawn.append(line_series(title, x, values / best, colour, PERCENT, **style))
    return _by_second(
        view,
        f"Traffic of each part by second{scale_note(view.spec.scale)}",
        ChartAxis(title="% of the highest second"),
        drawn,
    )


def device(view: BurstView) -> Figure:
    """Return what the devices reported in each second, relative to the highest value.

    Several devices are combined as in the verdict. A mean over some time is drawn in its seconds,
    also when this time began before the burst.
    """
    data, margin_s = view.series, 90
    grids: dict[Quantity, Floats] = {}
    if view.telemetry is not None:
        count = len(data.coverage_ratio) + 2 * margin_s
        grids = seconds_of_devices(view.telemetry, data.start_s - margin_s, count)
    x, drawn = _seconds(view), list[ChartSeries]()
    for quantity, grid in grids.items():
        values = grid[margin_s:-margin_s]
        best = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
        if best > 0 and quantity not in _OTHER_CHARTS:
            text = formatting.quantity_text(quantity.unit, best)
            title = f"{KINDS[quantity].label} (100 %: {text})"
            turn, number = divmod(len(drawn), len(_COLOURS))
            style: dict[str, Any] = {"dash": "dash" if turn else "solid"}
            drawn.append(line_series(title, x, values / best, _COLOURS[number], PERCENT, **style))
    return _by_second(
        view, "Telemetry of the device", ChartAxis(title="% of the highest second"), drawn
    )


def _lines_of_part(
    part: BurstPart, data: BurstSeries
) -> Iterator[tuple[str, Floats, Floats, bool]]:
    """Yield name, times and values of the payload rate and of the connections of a part.

    The last item is True for a count.
    """
    start_s = data.planned_start_s if part.start_at is None else part.start_at.timestamp()
    is_held = _highest(part.open_count) > _highest(part.connections_per_second)
    counts = part.open_count if is_held else part.connections_per_second
    for name, seconds, is_count in (
        (part.name, part.received_bits_per_second, False),
        (f"{part.name}, {'open' if is_held else 'established per second'}", counts, True),
    ):
        values = np.array(seconds, dtype=np.float64)
        offset_s = start_s - data.planned_start_s + 0.5
        middles_s = np.asarray(offset_s + np.arange(len(values)), np.float64)
        inside = (middles_s > 0) & (middles_s < data.duration_s)
        x = np.asarray(middles_s[inside] / time_unit(data.duration_s).size, np.float64)
        yield name, x, values[inside], is_count


def _highest(values: Sequence[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def pair_percentiles(view: BurstView) -> Figure:
    """Return p5, median and p95 of the pairs in each second, for each flow."""
    flows = view.series.flows
    unit = rate_unit(np.concatenate([flow.pair_p95_bits_per_second for flow in flows]).tolist())
    x = _seconds(view)
    drawn: list[ChartSeries] = []
    for number, flow in enumerate(flows):
        suffix = "" if len(flows) == 1 else f" {flow.flow.value}"
        colour = Colour.OTHER if number else Colour.FLEET
        dash = "dashdot" if number else "dot"
        p95, p5, median = (
            _in_burst(view, values)
            for values in (
                flow.pair_p95_bits_per_second,
                flow.pair_p5_bits_per_second,
                flow.pair_p50_bits_per_second,
            )
        )
        # A filled area would hide gaps.
        is_filled = not number and not _has_gaps(p95) and not _has_gaps(p5)
        fill = Colour.FLEET_BAND if is_filled else None
        thin: dict[str, Any] = {"dash": dash, "width": 1}
        drawn += [
            line_series(f"p95{suffix}", x, p95, colour, unit, **thin),
            line_series(f"p5{suffix}", x, p5, colour, unit, fill=fill, **thin),
            line_series(f"median{suffix}", x, median, colour, unit, width=2.25),
        ]
    return _by_second(
        view,
        f"Rate of the pairs: p5, median and p95, payload{scale_note(view.spec.scale)}",
        ChartAxis(title=f"{unit.name} per pair, payload"),
        drawn,
    )


def heat_map(view: BurstView) -> Figure:
    """Return the rate of each pair in each second, for all flows. Unknown seconds are empty."""
    data = view.series
    cells: NDArray[np.float64] = np.asarray(
        np.sum(data.pair_rates(len(view.summary.pairs)), axis=0, dtype=np.float64)
    )
    width = max(1, -(-cells.size // HEAT_CELLS_MAX))
    means = _column_means(cells, width)
    unit = rate_unit([float(np.nanmax(means)) if not np.isnan(means).all() else 0.0])
    time = time_unit(data.duration_s)
    start = _offset_s(view) + np.arange(means.shape[1]) * width
    planned_s = data.duration_s + data.omit_s
    is_shown = (start + width > 0) & (start < planned_s)
    means, start = means[:, is_shown], start[is_shown]
    mean_note = "" if width == 1 else f"mean over {width} s; "
    return Figure(
        title=f"Payload received by pair and second{scale_note(view.spec.scale)}",
        x=ChartAxis(
            title=f"{time.name} since the planned start ({mean_note}grey: no data)",
            range=(0.0, planned_s / time.size),
        ),
        y=ChartAxis(title="pair", is_integer=True),
        series=[],
        heat_map=HeatMap(
            x=numbers((start + width / 2) / time.size),
            y=[pair.pair_index + 1 for pair in view.summary.pairs]
            or list(range(1, len(means) + 1)),
            cells=[numbers(row, unit.size) for row in means],
            unit=f"{unit.name}, payload",
        ),
    )


def rtt(view: BurstView) -> Figure:
    """Return the mean round-trip time that the senders' kernels report."""
    values = [flow.rtt_mean_s for flow in view.series.flows]
    return _by_flow(
        view, "TCP round-trip time, mean over senders", "ms, TCP RTT", MILLISECONDS, values
    )


def retransmits(view: BurstView) -> Figure:
    """Return the retransmitted segments of all pairs in each second."""
    values = [flow.retransmits_count for flow in view.series.flows]
    title, unit = "TCP segments retransmitted by the fleet", DisplayUnit(name="", size=1.0)
    return _by_flow(view, title, "segments per second, TCP", unit, values)


# Name and drawing of each outcome. Those that did not occur are not drawn.
_OUTCOMES: Final = (
    ("attempted", Colour.SENT, "dot"),
    ("established", Colour.FLEET, "solid"),
    ("closed", Colour.OTHER, "dash"),
    ("refused", Colour.WARN, "dashdot"),
    ("reset", Colour.MISSING, "dash"),
    ("timed_out", Colour.MISSING, "solid"),
    ("denied", Colour.INK, "dash"),
    ("failed", Colour.INK, "dot"),
    ("dropped", Colour.WARN, "solid"),
)
_TIMES: Final = (
    ("handshake", "handshake", Colour.FLEET),
    ("tls_handshake", "TLS handshake", Colour.OTHER),
    ("first_byte", "first byte", Colour.MISSING),
)


def connections(view: BurstView) -> Figure:
    """Return the attempts of all clients in each second, by outcome."""
    x, events = _seconds(view), view.series.events
    unit = DisplayUnit(name="", size=1.0)
    drawn = [
        line_series(name.replace("_", " "), x, events[name], colour, unit, dash=dash)
        for name, colour, dash in _OUTCOMES
        if name in events and (name == "attempted" or np.nansum(events[name]) > 0)
    ]
    title = f"Connections of the fleet by outcome{scale_note(view.spec.scale)}"
    y = ChartAxis(title="connections per second, TCP")
    return _by_second(view, title, y, drawn, _sustain(view))


def connection_times(view: BurstView) -> Figure:
    """Return median, p99 and maximum of the times of each second, as the largest of a pair."""
    x, events = _seconds(view), view.series.events
    styles: tuple[tuple[str, dict[str, Any]], ...] = (
        ("p50", {"dash": "dot"}),
        ("p99", {"width": 2.25}),
        ("max", {"dash": "dash", "width": 1}),
    )
    drawn = [
        line_series(
            f"{label}, {quantile}",
            x,
            events[f"{name}_{quantile}_us"] / MICROSECONDS,
            colour,
            MILLISECONDS,
            **style,
        )
        for name, label, colour in _TIMES
        for quantile, style in styles
        if f"{name}_{quantile}_us" in events
    ]
    y = ChartAxis(title="ms, since the connection was due")
    title = "Times of connections, largest value of a pair"
    return _by_second(view, title, y, drawn, _sustain(view))


def _sustain(view: BurstView) -> tuple[str, list[tuple[float, float]]] | None:
    """Return name and range of the sustain phase, or None if the load has no ramps."""
    sustain, size = view.series.sustain, time_unit(view.series.duration_s).size
    if sustain is None:
        return None
    name = "sustain phase, between ramp-up and ramp-down"
    return name, [(sustain[0] / size, sustain[1] / size)]


def cpu(view: BurstView) -> Figure:
    """Return the mean utilization of all cores, for clients and servers."""
    values = {"clients": view.series.client_cpu_ratio, "servers": view.series.server_cpu_ratio}
    title = "CPU utilization of the agents' hosts, mean"
    y = ChartAxis(title="% of all cores, host", range=(0, 100))
    return _two_lines(view, title, y, PERCENT, values)


def reconciliation(view: BurstView) -> Figure:
    """Return the device counter's samples beside the fleet's bytes in the same intervals.

    The fleet's bytes include headers and the idle level, which is the rate that the counter shows
    outside the burst. The lag is subtracted from the sample times, so they are times of the
    traffic.

    Raises:
        NoChart: The burst has no reconciliation.
    """
    data, counter, result = view.series, view.device_counter, view.summary.reconciliation
    if counter is None or result is None:
        raise NoChart(f"reconciliation: no device counter for burst {view.summary.index + 1}")
    planned_s = data.omit_s + data.duration_s
    margin_s = 2 * counter.grain_s
    range_s = (-margin_s, planned_s + margin_s)
    start, end, rate = _samples(view, counter, result, range_s)
    curve = fleet_curve((data,)).between(start + data.planned_start_s, end + data.planned_start_s)
    fleet = curve * result.overhead_ratio * 8 / np.maximum(end - start, 1e-9)
    fleet = fleet + (result.baseline_bits_per_second or 0.0)
    unit = rate_unit([*fleet.tolist(), *rate.tolist()])
    time = time_unit(planned_s)
    lag = "unknown" if result.lag_s is None else f"{formatting.time(result.lag_s)}, subtracted"
    x = np.column_stack((start, end)).ravel() / time.size
    name = "fleet received, with headers and idle level"
    return Figure(
        title=f"Device counter and fleet, by counter interval{scale_note(view.spec.scale)}",
        x=ChartAxis(title=f"{time.name} since the planned start (lag {lag})"),
        y=ChartAxis(title=f"{unit.name}, {layer_label(result.layer)}"),
        series=[
            line_series(
                f"device counter ({result.source})", x, rate.repeat(2), Colour.COUNTER, unit
            ),
            line_series(name, x, fleet.repeat(2), Colour.FLEET, unit, dash="dash"),
        ],
    )


def _by_flow(
    view: BurstView, title: str, y_title: str, unit: DisplayUnit, values: Sequence[Floats]
) -> Figure:
    flows = view.series.flows
    names = [flow.flow.value for flow in flows] if len(flows) > 1 else [y_title.split(",")[0]]
    y = ChartAxis(title=y_title)
    return _two_lines(view, title, y, unit, dict(zip(names, values, strict=True)))


def _two_lines(
    view: BurstView,
    title: str,
    y: ChartAxis,
    unit: DisplayUnit,
    values: Mapping[str, Floats],
) -> Figure:
    """Return a chart of at most two named quantities. The second line is dashed."""
    checks = ((Colour.FLEET, "solid"), (Colour.OTHER, "dash"))
    x = _seconds(view)
    drawn = [
        line_series(name, x, _in_burst(view, ratios), colour, unit, dash=dash)
        for (name, ratios), (colour, dash) in zip(values.items(), checks, strict=False)
    ]
    return _by_second(view, title, y, drawn)


def _by_second(
    view: BurstView,
    title: str,
    y: ChartAxis,
    drawn: list[ChartSeries],
    shaded: tuple[str, list[tuple[float, float]]] | None = None,
) -> Figure:
    """Return a chart over the seconds of a burst. ``shaded`` is a name and ranges of x."""
    note = "" if shaded is None else f" (shaded: {shaded[0]})"
    time = time_unit(view.series.duration_s)
    first_s, last_s = _range_s(view)
    x_title = f"{time.name} since the planned start{note}"
    return Figure(
        title=title,
        x=ChartAxis(title=x_title, range=(first_s / time.size, last_s / time.size)),
        y=y,
        series=drawn,
        spans=None if shaded is None else shaded[1],
    )


def _offset_s(view: BurstView) -> float:
    """Return the time from the planned start to the first second of the grid, in s."""
    return view.series.start_s - view.series.planned_start_s


def _middles_s(view: BurstView) -> Floats:
    """Return the middle of each second, in s after the planned start."""
    count = len(view.series.coverage_ratio)
    return np.asarray(_offset_s(view) + np.arange(count, dtype=np.float64) + 0.5)


def _seconds(view: BurstView) -> Floats:
    """Return the middle of each second on the x axis."""
    return _middles_s(view) / time_unit(view.series.duration_s).size


def _range_s(view: BurstView) -> tuple[float, float]:
    """Return the range of the x axis, from the planned burst to a little after its end.

    The tail of a late pair is not shown.
    """
    planned_s = view.series.duration_s + view.series.omit_s
    return min(0.0, _offset_s(view)), planned_s + max(2, planned_s // 20)


def _in_burst(view: BurstView, values: Floats) -> Floats:
    """Blank the seconds that are not wholly inside the planned burst, because they are partial."""
    middles = _middles_s(view)
    planned_s = view.series.duration_s + view.series.omit_s
    return np.where((middles > 0) & (middles < planned_s), values, np.nan)


def _samples(
    view: BurstView,
    counter: CounterRecord,
    result: Reconciliation,
    range_s: tuple[float, float],
) -> tuple[Floats, Floats, Floats]:
    """Return start, end and rate in bit/s of the counter samples that overlap a range.

    Times are in s after the planned start, without the lag.
    """
    lag_s = result.lag_s if result.lag_s is not None else (counter.lag_hint_s or 0.0)
    start = counter.start_s - lag_s - view.series.planned_start_s
    end = counter.end_s - lag_s - view.series.planned_start_s
    overlaps = (end > range_s[0]) & (start < range_s[1])
    start, end = start[overlaps], end[overlaps]
    return start, end, counter.bytes[overlaps] * 8 / np.maximum(end - start, 1e-9)


def _counter_series(view: BurstView, factor: float, unit: DisplayUnit) -> list[ChartSeries]:
    """Return the counter samples near the burst as steps at the chart's layer."""
    result = view.summary.reconciliation
    if view.device_counter is None or result is None:
        return []
    range_s = _range_s(view)
    start, end, rate = _samples(view, view.device_counter, result, range_s)
    if not len(start):
        return []
    rate = rate / result.overhead_ratio * factor
    x = np.column_stack((start.clip(range_s[0]), end.clip(None, range_s[1]))).ravel()
    lag = (
        "lag unknown" if result.lag_s is None else f"{formatting.time(result.lag_s)} lag subtracted"
    )
    name = f"device counter ({result.source}, {lag})"
    x = x / time_unit(view.series.duration_s).size
    return [line_series(name, x, rate.repeat(2), Colour.COUNTER, unit)]


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


def _has_gaps(values: Floats) -> bool:
    """Return True if there is an unknown value between known ones, or no known value."""
    known = np.flatnonzero(~np.isnan(values))
    return not len(known) or len(known) <= known[-1] - known[0]
