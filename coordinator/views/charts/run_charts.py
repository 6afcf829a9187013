"""Charts of a run by burst."""

from typing import Final

from broadside.coordinator.core.metrics import (
    RECEIVED_HALF_WIDTH,
    Layer,
    layer_label,
    received_at,
)
from broadside.coordinator.core.summary import BurstSummary, SecondState
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.views.charts.figure import (
    PERCENT,
    ChartAxis,
    Figure,
    Level,
    bar_series,
    point_series,
    rate_unit,
)
from broadside.coordinator.views.charts.inputs import RunView, scale_note
from broadside.coordinator.views.charts.theme import Colour, state_style

# Maximum number of bars. More bursts are drawn as points.
BARS_MAX: Final = 40


def burst_rates(view: RunView) -> Figure:
    """Return the rate of each burst over its window, with the device counter at the same layer."""
    rows = view.summary.bursts
    layer = view.spec.objective.layer
    target = view.spec.scaled_target_bits_per_second
    fleet = [_fleet_rate(layer, burst) for burst in rows]
    device = [_device_rate(layer, burst) for burst in rows]
    unit = rate_unit([*fleet, *device, target])
    x = [burst.index + 1 for burst in rows]
    draw = bar_series if len(rows) <= BARS_MAX else point_series
    half = [_half_width(layer, burst) for burst in rows]
    drawn = [draw("fleet received", x, fleet, Colour.FLEET, unit, half_width=half)]
    if any(value is not None for value in device):
        drawn.append(draw("device counter", x, device, Colour.COUNTER, unit))
    name = layer_label(layer)
    note = "error bars: 95 % interval" + ("; dashed: target" if target else "")
    return Figure(
        title=f"Rate of each burst, {name}{scale_note(view.spec.scale)}",
        x=ChartAxis(title=f"burst ({note})", is_integer=True),
        y=ChartAxis(title=f"{unit.name}, {name}"),
        series=drawn,
        levels=[Level(at=target / unit.size, colour=Colour.TARGET)] if target else None,
    )


def completeness(view: RunView) -> Figure:
    """Return the planned pair-seconds by state, for each burst."""
    rows = view.summary.bursts
    drawn = []
    for state in SecondState:
        ratios = [
            burst.completeness.seconds(state) / max(1, burst.completeness.planned_s)
            for burst in rows
        ]
        if any(ratios):
            colour, hatch = state_style(state)
            x = [burst.index + 1 for burst in rows]
            drawn.append(bar_series(state.value, x, ratios, colour, PERCENT, hatch=hatch))
    return Figure(
        title="Planned pair-seconds by state",
        x=ChartAxis(title="burst", is_integer=True),
        y=ChartAxis(title="% of planned pair-seconds", range=(0, 100)),
        series=drawn,
        bars="stack",
        has_legend=True,
    )


def residuals(view: RunView) -> Figure:
    """Return the residual of each burst with its uncertainty.

    Raises:
        NoChart: No burst has a residual.
    """
    rows = [
        (burst.index + 1, burst.reconciliation)
        for burst in view.summary.bursts
        if burst.reconciliation is not None
    ]
    values = [result.residual_ratio for _, result in rows]
    if all(value is None for value in values):
        raise NoChart("residuals: the run has no reconciliation with a device counter")
    half = [result.residual_uncertainty_ratio for _, result in rows]
    x = [number for number, _ in rows]
    limit = view.spec.objective.residual_max_ratio
    reach = max(limit, *(abs(value) for value in values if value is not None))
    reach = 105 * (reach + max((value for value in half if value is not None), default=0.0))
    return Figure(
        title="Residual of each burst",
        x=ChartAxis(title="burst (error bars: 95 % uncertainty; dotted: limit)", is_integer=True),
        y=ChartAxis(title="% of expected bytes", range=(-reach, reach)),
        series=[bar_series("residual", x, values, Colour.FLEET, PERCENT, half_width=half)],
        levels=[Level(at=sign * limit * 100, colour=Colour.SENT, dash="dot") for sign in (1, -1)],
    )


def _fleet_rate(layer: Layer, burst: BurstSummary) -> float | None:
    """Return the rate that the fleet received in a burst's window, in bit/s at the layer."""
    return received_at(layer).of_burst(burst)


def _half_width(layer: Layer, burst: BurstSummary) -> float | None:
    half = RECEIVED_HALF_WIDTH.of_burst(burst)
    return None if half is None else half * (burst.header_ratio if layer is Layer.IP else 1.0)


def _device_rate(layer: Layer, burst: BurstSummary) -> float | None:
    """Return the device counter's rate, converted from its own layer to the chart's layer."""
    result = burst.reconciliation
    if result is None or result.firewall_bits_per_second is None:
        return None
    payload = result.firewall_bits_per_second / result.overhead_ratio
    return payload * (burst.header_ratio if layer is Layer.IP else 1.0)
