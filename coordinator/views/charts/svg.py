"""Draw figures as SVG, for reports and files.

Colours are CSS classes such as ``s-fleet`` (stroke) and ``f-fleet`` (fill), so one drawing can be
used on light and dark screens and on paper (:func:`styles`).
"""

import base64
import math
import struct
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.views.charts.figure import ChartSeries, Figure, HeatMap
from broadside.coordinator.views.charts.theme import HEAT, PALETTES, Colour, Theme

_DASHES: Final = {"dash": "6 4", "dot": "1.5 3", "dashdot": "6 3 1.5 3"}
_HATCHES: Final = {
    "cross": "M0 0L6 6M6 0L0 6",
    "up": "M0 6L6 0",
    "down": "M0 0L6 6",
    "flat": "M0 3h6",
    "tall": "M3 0v6",
    "dots": "M3 2v2",
}
# Average character width at 12 px font size, in px.
_CHAR: Final = 6.3
# Title height above a separate figure, in px.
_TITLE_HEIGHT: Final = 26.0
# Distance of the lines of a text, in px.
_LINE: Final = 14
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """Linear scale of an axis.

    Attributes:
        low: Smallest value.
        high: Largest value.
        start: Position of ``low``, in px.
        stop: Position of ``high``, in px. It can be smaller than ``start``.
    """

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        """Return the position of a value, in px."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.stop - self.start)

    def ticks(self, most: int, *, is_integer: bool = False) -> list[float]:
        """Return round values inside the range, at most about ``most``.

        Args:
            most: Wanted number of values. The steps are round, so there can be a few more.
            is_integer: True if only whole numbers have a meaning, such as a count.
        """
        step = round_step((self.high - self.low) / max(1, most))
        step = max(1.0, math.ceil(step)) if is_integer else step
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(number * step, 10) for number in range(first, last + 1)]


def round_step(rough: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5 times a power of ten that is at least ``rough``."""
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * (1 - 1e-9))


def styles(theme: Theme) -> str:
    """Return the CSS of the colour classes."""
    return "".join(
        f".s-{colour}{{stroke:{value}}}.f-{colour}{{fill:{value}}}"
        for colour, value in PALETTES[theme].items()
    )


def hatches() -> str:
    """Return the definitions of the hatch patterns, which a page needs once."""
    return f'<svg class="hatches" aria-hidden="true">{_patterns()}</svg>'


def _patterns() -> str:
    patterns = "".join(
        f'<pattern id="hatch-{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" class="s-ground" stroke-width="1"/></pattern>'
        for name, path in _HATCHES.items()
    )
    return f"<defs>{patterns}</defs>"


def standalone(figure: Figure, *, width: float, height: float, theme: Theme) -> str:
    """Return a figure as a complete SVG file with its title.

    Args:
        figure: Figure to draw.
        width: Width in px.
        height: Height in px.
        theme: Light or dark theme.
    """
    lines = _title_lines(figure.title, width)
    top = _TITLE_HEIGHT + 18 * (len(lines) - 1)
    drawing = draw(figure, width=width, height=height - top, name="plot")
    position = f'<svg y="{top:g}" width="{width:g}" height="{height - top:g}" '
    ink, faint = PALETTES[theme][Colour.INK], PALETTES[theme][Colour.FAINT]
    rules = (
        f"svg{{font:12px system-ui,sans-serif}}text{{fill:{ink}}}"
        f".grid{{stroke:{faint};fill:none}}.tick{{stroke:{ink};fill:none}}{styles(theme)}"
    )
    title = "".join(
        f'<text x="8" y="{19 + 18 * row}" font-size="14" font-weight="600">{escape(line)}</text>'
        for row, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}"><style>{rules}</style>{_patterns()}'
        f'<rect width="100%" height="100%" class="f-ground"/>{title}'
        f"{drawing.replace('<svg ', position, 1)}</svg>"
    )


