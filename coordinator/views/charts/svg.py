"""Draw the figures of this package as SVG, for reports without scripts.

Only the parts of plotly's format that these figures use are supported. Colours become CSS classes
(``s-fleet``, ``f-fleet``), so one drawing can be used in light, dark and print (:func:`styles`).
"""

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.views.charts.figure import Figure, Trace
from broadside.coordinator.views.charts.theme import HEAT, PALETTES, Colour, Theme


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return RGBA pixels of shape (rows, columns, 4) as a PNG in a ``data:`` URL."""
    rows, columns, _ = pixels.shape
    head = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    filtered = np.concatenate(
        (np.zeros((rows, 1), np.uint8), pixels.reshape(rows, columns * 4)), axis=1
    )
    body = zlib.compress(filtered.tobytes(), 9)
    png = (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Linear axis.

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

    def ticks(self, most: int) -> list[float]:
        """Return round values inside the range, at most about ``most``."""
        step = round_step((self.high - self.low) / max(1, most))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(number * step, 10) for number in range(first, last + 1)]


def round_step(rough: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5 times a power of ten that is at least ``rough``."""
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * (1 - 1e-9))


def span(layout: dict[str, Any], values: Iterable[float | None]) -> tuple[float, float]:
    """Return the range of an axis.

    Args:
        layout: Layout of the axis. Its ``range`` has precedence.
        values: Values to show. Without a ``range``, the axis includes them and a margin of 5 %.
    """
    fixed = layout.get("range")
    if fixed is not None:
        return float(fixed[0]), float(fixed[1])
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if layout.get("rangemode") == "tozero":
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high == 0.0:
        high = 1.0
    room = 0.05 * ((high - low) or abs(high) or 1.0)
    return (low - room if low < 0 else low), (high + room if high > 0 else high)


def said(value: float) -> str:
    """Return the label of a tick."""
    return f"{value:.6g}"


