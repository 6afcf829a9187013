"""Charts that compare the firewall counter with the fleet's bytes."""

import numpy as np

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.reconciliation.counter_bins import fleet_curve
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.views.charts.chart_inputs import BurstView, RunView, scaled
from broadside.coordinator.views.charts.figure import (
    PERCENT,
    Figure,
    bars,
    frame,
    level,
    line,
    rate_unit,
    time_unit,
    whiskers,
)
from broadside.coordinator.views.charts.theme import Colour


def bins(view: BurstView) -> Figure:
    """Return the firewall counter's samples beside the fleet's bytes in the same intervals.

    The fleet's bytes include headers and the idle level, which is the rate that the counter shows
    outside the burst. The lag is subtracted from the sample times, so they are times of the
    traffic.

    Raises:
        NoChart: The burst has no reconciliation.
    """
    series, ledger, held = view.series, view.ledger, view.summary.reconciliation
    if ledger is None or held is None:
        raise NoChart(f"reconciliation: burst {view.summary.index + 1} was held against no ledger")
    lag_s = held.lag_s if held.lag_s is not None else (ledger.lag_hint_s or 0.0)
    begun_s = series.planned_start_s
    ended_s = begun_s + series.omit_s + series.duration_s
    margin_s = 2 * ledger.grain_s
    start, end = ledger.start_s - lag_s, ledger.end_s - lag_s
    near = (end > begun_s - margin_s) & (start < ended_s + margin_s)
    start, end, seen = start[near], end[near], ledger.bytes[near]
    width = np.maximum(end - start, 1e-9)
    fleet = fleet_curve((series,)).between(start, end) * held.overhead_ratio * 8 / width
    fleet = fleet + (held.baseline_bits_per_second or 0.0)
    firewall = seen * 8 / width
    unit = rate_unit([*fleet.tolist(), *firewall.tolist()])
    time = time_unit(ended_s - begun_s)
    layer = {"ip": "IP layer", "wire": "Ethernet frames", "unknown": "layer not stated"}[held.layer]
    lag = f"lag {formatting.time(held.lag_s)}, " + (
        "none taken off" if held.lag_s is None else "taken off"
    )
    x = np.column_stack((start, end)).ravel() - begun_s
    traces = [
        line(name, x / time.size, np.repeat(values, 2), colour, unit, dash=dash, steps=True)
        for name, values, colour, dash in (
            (f"firewall ({held.source})", firewall, Colour.LEDGER, "solid"),
            ("fleet received, headers and idle level added", fleet, Colour.FLEET, "dash"),
        )
    ]
    return frame(
        f"The two ledgers, bin by bin{scaled(view.spec.scale)}",
        f"{time.name} since the first planned start ({lag})",
        f"{unit.name}, {layer}",
        traces,
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
    values = [held.residual_ratio for _, held in rows]
    if all(value is None for value in values):
        raise NoChart("residuals: the run was held against no ledger")
    half = [held.residual_uncertainty_ratio for _, held in rows]
    limit = view.spec.objective.residual_max_ratio * 100
    return frame(
        "What is left between the ledgers, burst by burst",
        "burst (whiskers: 95 % uncertainty; dotted: what is allowed)",
        "% of expected, ledger's layer",
        [
            bars(
                "residual",
                [number for number, _ in rows],
                values,
                Colour.FLEET,
                PERCENT,
                error_y=whiskers(half, PERCENT, Colour.INK),
            )
        ],
        shapes=[level(limit, Colour.SENT, "dot"), level(-limit, Colour.SENT, "dot")],
        y_axis={"rangemode": "normal", "range": _round_zero([*values, limit / 100], half)},
        x_axis={"tickformat": "d"},
    )


def _round_zero(values: list[float | None], half: list[float | None]) -> list[float]:
    reach = max(abs(value) for value in values if value is not None)
    reach += max((value for value in half if value is not None), default=0.0)
    return [-reach * 105, reach * 105]