def _title_lines(title: str, width: float) -> list[str]:
    """Return the lines of a title. The run and the date of a long title are on a second line."""
    head, colon, source = title.partition(": ")
    # A colon in brackets is a part of the name.
    is_source = colon and head.count("(") == head.count(")")
    # Title letters are larger and bold.
    most = int(width / (_CHAR * 1.4))
    lines = [head, source] if is_source and len(title) > most else [title]
    return [part for line in lines for part in textwrap.wrap(line, most)]


def height_of(figure: Figure, width: float) -> float:
    """Return the usual height of a drawing in px. A heat map grows with its number of pairs.

    Args:
        figure: Figure to draw.
        width: Width of the drawing in px.
    """
    rows = 0 if figure.heat_map is None else len(figure.heat_map.cells)
    return max(280.0 if width > 600 else 250.0, min(620.0, 110.0 + 7 * rows))


def draw(figure: Figure, *, width: float, height: float, name: str) -> str:
    """Return a figure as an ``<svg>`` element.

    Args:
        figure: Figure to draw.
        width: Width in px.
        height: Height in px.
        name: Prefix that makes the element ids unique in a page.
    """
    plot = _Plot(figure, width, height)
    left, top, right, bottom = plot.box
    area = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
    title = escape(figure.title)
    ground = "unknown" if figure.heat_map else "ground"
    return "".join(
        (
            f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{title}">',
            f'<title>{title}</title><clipPath id="{name}"><rect {area}/></clipPath>',
            f'<rect {area} class="f-{ground}"/>',
            *plot.spans(),
            *plot.grid(),
            f'<g clip-path="url(#{name})">',
            *plot.bars(),
            *plot.heat_map(),
            *plot.lines_and_points(),
            *plot.levels(),
            "</g>",
            *plot.colour_bar(),
            *plot.legend(),
            "</svg>",
        )
    )


