"""Traces, axes and layout of figures in plotly's format. Unknown values become null."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.formatting import RATES, unit_of
from broadside.coordinator.views.charts.theme import PALETTES, Colour, Theme

# Plotly's dialect is open-ended JSON, so its parts are plain dictionaries.
Figure = dict[str, Any]
Trace = dict[str, Any]
Shape = dict[str, Any]
Values = Sequence[float | None] | NDArray[Any]

# Significant digits, which is more than a screen or printer can show.
_DIGITS: Final = 5
# Data members of a trace. They have up to 200,000 numbers and no colours.
_DATA: Final = ("x", "y", "z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Display unit.

    Attributes:
        name: Name of the unit.
        size: Number of base units in this unit.
    """

    name: str
    size: float


PERCENT: Final = Unit(name="%", size=0.01)
MILLISECONDS: Final = Unit(name="ms", size=1e-3)


def rate_unit(bits_per_second: Iterable[float | None]) -> Unit:
    """Return the decimal unit that fits the largest rate."""
    top = max((abs(v) for v in bits_per_second if v is not None and math.isfinite(v)), default=0.0)
    name, size = unit_of(top, RATES)
    return Unit(name=name, size=size)


def time_unit(length_s: float) -> Unit:
    """Return seconds, minutes or hours, depending on the length of the axis."""
    if length_s > 6 * 3600:
        return Unit(name="h", size=3600.0)
    if length_s > 3600:
        return Unit(name="min", size=60.0)
    return Unit(name="s", size=1.0)


def numbers(values: Values, size: float = 1.0) -> list[float | None]:
    """Convert values to a display unit, with five significant digits.

    Args:
        values: Values in the base unit. NaN and None become null and never zero.
        size: Size of the display unit.
    """
    return [
        None if value is None or not math.isfinite(value) else float(f"{value / size:.{_DIGITS}g}")
        for value in (values.tolist() if isinstance(values, np.ndarray) else values)
    ]


def line(
    name: str,
    x: Values,
    y: Values,
    colour: Colour,
    unit: Unit,
    *,
    dash: str = "solid",
    width: float = 1.75,
    steps: bool = False,
    **more: Any,
) -> Trace:
    """Return a line trace that has gaps at unknown values."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": numbers(x),
        "y": numbers(y, unit.size),
        "connectgaps": False,
        "line": {
            "color": colour,
            "width": width,
            "dash": dash,
            "shape": "hv" if steps else "linear",
        },
        "hovertemplate": f"%{{y:.4~g}} {unit.name}",
        **more,
    }


def marks(
    name: str,
    x: Values,
    y: Values,
    colour: Colour,
    unit: Unit,
    *,
    size: float = 6,
    symbol: str | None = None,
    **more: Any,
) -> Trace:
    """Return a trace of points."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": numbers(x),
        "y": numbers(y, unit.size),
        "marker": {"color": colour, "size": size, **({"symbol": symbol} if symbol else {})},
        "hovertemplate": f"%{{y:.4~g}} {unit.name}",
        **more,
    }


def bars(
    name: str,
    x: list[Any],
    y: Values,
    colour: Colour,
    unit: Unit,
    *,
    hatch: str | None = None,
    **more: Any,
) -> Trace:
    """Return a bar trace. There is no bar for an unknown value."""
    return {
        "type": "bar",
        "name": name,
        "x": x,
        "y": numbers(y, unit.size),
        "marker": {"color": colour} | ({} if hatch is None else {"pattern": {"shape": hatch}}),
        "hovertemplate": f"%{{y:.4~g}} {unit.name}",
        **more,
    }


def whiskers(half: Values, unit: Unit, colour: Colour, width: float = 3) -> Mapping[str, Any]:
    """Return symmetric error bars.

    Args:
        half: Half of each error bar, in the base unit.
        unit: Display unit.
        colour: Colour of the bars.
        width: Width of the caps, in px.
    """
    array = numbers(half, unit.size)
    return {"type": "data", "array": array, "color": colour, "thickness": 1, "width": width}


def upright(at: float, until: float, colour: Colour) -> Shape:
    """Return a shaded range of the x axis behind the data."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": at,
        "x1": until,
        "y0": 0,
        "y1": 1,
        "fillcolor": colour,
        "line": {"width": 0},
        "layer": "below",
    }


def level(at: float, colour: Colour, dash: str = "dash") -> Shape:
    """Return a horizontal line across the plot."""
    return {
        "type": "line",
        "xref": "paper",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": at,
        "y1": at,
        "line": {"color": colour, "width": 1.5, "dash": dash},
    }


def _whole_step(traces: Sequence[Trace], axis: Literal["x", "y"]) -> int:
    """Return a tick distance in whole numbers for about ten ticks.

    Plotly would otherwise use halves and round their labels.
    """
    at = [place for trace in traces for place in trace[axis] if place is not None]
    rough = (max(at) - min(at)) / 12 if at else 1
    steps = (step * int(10**power) for power in range(10) for step in (1, 2, 5))
    return next(step for step in steps if step >= rough)


def frame(
    title: str,
    x_title: str,
    y_title: str,
    traces: Sequence[Trace],
    *,
    shapes: Sequence[Shape] = (),
    x_axis: Mapping[str, Any] | None = None,
    y_axis: Mapping[str, Any] | None = None,
    **layout: Any,
) -> Figure:
    """Return a complete figure with colours by role (see :func:`painted`).

    Axes start at zero unless ``y_axis`` overrides this.
    """
    x_axis = dict(x_axis or {})
    if x_axis.get("tickformat") == "d":
        x_axis = {"tick0": 0, "dtick": _whole_step(traces, "x"), **x_axis}
    y_axis = dict(y_axis or {})
    if y_axis.get("tickformat") == "d":
        y_axis = {"tick0": 0, "dtick": _whole_step(traces, "y"), **y_axis}
    axis = {
        "gridcolor": Colour.FAINT,
        "zerolinecolor": Colour.FAINT,
        "linecolor": Colour.SENT,
        "tickcolor": Colour.SENT,
        "automargin": True,
    }
    return {
        "data": list(traces),
        "layout": {
            "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 15}},
            "paper_bgcolor": Colour.GROUND,
            "plot_bgcolor": Colour.GROUND,
            "font": {"family": "system-ui, sans-serif", "size": 12, "color": Colour.INK},
            "margin": {"l": 64, "r": 16, "t": 72, "b": 52},
            "hovermode": "x unified",
            "showlegend": len(traces) > 1,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "shapes": list(shapes),
            "xaxis": {**axis, "title": {"text": x_title}, "showgrid": False, **x_axis},
            "yaxis": {
                **axis,
                "title": {"text": y_title},
                "rangemode": "tozero",
                **y_axis,
            },
            **layout,
        },
    }


def painted(part: Any, theme: Theme) -> Any:
    """Return a figure, or part of one, with its colour roles replaced by the colours of a theme."""
    if isinstance(part, Colour):
        return PALETTES[theme][part]
    if isinstance(part, dict):
        return {
            name: value if name in _DATA else painted(value, theme) for name, value in part.items()
        }
    return [painted(each, theme) for each in part] if isinstance(part, list) else part
