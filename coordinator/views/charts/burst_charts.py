"""Charts of a run by burst."""

from typing import Final

import numpy as np

from broadside.coordinator.core.metrics import RECEIVED, RECEIVED_HALF_WIDTH, RECEIVED_IP, Layer
from broadside.coordinator.core.summary import BurstSummary, State
from broadside.coordinator.views.charts.chart_inputs import RunView, scaled
from broadside.coordinator.views.charts.figure import (
    PERCENT,
    Figure,
    bars,
    frame,
    level,
    line,
    marks,
    rate_unit,
    time_unit,
    whiskers,
)
from broadside.coordinator.views.charts.theme import Colour, state_look

# Maximum number of bars. More bursts are drawn as points.
BARS_MAX: Final = 40


def burst_rates(view: RunView) -> Figure:
    """Return the rate of each burst over its window, with the firewall's rate at the same layer."""
    rows = view.summary.bursts
    layer = view.spec.objective.layer
    target = view.spec.scaled_target_bits_per_second
    rates = [rate_at(layer, burst) for burst in rows]
    halves = [_half_at(layer, burst) for burst in rows]
    firewall = [_firewall_at(layer, burst) for burst in rows]
    unit = rate_unit([*rates, *firewall, target])
    x = [burst.index + 1 for burst in rows]
    name = "IP layer" if layer is Layer.IP else "payload"
    draw = bars if len(rows) <= BARS_MAX else marks
    traces = [
        draw(
            "fleet received",
            x,
            rates,
            Colour.FLEET,
            unit,
            error_y=whiskers(halves, unit, Colour.INK),
        )
    ]
    if any(value is not None for value in firewall):
        traces.append(draw("firewall ledger", x, firewall, Colour.LEDGER, unit))
    return frame(
        f"Bursts: fleet{' and firewall' if len(traces) > 1 else ''}, {name}"
        + scaled(view.spec.scale),
        "burst (whiskers: 95 % interval" + (", dashed: target)" if target else ")"),
        f"{unit.name}, {name}",
        traces,
        shapes=[level(target / unit.size, Colour.TARGET)] if target else [],
        x_axis={"tickformat": "d"},
        barmode="group",
    )


def trend(view: RunView) -> Figure:
    """Return the rates of the bursts over time, with a straight trend line."""
    layer = view.spec.objective.layer
    rows = [burst for burst in view.summary.bursts if rate_at(layer, burst) is not None]
    rates = np.array([rate_at(layer, burst) or np.nan for burst in rows])
    begun = view.summary.bursts[0].planned_start_at
    elapsed_s = np.array([(b.planned_start_at - begun).total_seconds() for b in rows])
    time = time_unit(float(elapsed_s.max(initial=0.0)))
    at = elapsed_s / time.size
    target = view.spec.scaled_target_bits_per_second
    unit = rate_unit([*rates.tolist(), target])
    fitted = np.polyval(np.polyfit(at, rates, 1), at) if len(rows) > 2 else rates
    name = "IP layer" if layer is Layer.IP else "payload"
    return frame(
        f"Trend over the bursts, {name}{scaled(view.spec.scale)}",
        f"{time.name} since the first burst, {begun:%Y-%m-%d %H:%M:%S} UTC",
        f"{unit.name}, {name}",
        [
            marks("fleet received", at, rates, Colour.FLEET, unit),
            line("least squares", at, fitted, Colour.LEDGER, unit, dash="dash"),
        ],
        shapes=[level(target / unit.size, Colour.TARGET)] if target else [],
    )


def completeness(view: RunView) -> Figure:
    """Return the planned pair-seconds by state, for each burst."""
    rows = view.summary.bursts
    traces = []
    for state in State:
        seconds = [burst.completeness.seconds(state) for burst in rows]
        if any(seconds):
            colour, hatch = state_look(state)
            planned = [max(1, burst.completeness.planned_s) for burst in rows]
            traces.append(
                bars(
                    state.value,
                    [burst.index + 1 for burst in rows],
                    [s / p for s, p in zip(seconds, planned, strict=True)],
                    colour,
                    PERCENT,
                    hatch=hatch,
                )
            )
    return frame(
        "Completeness: planned pair-seconds by state",
        "burst",
        "% of planned pair-seconds",
        traces,
        barmode="stack",
        showlegend=True,
        x_axis={"tickformat": "d"},
        y_axis={"range": [0, 100]},
    )


def rate_at(layer: Layer, burst: BurstSummary) -> float | None:
    """Return the rate that the fleet received in a burst's window, in bit/s at the layer."""
    return (RECEIVED_IP if layer is Layer.IP else RECEIVED).of_burst(burst)


def _half_at(layer: Layer, burst: BurstSummary) -> float | None:
    half = RECEIVED_HALF_WIDTH.of_burst(burst)
    return None if half is None else half * (burst.header_ratio if layer is Layer.IP else 1.0)


def _firewall_at(layer: Layer, burst: BurstSummary) -> float | None:
    """Return the firewall's rate, converted from its own layer to the chart's layer."""
    held = burst.reconciliation
    if held is None or held.firewall_bits_per_second is None:
        return None
    payload = held.firewall_bits_per_second / held.overhead_ratio
    return payload * (burst.header_ratio if layer is Layer.IP else 1.0)