class _Plot:
    """Parts of one drawing."""

    def __init__(self, figure: Figure, width: float, height: float) -> None:
        self.figure, self.width, self.height = figure, width, height
        self.x_title = _axis_title(figure.x.title, width)
        self.legend_rows = list(_legend_rows(figure, width))
        top = 8.0 + 18 * len(self.legend_rows) + (4 if self.legend_rows else 0)
        label_lines = max(map(len, figure.x.labels or [[""]])) - 1
        bottom = height - 28 - _LINE * (len(self.x_title) + label_lines)
        low, high = _y_range(figure)
        self.rows_count = max(2, int((bottom - top) / 44))
        # Pairs of a heat map are counted from the top.
        ends = (top, bottom) if figure.heat_map else (bottom, top)
        self.y = AxisScale(low=low, high=high, start=ends[0], stop=ends[1])
        digits = max((len(_number(tick)) for tick in self._y_ticks()), default=1)
        left, right = 26 + _CHAR * digits, width - (64 if figure.heat_map else 14)
        low, high = _x_range(figure)
        self.x = AxisScale(low=low, high=high, start=left, stop=right)
        self.box = (left, top, right, bottom)

    def _y_ticks(self) -> list[float]:
        return self.y.ticks(self.rows_count, is_integer=self.figure.y.is_integer)

    def grid(self) -> Iterator[str]:
        """Yield axes, tick labels and axis titles."""
        left, _, right, bottom = self.box
        for tick in self._y_ticks():
            y = self.y.at(tick)
            if self.figure.heat_map is None:
                yield f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" class="grid"/>'
            yield _text(left - 6, y + 4, _number(tick), "end")
        for tick, label in self._x_labels():
            x = self.x.at(tick)
            yield f'<path d="M{x:.1f} {bottom:.1f}v4" class="tick"/>'
            for row, text in enumerate(label):
                yield _text(x, bottom + 16 + _LINE * row, text, "middle")
        yield f'<path d="M{left:.1f} {bottom:.1f}H{right:.1f}" class="tick"/>'
        for row, text in enumerate(reversed(self.x_title)):
            yield _text((left + right) / 2, self.height - 6 - _LINE * row, text, "middle")
        yield self._y_title()

    def _y_title(self) -> str:
        """Return the title of the y axis, which must not cover the legend above it.

        A long title extends below the axis, and is condensed if the drawing is not high enough.
        """
        _, top, _, bottom = self.box
        title, height = self.figure.y.title, self.height - self.box[1] - 4
        length = min(_CHAR * len(title), height)
        middle = max((top + bottom) / 2, top + length / 2)
        return _upright_text(11, middle, title, height if length == height else None)

    def _x_labels(self) -> Iterable[tuple[float, Sequence[str]]]:
        axis = self.figure.x
        if axis.labels is not None:
            return enumerate(axis.labels, 1)
        most = max(2, int((self.box[2] - self.box[0]) / 70))
        return [(tick, [_number(tick)]) for tick in self.x.ticks(most, is_integer=axis.is_integer)]

    def spans(self) -> Iterator[str]:
        left, top, right, bottom = self.box
        for first, last in self.figure.spans or ():
            x, until = (min(right, max(left, self.x.at(at))) for at in (first, last))
            yield _rect(x, top, until - x, bottom - top, "f-window")

    def levels(self) -> Iterator[str]:
        left, _, right, _ = self.box
        for level in self.figure.levels or ():
            style = _stroke(level.colour, level.dash, 1.5)
            yield f'<path d="M{left:.1f} {self.y.at(level.at):.1f}H{right:.1f}" {style}/>'

    def lines_and_points(self) -> Iterator[str]:
        previous: list[Point] = []
        for series in self.figure.series:
            points = [
                None if x is None or y is None else (self.x.at(x), self.y.at(y))
                for x, y in zip(series.x, series.y, strict=True)
            ]
            known = [point for point in points if point is not None]
            if series.kind == "points":
                yield from self._whiskers(series, [self.x.at(x or 0) for x in series.x])
                yield from _symbols(series, known)
            elif series.kind == "line":
                if series.fill is not None and previous:
                    area = _path([*previous, *reversed(known)])
                    yield f'<path d="{area}Z" class="f-{series.fill}"/>'
                data = "".join(_path(part) for part in _without_gaps(points))
                yield f'<path d="{data}" {_line_style(series)}/>'
                previous = known

    def bars(self) -> Iterator[str]:
        bars = [series for series in self.figure.series if series.kind == "bars"]
        is_group = self.figure.bars == "group"
        slot = (self.x.at(1) - self.x.at(0)) * 0.8
        width = max(0.8, slot / len(bars)) if bars and is_group else max(0.8, slot)
        stacked: dict[float, float] = {}
        for number, series in enumerate(bars):
            shift = width * number if is_group else 0.0
            lefts = [self.x.at(x or 0) - slot / 2 + shift for x in series.x]
            for x, y, left in zip(series.x, series.y, lefts, strict=True):
                if x is None or not y:
                    continue
                foot = stacked.get(x, 0.0) if self.figure.bars == "stack" else 0.0
                stacked[x] = foot + y
                first, last = sorted((self.y.at(foot), self.y.at(foot + y)))
                yield from _filled(left, first, width, max(0.5, last - first), series)
            yield from self._whiskers(series, [left + width / 2 for left in lefts])

    def _whiskers(self, series: ChartSeries, middles: Sequence[float]) -> Iterator[str]:
        if series.half_width is None:
            return
        parts = []
        for x, y, half in zip(middles, series.y, series.half_width, strict=True):
            if y is not None and half is not None:
                low, high = self.y.at(y - half), self.y.at(y + half)
                parts.append(f"M{x:.1f} {low:.1f}V{high:.1f}m-3 0h6M{x - 3:.1f} {low:.1f}h6")
        if parts:
            yield f'<path d="{"".join(parts)}" class="s-ink" fill="none"/>'

    def heat_map(self) -> Iterator[str]:
        heat = self.figure.heat_map
        if heat is None or not heat.cells:
            return
        cells = _cells(heat)
        x = [value or 0.0 for value in heat.x]
        half = (x[1] - x[0]) / 2 if len(x) > 1 else 0.5
        left, right = self.x.at(x[0] - half), self.x.at(x[-1] + half)
        _, top, _, bottom = self.box
        pixels = colourise(cells, _largest(cells), HEAT)
        yield _image(pixels, left, top, right - left, bottom - top)

    def colour_bar(self) -> Iterator[str]:
        heat = self.figure.heat_map
        if heat is None:
            return
        _, top, _, bottom = self.box
        left = self.width - 52
        ramp = colourise(np.linspace(1, 0, 64)[:, None], 1.0, HEAT)
        yield _image(ramp, left, top, 10, bottom - top)
        scale = AxisScale(low=0.0, high=_largest(_cells(heat)), start=bottom, stop=top)
        for tick in scale.ticks(4):
            yield _text(left + 14, scale.at(tick) + 4, _number(tick), "start")
        yield _upright_text(self.width - 4, (top + bottom) / 2, heat.unit)

    def legend(self) -> Iterator[str]:
        for number, row in enumerate(self.legend_rows):
            y = 12.0 + 18 * number
            for x, series in row:
                if series.kind == "bars":
                    yield from _filled(x, y - 6, 18, 11, series)
                elif series.kind == "points":
                    yield from _symbols(series, [(x + 9, y)])
                else:
                    yield f'<path d="M{x:.1f} {y}h20" {_line_style(series)}/>'
                yield _text(x + 26, y + 4, series.name, "start")


