"""Charts of one burst by pair."""

from broadside.coordinator.core.summary import SecondState
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.views.charts.figure import (
    MILLISECONDS,
    ChartAxis,
    Figure,
    Level,
    bar_series,
    point_series,
    rate_unit,
)
from broadside.coordinator.views.charts.inputs import BurstView, scale_note
from broadside.coordinator.views.charts.theme import Colour, state_style


def pair_rates(view: BurstView) -> Figure:
    """Return the mean payload rate of each pair over the fleet's window, by state.

    Pairs without a rate are marked at zero.
    """
    pairs = view.summary.pairs
    unit = rate_unit([pair.received_bits_per_second for pair in pairs])
    drawn = []
    for state in SecondState:
        rows = [pair for pair in pairs if pair.state is state]
        if rows:
            colour, hatch = state_style(state)
            x = [pair.pair_index + 1 for pair in rows]
            rates = [pair.received_bits_per_second for pair in rows]
            notes = [pair.reason or "" for pair in rows]
            drawn.append(bar_series(state.value, x, rates, colour, unit, hatch=hatch, notes=notes))
    empty = [pair.pair_index + 1 for pair in pairs if not pair.received_bits_per_second]
    if empty and any(pair.received_bits_per_second is not None for pair in pairs):
        zeros = [0.0] * len(empty)
        name = "no data received in the window"
        drawn.append(point_series(name, empty, zeros, Colour.MISSING, unit, size=8, symbol="cross"))
    flows = view.summary.flows
    median = flows[0].pair_median_bits_per_second if len(flows) == 1 else None
    return Figure(
        title=f"Mean rate of each pair over the window, payload{scale_note(view.spec.scale)}",
        x=ChartAxis(
            title="pair" + ("" if median is None else " (dashed: median)"), is_integer=True
        ),
        y=ChartAxis(title=f"{unit.name}, payload"),
        series=drawn,
        levels=[] if median is None else [Level(at=median / unit.size, colour=Colour.TARGET)],
        bars="overlay",
        has_legend=True,
    )


def start_errors(view: BurstView) -> Figure:
    """Return the start error of each pair's first data, with the uncertainty of its clock.

    The axis title names the pairs that are later than the run's tolerance, because they would
    flatten all other pairs.
    """
    known = [
        (pair, pair.start_error_s) for pair in view.summary.pairs if pair.start_error_s is not None
    ]
    rows = [(pair, error) for pair, error in known if abs(error) <= view.spec.late_after_s]
    late = [(pair, error) for pair, error in known if abs(error) > view.spec.late_after_s]
    named = ", ".join(f"{pair.pair} at {error:.1f} s" for pair, error in late[:3])
    more = f" and {len(late) - 3} more" if len(late) > 3 else ""
    outside = f"; outside the scale: {named}{more}" if late else ""
    return Figure(
        title="Start error of each pair (first data, relative to the planned start)",
        x=ChartAxis(title=f"pair (error bars: clock uncertainty{outside})", is_integer=True),
        y=ChartAxis(title="ms after the planned start, UTC"),
        series=[
            point_series(
                "first data",
                [pair.pair_index + 1 for pair, _ in rows],
                [error for _, error in rows],
                Colour.FLEET,
                MILLISECONDS,
                half_width=[pair.clock_bound_s for pair, _ in rows],
            )
        ],
    )


def latency(view: BurstView) -> Figure:
    """Return round-trip times of each pair's probes, idle before the burst and under load.

    Raises:
        NoChart: The burst has no probes.
    """
    if view.summary.latency is None:
        raise NoChart(f"latency: burst {view.summary.index + 1} has no probes (traffic.probe=udp)")
    probed = [(pair.pair_index + 1, pair.latency) for pair in view.summary.pairs if pair.latency]
    x = [index for index, _ in probed]
    # Rings do not hide another p50 with the same value.
    rows = (
        ("before load, p50", [path.before.p50_s for _, path in probed], Colour.SENT, 6, "ring"),
        ("under load, p50", [path.during.p50_s for _, path in probed], Colour.FLEET, 6, "circle"),
        ("under load, p99", [path.during.p99_s for _, path in probed], Colour.COUNTER, 10, "ring"),
    )
    return Figure(
        title="Probe round-trip time of each pair, before and under load",
        x=ChartAxis(title="pair", is_integer=True),
        y=ChartAxis(title="ms, round-trip time"),
        series=[
            point_series(name, x, values, colour, MILLISECONDS, size=size, symbol=symbol)
            for name, values, colour, size, symbol in rows
        ],
    )