_NAMES: Final[Mapping[str, str]] = {
    value: colour.value for colour, value in reversed(list(PALETTES[Theme.LIGHT].items()))
}
_DASHES: Final = {"dash": "6 4", "dot": "1.5 3", "dashdot": "6 3 1.5 3"}
# Average character width at 12 px font size, in px.
_CHAR: Final = 6.3
_PAD: Final = 8.0
# Title height above a separate figure, in px.
_TITLE_HEIGHT: Final = 26.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paper:
    x: Axis
    y: Axis
    width: float
    height: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of the plot."""
        top, bottom = sorted((self.y.start, self.y.stop))
        return self.x.start, top, self.x.stop - self.x.start, bottom - top


def styles(theme: Theme) -> str:
    """Return the CSS of the colour classes."""
    rules = []
    for colour, value in PALETTES[theme].items():
        rules.append(f".s-{colour.value}{{stroke:{value}}}.f-{colour.value}{{fill:{value}}}")
    return "".join(rules)


def draw(figure: Figure, *, width: float, height: float, name: str) -> str:
    """Return a figure of the light theme as an ``<svg>`` element.

    Args:
        figure: Figure to draw.
        width: Width in px.
        height: Height in px.
        name: Prefix that makes the element ids unique in a page.
    """
    layout, traces = figure["layout"], figure["data"]
    entries = _legend_entries(layout, traces)
    rows = _legend_rows(entries, width)
    bar_colour = [t for t in traces if t["type"] == "heatmap"]
    top = _PAD + 18 * len(rows) + (4 if rows else 0)
    x_span, y_span = _spans(layout, traces)
    lines = 14 * (max(len(label) for label in [[""], *_labels(layout).values()]) - 1)
    bottom = height - 28 - 14 * len(_x_title(layout, width)) - lines
    rows_count = _rows_count(bottom - top)
    left = 26 + _CHAR * max(
        len(said(tick))
        for tick in Axis(low=y_span[0], high=y_span[1], start=0, stop=1).ticks(rows_count)
    )
    right = width - (64 if bar_colour else 14)
    down = layout["yaxis"].get("autorange") == "reversed"
    paper = _Paper(
        x=Axis(low=x_span[0], high=x_span[1], start=left, stop=right),
        y=Axis(
            low=y_span[0],
            high=y_span[1],
            start=top if down else bottom,
            stop=bottom if down else top,
        ),
        width=width,
        height=height,
    )
    title = escape(layout["title"]["text"])
    px, py, pw, ph = paper.box
    plot = f'x="{px:.1f}" y="{py:.1f}" width="{pw:.1f}" height="{ph:.1f}"'
    parts = [
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{title}">',
        f'<title>{title}</title><clipPath id="{name}"><rect {plot}/></clipPath>',
        f'<rect {plot} class="{_class("f", layout["plot_bgcolor"])}"/>',
        f'<g clip-path="url(#{name})">',
        *(_shape(shape, paper) for shape in layout["shapes"] if shape["type"] == "rect"),
        "</g>",
        *_grid(layout, paper),
        f'<g clip-path="url(#{name})">',
        *_bars(layout, traces, paper),
        *(part for trace in traces if trace["type"] == "heatmap" for part in _heat(trace, paper)),
        *_lines(traces, paper),
        *(_shape(shape, paper) for shape in layout["shapes"] if shape["type"] == "line"),
        "</g>",
        *_colour_bar(bar_colour, paper),
        *_legend(rows),
        "</svg>",
    ]
    return "".join(parts)


def alone(figure: Figure, *, width: float, height: float) -> str:
    """Return a figure of the light theme as a complete SVG file with its title.

    Args:
        figure: Figure to draw.
        width: Width in px.
        height: Height in px.
    """
    below = height - _TITLE_HEIGHT
    drawing = draw(figure, width=width, height=below, name="plot")
    placed = f'<svg y="{_TITLE_HEIGHT:g}" width="{width:g}" height="{below:g}" '
    ink, faint = PALETTES[Theme.LIGHT][Colour.INK], PALETTES[Theme.LIGHT][Colour.FAINT]
    rules = (
        f"svg{{font:12px system-ui,sans-serif}}text{{fill:{ink}}}"
        f".grid{{stroke:{faint};fill:none}}.tick{{stroke:{ink};fill:none}}{styles(Theme.LIGHT)}"
    )
    title = escape(figure["layout"]["title"]["text"])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}"><style>{rules}</style>{_patterns()}'
        '<rect width="100%" height="100%" class="f-ground"/>'
        f'<text x="{_PAD:g}" y="19" font-size="14" font-weight="600">{title}</text>'
        f"{drawing.replace('<svg ', placed, 1)}</svg>"
    )


def _rows_count(height: float) -> int:
    return max(2, int(height / 44))


def _class(kind: str, value: str) -> str:
    return f"{kind}-{_NAMES[value]}"


def _spans(
    layout: dict[str, Any], traces: Sequence[Trace]
) -> tuple[tuple[float, float], tuple[float, float]]:
    xs: list[float | None] = []
    ys: list[float | None] = []
    bars = [trace for trace in traces if trace["type"] == "bar"]
    for trace in traces:
        xs += trace["x"]
        ys += trace["y"]
        whiskers = trace.get("error_y", {}).get("array")
        if whiskers:
            for y, half in zip(trace["y"], whiskers, strict=True):
                if y is not None and half is not None:
                    ys += [y + half, y - half]
    for shape in layout["shapes"]:
        if shape["type"] == "line":
            ys.append(shape["y0"])
    x_span = span(layout["xaxis"], xs)
    y_span = span(layout["yaxis"], ys)
    points = any(trace.get("mode") == "markers" for trace in traces)
    if any(trace["type"] == "heatmap" for trace in traces):
        y_span = (
            min(v for v in ys if v is not None) - 0.5,
            max(v for v in ys if v is not None) + 0.5,
        )
    elif (bars or points) and "range" not in layout["xaxis"]:
        known = [x for x in xs if x is not None] or [1.0]
        spare = 0.6 if bars else 0.02 * (max(known) - min(known)) + 0.1
        x_span = (min(known) - spare, max(known) + spare)
    return x_span, y_span


def _grid(layout: dict[str, Any], paper: _Paper) -> list[str]:
    left, top, width, height = paper.box
    bottom = top + height
    parts = []
    whole = layout["yaxis"].get("tickformat") == "d"
    for tick in paper.y.ticks(_rows_count(height)):
        if whole and tick != int(tick):
            continue
        y = paper.y.at(tick)
        if layout["yaxis"].get("showgrid", True):
            parts.append(f'<path d="M{left:.1f} {y:.1f}h{width:.1f}" class="grid"/>')
        parts.append(
            f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{said(tick)}</text>'
        )
    for tick, label in (_labels(layout) or _numbered(layout, paper)).items():
        x = paper.x.at(tick)
        parts.append(f'<path d="M{x:.1f} {bottom:.1f}v4" class="tick"/>')
        parts += [
            f'<text x="{x:.1f}" y="{bottom + 16 + 14 * place:.1f}" text-anchor="middle">'
            f"{escape(words)}</text>"
            for place, words in enumerate(label)
        ]
    parts.append(f'<path d="M{left:.1f} {bottom:.1f}h{width:.1f}" class="tick"/>')
    y_title = escape(layout["yaxis"]["title"]["text"])
    middle = top + height / 2
    titles = _x_title(layout, paper.width)
    for place, words in enumerate(titles):
        y = paper.height - 6 - 14 * (len(titles) - 1 - place)
        parts.append(
            f'<text x="{left + width / 2:.1f}" y="{y:.1f}" text-anchor="middle" '
            f'class="axis">{escape(words)}</text>'
        )
    parts.append(
        f'<text transform="translate(11 {middle:.1f})rotate(-90)" text-anchor="middle" '
        f'class="axis">{y_title}</text>'
    )
    return parts


# Lines of the label by tick.
_Labels = Mapping[float, Sequence[str]]


def _labels(layout: dict[str, Any]) -> _Labels:
    """Return the text labels of the x axis, by position."""
    axis = layout["xaxis"]
    texts = [text.split("<br>") for text in axis.get("ticktext", ())]
    return dict(zip(axis.get("tickvals", ()), texts, strict=True))


def _numbered(layout: dict[str, Any], paper: _Paper) -> _Labels:
    whole = layout["xaxis"].get("tickformat") == "d"
    ticks = paper.x.ticks(max(2, int(paper.box[2] / 70)))
    return {tick: [said(tick)] for tick in ticks if not whole or tick == int(tick)}


def _x_title(layout: dict[str, Any], width: float) -> list[str]:
    """Return the lines of the x axis title. A narrow chart has its bracketed text on a new line."""
    said: str = layout["xaxis"]["title"]["text"]
    head, bracket, note = said.partition(" (")
    if not bracket or len(said) * _CHAR < width - 90:
        return [said]
    return [head, f"({note}"]


def _lines(traces: Sequence[Trace], paper: _Paper) -> list[str]:
    parts = []
    before: list[tuple[float, float]] = []
    for trace in traces:
        if trace["type"] != "scatter":
            continue
        points = [
            None if x is None or y is None else (paper.x.at(x), paper.y.at(y))
            for x, y in zip(trace["x"], trace["y"], strict=True)
        ]
        known = [point for point in points if point is not None]
        if trace["mode"] == "markers":
            parts += _whiskers(trace, paper)
            parts += _marks(trace, known)
            continue
        if trace.get("fill") == "tonexty" and before:
            path = _path([*before, *reversed(known)])
            parts.append(f'<path d="{path}Z" class="{_class("f", trace["fillcolor"])}"/>')
        data = "".join(_path(run) for run in _runs(points))
        parts.append(f'<path d="{data}" fill="none" {_stroke(trace["line"])}/>')
        before = known
    return parts


def _stroke(look: Mapping[str, Any]) -> str:
    """Return the SVG attributes of a line."""
    dash = _DASHES.get(look["dash"])
    solid = f'class="{_class("s", look["color"])}" stroke-width="{look["width"]:g}"'
    return f'{solid} stroke-dasharray="{dash}"' if dash else solid


def _runs(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    """Split points at the gaps. A single point is repeated."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run if len(run) > 1 else [run[0], run[0]] for run in runs if run]


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return SVG path data. Of many points in one pixel column, only the outermost are drawn."""
    kept: list[tuple[float, float]] = []
    place = 0
    while place < len(points):
        stop = place + 1
        while stop < len(points) and abs(points[stop][0] - points[place][0]) < 0.8:
            stop += 1
        column = points[place:stop]
        if len(column) > 4:
            low, high = (
                pick(range(len(column)), key=lambda i: column[i][1]) for pick in (min, max)
            )
            column = [column[i] for i in sorted({0, low, high, len(column) - 1})]
        kept += column
        place = stop
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in kept)


def _marks(trace: Trace, points: Sequence[tuple[float, float]]) -> list[str]:
    look = trace["marker"]
    hollow = "open" in look.get("symbol", "")
    colour = _class("s" if hollow else "f", look["color"])
    radius = look["size"] / 2
    rest = ' fill="none"' if hollow else ""
    return [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{colour}"{rest}/>'
        for x, y in points
    ]


def _whiskers(trace: Trace, paper: _Paper, x_of: Sequence[float] | None = None) -> list[str]:
    look = trace.get("error_y")
    if look is None:
        return []
    parts = []
    for place, (x, y, half) in enumerate(zip(trace["x"], trace["y"], look["array"], strict=True)):
        if y is None or half is None or x is None:
            continue
        at = paper.x.at(x) if x_of is None else x_of[place]
        low, high = paper.y.at(y - half), paper.y.at(y + half)
        parts.append(
            f"M{at:.1f} {low:.1f}V{high:.1f}M{at - 3:.1f} {low:.1f}h6M{at - 3:.1f} {high:.1f}h6"
        )
    return [f'<path d="{"".join(parts)}" class="{_class("s", look["color"])}"/>'] if parts else []


def _bars(layout: dict[str, Any], traces: Sequence[Trace], paper: _Paper) -> list[str]:
    bars = [trace for trace in traces if trace["type"] == "bar"]
    if not bars:
        return []
    grouped = layout.get("barmode", "group") == "group"
    places = len(bars) if grouped else 1
    slot = (paper.x.at(1) - paper.x.at(0)) * 0.8
    width = max(0.8, slot / places)
    stacked: dict[float, float] = {}
    parts = []
    for number, trace in enumerate(bars):
        middles = []
        for x, y in zip(trace["x"], trace["y"], strict=True):
            left = paper.x.at(x) - slot / 2 + (width * number if grouped else 0)
            middles.append(left + width / 2)
            if not y:
                continue
            foot = stacked.get(x, 0.0) if layout.get("barmode") == "stack" else 0.0
            stacked[x] = foot + y
            ends = sorted((paper.y.at(foot), paper.y.at(foot + y)))
            shape = (
                f'x="{left:.1f}" y="{ends[0]:.1f}" width="{width:.1f}" '
                f'height="{max(0.5, ends[1] - ends[0]):.1f}"'
            )
            parts += _filled(shape, trace["marker"])
        parts += _whiskers(trace, paper, middles)
    return parts


def _filled(shape: str, look: Mapping[str, Any]) -> list[str]:
    """Return a filled shape, and its hatch above it."""
    parts = [f'<rect {shape} class="{_class("f", look["color"])}"/>']
    hatch = look.get("pattern", {}).get("shape", "")
    return [*parts, f'<rect {shape} fill="url(#hatch-{_HATCHES[hatch]})"/>'] if hatch else parts


def _shape(shape: Mapping[str, Any], paper: _Paper) -> str:
    """Return a shaded range of x, or a horizontal line across the plot."""
    left, top, width, height = paper.box
    if shape["type"] == "rect":
        x0, x1 = paper.x.at(shape["x0"]), paper.x.at(shape["x1"])
        return (
            f'<rect x="{x0:.1f}" y="{top:.1f}" width="{x1 - x0:.1f}" height="{height:.1f}" '
            f'class="{_class("f", shape["fillcolor"])}"/>'
        )
    data = f"M{left:.1f} {paper.y.at(shape['y0']):.1f}h{width:.1f}"
    return f'<path d="{data}" {_stroke(shape["line"])}/>'


_HATCHES: Final = {"x": "cross", "/": "up", "\\": "down", "-": "flat", "|": "tall", ".": "dots"}
_HATCH_PATHS: Final = {
    "cross": "M0 0L6 6M6 0L0 6",
    "up": "M0 6L6 0",
    "down": "M0 0L6 6",
    "flat": "M0 3h6",
    "tall": "M3 0v6",
    "dots": "M3 2v2",
}


def hatches() -> str:
    """Return the definitions of the hatch patterns, which a page needs once."""
    return f'<svg class="hatches" aria-hidden="true">{_patterns()}</svg>'


def _patterns() -> str:
    patterns = "".join(
        f'<pattern id="hatch-{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" class="s-ground" stroke-width="1"/></pattern>'
        for name, path in _HATCH_PATHS.items()
    )
    return f"<defs>{patterns}</defs>"


def _cells(trace: Trace) -> NDArray[np.float64]:
    # None becomes NaN.
    return np.array(trace["z"], dtype=np.float64)


def _heat(trace: Trace, paper: _Paper) -> Iterator[str]:
    cells = _cells(trace)
    if not cells.size:
        return
    pixels = colourise(cells, _top(cells), HEAT)
    x = trace["x"]
    half = (x[1] - x[0]) / 2 if len(x) > 1 else 0.5
    left, right = paper.x.at(x[0] - half), paper.x.at(x[-1] + half)
    _, top, _, height = paper.box
    yield (
        f'<image href="{data_uri(pixels)}" x="{left:.1f}" y="{top:.1f}" '
        f'width="{right - left:.1f}" height="{height:.1f}" preserveAspectRatio="none" '
        'style="image-rendering:pixelated"/>'
    )


def _top(cells: NDArray[np.float64]) -> float:
    return float(np.nanmax(cells)) if not np.isnan(cells).all() else 1.0


def _colour_bar(traces: Sequence[Trace], paper: _Paper) -> Iterator[str]:
    if not traces:
        return
    _, top, _, height = paper.box
    left = paper.width - 52
    ramp = colourise(np.linspace(1, 0, 64)[:, None], 1.0, HEAT)
    axis = Axis(low=0.0, high=_top(_cells(traces[0])), start=top + height, stop=top)
    unit = escape(traces[0]["colorbar"]["title"]["text"])
    yield (
        f'<image href="{data_uri(ramp)}" x="{left}" y="{top:.1f}" width="10" '
        f'height="{height:.1f}" preserveAspectRatio="none"/>'
    )
    for tick in axis.ticks(4):
        yield f'<text x="{left + 14}" y="{axis.at(tick) + 4:.1f}">{said(tick)}</text>'
    yield (
        f'<text transform="translate({paper.width - 4:g} {top + height / 2:.1f})rotate(-90)" '
        f'text-anchor="middle" class="axis">{unit}</text>'
    )


_Entry = tuple[str, str, Trace]


def _legend_entries(layout: dict[str, Any], traces: Sequence[Trace]) -> list[_Entry]:
    if not layout["showlegend"]:
        return []
    return [(trace["name"], trace["type"], trace) for trace in traces if trace["type"] != "heatmap"]


def _legend_rows(entries: Sequence[_Entry], width: float) -> list[list[tuple[float, _Entry]]]:
    """Return the legend entries with their x position, wrapped into rows."""
    rows: list[list[tuple[float, _Entry]]] = []
    x = math.inf
    for entry in entries:
        needed = 34 + _CHAR * len(entry[0])
        if x + needed > width - 8:
            rows.append([])
            x = 8.0
        rows[-1].append((x, entry))
        x += needed + 8
    return rows


def _legend(rows: Sequence[Sequence[tuple[float, _Entry]]]) -> list[str]:
    parts = []
    for number, row in enumerate(rows):
        y = 12 + 18 * number
        for x, (text, kind, trace) in row:
            if kind == "bar":
                shape = f'x="{x:.1f}" y="{y - 6}" width="18" height="11"'
                parts += _filled(shape, trace["marker"])
            elif trace["mode"] == "markers":
                parts += _marks(trace, [(x + 9, float(y))])
            else:
                parts.append(f'<path d="M{x:.1f} {y}h20" {_stroke(trace["line"])}/>')
            parts.append(f'<text x="{x + 26:.1f}" y="{y + 4}">{escape(text)}</text>')
    return parts