def _y_range(figure: Figure) -> tuple[float, float]:
    """Return the range of the y axis, which includes zero and all error bars."""
    if figure.y.range is not None:
        return figure.y.range
    if figure.heat_map is not None:
        return min(figure.heat_map.y) - 0.5, max(figure.heat_map.y) + 0.5
    values = [0.0, *(level.at for level in figure.levels or ())]
    for series in figure.series:
        for y, half in zip(series.y, series.half_width or series.y, strict=True):
            if y is not None:
                extra = half or 0.0 if series.half_width else 0.0
                values += (y - extra, y + extra)
    low, high = min(values), max(values)
    high = 1.0 if low == high else high
    return low * 1.05, high * 1.05


def _x_range(figure: Figure) -> tuple[float, float]:
    if figure.x.range is not None:
        return figure.x.range
    known = [x for series in figure.series for x in series.x if x is not None] or [1.0]
    low, high = min(known), max(known)
    has_bars = any(series.kind == "bars" for series in figure.series)
    margin = 0.6 if has_bars else 0.02 * (high - low) or 0.5
    return low - margin, high + margin


def _axis_title(title: str, width: float) -> list[str]:
    """Return the lines of an axis title. A narrow chart has its bracketed text on a new line."""
    head, bracket, note = title.partition(" (")
    return [head, f"({note}"] if bracket and len(title) * _CHAR >= width - 90 else [title]


def _legend_rows(figure: Figure, width: float) -> Iterator[list[tuple[float, ChartSeries]]]:
    """Yield the rows of the legend, with the x position of each entry."""
    if len(figure.series) < 2 and not figure.has_legend:
        return
    row: list[tuple[float, ChartSeries]] = []
    x = 8.0
    for series in figure.series:
        needed = 34 + _CHAR * len(series.name)
        if row and x + needed > width - 8:
            yield row
            row, x = [], 8.0
        row.append((x, series))
        x += needed + 8
    yield row


def _number(value: float) -> str:
    return f"{value:.6g}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _upright_text(x: float, y: float, text: str, length: float | None = None) -> str:
    turn = f'transform="translate({x:g} {y:.1f})rotate(-90)"'
    if length is not None:
        turn += f' textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text {turn} text-anchor="middle">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, css_class: str) -> str:
    area = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {area} class="{css_class}"/>'


