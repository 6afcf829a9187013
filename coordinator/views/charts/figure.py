"""Data model of a chart, without colours of a theme. Unknown values are null and never zero."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.formatting import RATES, unit_of
from broadside.coordinator.views.charts.theme import Colour, Hatch

Values = Sequence[float | None] | NDArray[Any]
Numbers = list[float | None]
SeriesKind = Literal["line", "points", "bars"]
Dash = Literal["solid", "dash", "dot", "dashdot"]
Symbol = Literal["circle", "ring", "cross"]

# Significant digits, which is more than a screen or printer can show.
_DIGITS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayUnit:
    """Display unit.

    Attributes:
        name: Name of the unit.
        size: Number of base units in this unit.
    """

    name: str
    size: float


PERCENT: Final = DisplayUnit(name="%", size=0.01)
MILLISECONDS: Final = DisplayUnit(name="ms", size=1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """Named values of one chart.

    Attributes:
        kind: Form of the drawing.
        name: Name in the legend.
        x: Positions, in the unit of the x axis.
        y: Values, in the unit of the y axis.
        colour: Role of the colour.
        dash: Dash of a line.
        width: Width of a line, in px.
        symbol: Shape of points.
        size: Diameter of points, in px.
        hatch: Hatch of bars.
        half_width: Half of each error bar, in the unit of the y axis.
        fill: Colour of the area between this line and the previous one.
        notes: A text for each value.
    """

    kind: SeriesKind
    name: str
    x: Numbers
    y: Numbers
    colour: Colour
    dash: Dash = "solid"
    width: float = 1.75
    symbol: Symbol = "circle"
    size: float = 6
    hatch: Hatch | None = None
    half_width: Numbers | None = None
    fill: Colour | None = None
    notes: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Horizontal line at a value.

    Attributes:
        at: Value, in the unit of the y axis.
        colour: Role of the colour.
        dash: Dash of the line.
    """

    at: float
    colour: Colour
    dash: Dash = "dash"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Values by row and column.

    Attributes:
        x: Middle of each column.
        y: Number of each row.
        cells: Values by row.
        unit: Unit and layer of the values.
    """

    x: Numbers
    y: list[int]
    cells: list[Numbers]
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """Axis of a chart.

    Attributes:
        title: Quantity and unit.
        range: First and last value. None to include all values.
        is_integer: True if only whole numbers are labelled.
        labels: Lines of text for the positions 1, 2, 3 and so on, instead of numbers.
    """

    title: str
    range: tuple[float, float] | None = None
    is_integer: bool = False
    labels: list[list[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One chart.

    Attributes:
        title: Title of the chart.
        x: The x axis.
        y: The y axis.
        series: Values to draw.
        heat_map: Values by row and column. None for other charts.
        bars: Arrangement of bars at the same position.
        spans: Shaded ranges of the x axis.
        levels: Horizontal lines.
        has_legend: True to show a legend for a single series, too.
    """

    title: str
    x: ChartAxis
    y: ChartAxis
    series: list[ChartSeries]
    heat_map: HeatMap | None = None
    bars: Literal["group", "stack", "overlay"] = "group"
    spans: list[tuple[float, float]] | None = None
    levels: list[Level] | None = None
    has_legend: bool = False

    @property
    def is_empty(self) -> bool:
        """Return True if no value is known, apart from constant series such as the target."""
        rows = [series.y for series in self.series if series.colour is not Colour.TARGET]
        rows += self.heat_map.cells if self.heat_map else []
        return all(value is None for row in rows for value in row)


def rate_unit(bits_per_second: Iterable[float | None]) -> DisplayUnit:
    """Return the decimal unit that fits the largest rate."""
    top = max((abs(v) for v in bits_per_second if v is not None and math.isfinite(v)), default=0.0)
    name, size = unit_of(top, RATES)
    return DisplayUnit(name=name, size=size)


def time_unit(length_s: float) -> DisplayUnit:
    """Return seconds, minutes or hours, depending on the length of the axis."""
    if length_s > 6 * 3600:
        return DisplayUnit(name="h", size=3600.0)
    if length_s > 3600:
        return DisplayUnit(name="min", size=60.0)
    return DisplayUnit(name="s", size=1.0)


def numbers(values: Values, size: float = 1.0) -> Numbers:
    """Convert values to a display unit, with five significant digits.

    Args:
        values: Values in the base unit. NaN and None become null.
        size: Size of the display unit.

    Returns:
        Values in the display unit. None is unknown.
    """
    return [
        None if value is None or not math.isfinite(value) else float(f"{value / size:.{_DIGITS}g}")
        for value in (values.tolist() if isinstance(values, np.ndarray) else values)
    ]


def line_series(
    name: str, x: Values, y: Values, colour: Colour, unit: DisplayUnit, **style: Any
) -> ChartSeries:
    """Return a line.

    Args:
        name: Name in the legend.
        x: Positions on the x axis, in its unit.
        y: Values in the base unit. They are divided by the size of ``unit``.
        colour: Colour of the line.
        unit: Display unit of the values.
        style: ``half_width`` and other attributes of ``ChartSeries``.
    """
    return _series("line", name, (x, y), unit, colour=colour, **style)


def point_series(
    name: str, x: Values, y: Values, colour: Colour, unit: DisplayUnit, **style: Any
) -> ChartSeries:
    """Return a series that is drawn as points.

    See :func:`line_series` for the arguments.

    Args:
        name: Name for the legend.
        x: Values of the x axis.
        y: Values of the y axis, in the base unit. NaN is unknown.
        colour: Colour of the points.
        unit: Display unit of the y axis.
        **style: ``half_width`` and other attributes of ``ChartSeries``.
    """
    return _series("points", name, (x, y), unit, colour=colour, **style)


def bar_series(
    name: str, x: Values, y: Values, colour: Colour, unit: DisplayUnit, **style: Any
) -> ChartSeries:
    """Return a series that is drawn as bars.

    See :func:`line_series` for the arguments.

    Args:
        name: Name for the legend.
        x: Values of the x axis.
        y: Values of the y axis, in the base unit. NaN is unknown.
        colour: Colour of the bars.
        unit: Display unit of the y axis.
        **style: ``half_width`` and other attributes of ``ChartSeries``.
    """
    return _series("bars", name, (x, y), unit, colour=colour, **style)


def _series(
    kind: SeriesKind,
    name: str,
    values: tuple[Values, Values],
    unit: DisplayUnit,
    *,
    half_width: Values | None = None,
    **style: Any,
) -> ChartSeries:
    """Return a series.

    Args:
        kind: Form of the drawing.
        name: Name in the legend.
        values: Positions, and values in the base unit.
        unit: Display unit of the values.
        half_width: Half of each error bar, in the base unit.
        style: Other attributes of ``ChartSeries``.
    """
    x, y = values
    half = None if half_width is None else numbers(half_width, unit.size)
    return ChartSeries(
        kind=kind, name=name, x=numbers(x), y=numbers(y, unit.size), half_width=half, **style
    )
