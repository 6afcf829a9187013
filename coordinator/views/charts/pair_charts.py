"""Charts of one burst by pair."""

from typing import Final

from broadside.coordinator.core.summary import State
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.views.charts.chart_inputs import BurstView, scaled
from broadside.coordinator.views.charts.figure import (
    MILLISECONDS,
    Figure,
    bars,
    frame,
    level,
    marks,
    rate_unit,
    whiskers,
)
from broadside.coordinator.views.charts.theme import Colour, state_look

NOTHING: Final = "nothing received in the window"


def pair_rates(view: BurstView) -> Figure:
    """Return the mean payload rate of each pair over the fleet's window.

    Pairs that were not measured show the reason.
    """
    pairs = view.summary.pairs
    rates = [pair.received_bits_per_second for pair in pairs]
    unit = rate_unit(rates)
    traces = []
    for state in State:
        rows = [pair for pair in pairs if pair.state is state]
        if rows:
            colour, hatch = state_look(state)
            traces.append(
                bars(
                    state.value,
                    [pair.pair_index + 1 for pair in rows],
                    [pair.received_bits_per_second for pair in rows],
                    colour,
                    unit,
                    hatch=hatch,
                    # Relative to one pair. By default, plotly uses the distance between pairs of
                    # one state.
                    width=0.8,
                    customdata=[pair.reason or "" for pair in rows],
                    hovertemplate="pair %{x}: %{y:.4~g} " + unit.name + " %{customdata}",
                )
            )
    nothing = [pair for pair in pairs if not pair.received_bits_per_second]
    if nothing:
        traces.append(
            marks(
                NOTHING,
                [pair.pair_index + 1 for pair in nothing],
                [0.0] * len(nothing),
                Colour.MISSING,
                unit,
                size=8,
                symbol="x",
                customdata=[f"{pair.state.value}: {pair.reason}" for pair in nothing],
                hovertemplate="pair %{x}: %{customdata}<extra></extra>",
            )
        )
    lead = view.summary.flows[0] if len(view.summary.flows) == 1 else None
    middle = None if lead is None else lead.pair_median_bits_per_second
    return frame(
        f"Mean rate of each pair over the window, payload{scaled(view.spec.scale)}",
        "pair" + ("" if middle is None else " (dashed: median)"),
        f"{unit.name}, payload",
        traces,
        shapes=[] if middle is None else [level(middle / unit.size, Colour.TARGET)],
        hovermode="closest",
        barmode="overlay",
        x_axis={"tickformat": "d"},
        showlegend=True,
    )


def starts(view: BurstView) -> Figure:
    """Return the start error of each pair's first data, with the uncertainty of its clock.

    The axis title names the pairs that are later than the run's tolerance, because they would
    flatten all other pairs.
    """
    seen = [
        (pair, pair.start_error_s) for pair in view.summary.pairs if pair.start_error_s is not None
    ]
    rows = [(pair, error) for pair, error in seen if abs(error) <= view.spec.late_after_s]
    late = [(pair, error) for pair, error in seen if abs(error) > view.spec.late_after_s]
    said = ", ".join(f"{pair.pair} at {error:.1f} s" for pair, error in late[:3])
    more = f" and {len(late) - 3} more" if len(late) > 3 else ""
    beyond = f"; beyond the scale: {said}{more}" if late else ""
    bounds = [pair.clock_bound_s for pair, _ in rows]
    return frame(
        "First data of each pair, from the planned instant",
        f"pair (whiskers: the clock's own bound{beyond})",
        "ms after the planned start, UTC",
        [
            marks(
                "first data",
                [pair.pair_index + 1 for pair, _ in rows],
                [error for _, error in rows],
                Colour.FLEET,
                MILLISECONDS,
                error_y=whiskers(bounds, MILLISECONDS, Colour.SENT, width=2),
                hovertemplate="pair %{x}: %{y:.4~g} ms<extra></extra>",
            )
        ],
        hovermode="closest",
        x_axis={"tickformat": "d"},
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
    series = (
        ("before, p50", [path.before.p50_s for _, path in probed], Colour.SENT, 6, "circle-open"),
        ("under load, p50", [path.during.p50_s for _, path in probed], Colour.FLEET, 6, "circle"),
        (
            "under load, p99",
            [path.during.p99_s for _, path in probed],
            Colour.LEDGER,
            10,
            "circle-open",
        ),
    )
    return frame(
        "Round trips of each pair's probes, before and under load",
        "pair",
        "ms, round trip",
        [
            marks(name, x, values, colour, MILLISECONDS, size=size, symbol=symbol)
            for name, values, colour, size, symbol in series
        ],
        x_axis={"tickformat": "d"},
    )