def _filled(x: float, y: float, width: float, height: float, series: ChartSeries) -> Iterator[str]:
    """Yield a bar, and its hatch above it."""
    bar = _rect(x, y, width, height, f"f-{series.colour}")
    yield bar
    if series.hatch is not None:
        yield bar.replace(f'class="f-{series.colour}"', f'fill="url(#hatch-{series.hatch})"')


def _stroke(colour: Colour, dash: str, width: float) -> str:
    dashes = f' stroke-dasharray="{_DASHES[dash]}"' if dash in _DASHES else ""
    return f'class="s-{colour}" fill="none" stroke-width="{width:g}"{dashes}'


def _line_style(series: ChartSeries) -> str:
    return _stroke(series.colour, series.dash, series.width)


def _symbols(series: ChartSeries, points: Iterable[Point]) -> Iterator[str]:
    r = series.size / 2
    for x, y in points:
        if series.symbol == "cross":
            path = f"M{x - r:.1f} {y - r:.1f}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}"
            yield f'<path d="{path}" {_stroke(series.colour, "solid", 2)}/>'
        else:
            form = f'cx="{x:.1f}" cy="{y:.1f}" r="{r:g}"'
            is_ring = series.symbol == "ring"
            check = f's-{series.colour}" fill="none"' if is_ring else f'f-{series.colour}"'
            yield f'<circle {form} class="{check}/>'


def _without_gaps(points: Sequence[Point | None]) -> list[list[Point]]:
    """Split points at the gaps. A single point is repeated."""
    parts: list[list[Point]] = [[]]
    for point in points:
        if point is None:
            parts.append([])
        else:
            parts[-1].append(point)
    return [part if len(part) > 1 else part * 2 for part in parts if part]


def _path(points: Sequence[Point]) -> str:
    """Return SVG path data. Of many points in one pixel column, only the outermost are drawn."""
    drawn: list[Point] = []
    first = 0
    while first < len(points):
        stop = first + 1
        while stop < len(points) and abs(points[stop][0] - points[first][0]) < 0.8:
            stop += 1
        column = points[first:stop]
        if len(column) > 4:
            order = sorted(range(len(column)), key=lambda i: column[i][1])
            column = [column[i] for i in sorted({0, order[0], order[-1], len(column) - 1})]
        drawn += column
        first = stop
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)


def _cells(heat: HeatMap) -> NDArray[np.float64]:
    # None becomes NaN.
    return np.array(heat.cells, dtype=np.float64)


def _largest(cells: NDArray[np.float64]) -> float:
    return float(np.nanmax(cells)) if not np.isnan(cells).all() else 1.0


def colourise(
    cells: NDArray[np.float64], top: float, scale: Sequence[tuple[float, str]]
) -> NDArray[np.uint8]:
    """Convert values to RGBA colours.

    Args:
        cells: Values of shape (rows, columns). NaN becomes transparent.
        top: Value that gets the last colour of ``scale``.
        scale: Colours as ``#rrggbb``, by position from 0 to 1.

    Returns:
        Pixels of shape (rows, columns, 4).
    """
    share = np.nan_to_num(cells / top if top > 0 else cells * 0.0).clip(0, 1)
    stops = [stop for stop, _ in scale]
    channels = [
        np.interp(share, stops, [int(colour[1 + 2 * c : 3 + 2 * c], 16) for _, colour in scale])
        for c in range(3)
    ]
    alpha = np.where(np.isnan(cells), 0, 255)
    return np.stack([*channels, alpha], axis=-1).round().astype(np.uint8)


def _image(pixels: NDArray[np.uint8], x: float, y: float, width: float, height: float) -> str:
    return (
        f'<image href="{data_uri(pixels)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" preserveAspectRatio="none" style="image-rendering:pixelated"/>'
    )


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return RGBA pixels of shape (rows, columns, 4) as a PNG in a ``data:`` URL."""
    rows, columns, _ = pixels.shape
    head = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    filters = np.zeros((rows, 1), np.uint8)
    body = np.concatenate((filters, pixels.reshape(rows, columns * 4)), axis=1).tobytes()
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(body, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
