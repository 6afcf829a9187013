"""Tests for SVG charts."""

import base64
import re
import xml.etree.ElementTree as ET
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.views.charts import ChartEntry, Theme, catalogue, draw_burst, draw_run
from broadside.coordinator.views.charts.svg import (
    AxisScale,
    colourise,
    data_uri,
    draw,
    hatches,
    round_step,
    standalone,
    styles,
)
from broadside.coordinator.views.charts.theme import HEAT
from tests.unit.coordinator.views.charts.views import burst_view, drawn, run_view, unseen

SVG = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ET.Element:
    named = text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return ET.fromstring(named)  # noqa: S314


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
@pytest.mark.parametrize("width", [400.0, 920.0])
def test_svg_has_titles_legends_and_known_classes(entry: ChartEntry, width: float) -> None:
    chart = drawn(entry)
    root = parsed(draw(chart.figure, width=width, height=280, name="chart"))
    parts = [text.text for text in root.iter(f"{SVG}text")]
    title = chart.figure.x.title
    assert title in parts or set(title.replace(" (", "\n(").split("\n")) <= set(parts)
    assert chart.figure.y.title in parts
    if len(chart.figure.series) > 1 or chart.figure.has_legend:
        assert {series.name for series in chart.figure.series} <= set(parts)
    classes = {element.get("class") for element in root.iter() if element.get("class")}
    known = set(re.findall(r"\.([sf]-[a-z-]+)\{", styles(Theme.DARK)))
    assert {c for c in classes if c is not None and c[:2] in ("s-", "f-")} <= known


def test_gap_breaks_the_line() -> None:
    chart = draw_burst("throughput", unseen(burst_view(), 10, 12))
    root = parsed(draw(chart.figure, width=920, height=280, name="chart"))
    fleet = next(
        path
        for path in root.iter(f"{SVG}path")
        if path.get("class") == "s-fleet" and "L" in (path.get("d") or "")
    )
    assert (fleet.get("d") or "").count("M") == 2


def test_text_is_escaped() -> None:
    figure = replace(draw_burst("rtt", burst_view()).figure, title="<script>&")
    assert "<script>" not in draw(figure, width=400, height=200, name="chart")


def test_used_hatches_are_defined() -> None:
    chart = draw_run("completeness", run_view())
    used = re.findall(r"url\(#(hatch-\w+)\)", draw(chart.figure, width=400, height=200, name="x"))
    assert used
    assert all(f'id="{name}"' in hatches() for name in used)


def test_heat_map_is_a_png_of_the_cells() -> None:
    cells = np.array([[0.0, 1.0], [np.nan, 0.5]])
    pixels = colourise(cells, 1.0, HEAT)
    assert pixels[1, 0, 3] == 0
    assert [f"#{r:02x}{g:02x}{b:02x}" for r, g, b, _ in (pixels[0, 0], pixels[0, 1])] == [
        HEAT[0][1],
        HEAT[-1][1],
    ]
    png = base64.b64decode(data_uri(pixels).partition(",")[2])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    body = png[png.index(b"IDAT") + 4 : png.index(b"IEND") - 8]
    rows = zlib.decompress(body)
    assert len(rows) == 2 * (1 + 2 * 4)
    assert rows[1:9] == pixels[0].tobytes()


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 12))
def test_ticks_are_round_and_within_the_axis(low: float, width: float, most: int) -> None:
    axis = AxisScale(low=low, high=low + width, start=0.0, stop=100.0)
    ticks = axis.ticks(most)
    assert len(ticks) <= most + 1
    step = round_step(width / most)
    for tick in ticks:
        assert low - step * 1e-6 <= tick <= low + width + step * 1e-6
        assert -0.01 <= axis.at(tick) <= 100.01


def test_chart_of_zeros_has_a_scale() -> None:
    figure = draw_burst("rtt", burst_view()).figure
    zeros = replace(figure.series[0], y=[0.0] * len(figure.series[0].y))
    labels = re.findall(
        r'text-anchor="end">([^<]*)<',
        draw(replace(figure, series=[zeros]), width=400, height=200, name="chart"),
    )
    assert {"0", "1"} <= set(labels)


@pytest.mark.parametrize("theme", Theme)
def test_standalone_svg_has_title_and_theme_colours(theme: Theme) -> None:
    chart = draw_burst("throughput", burst_view())
    root = ET.fromstring(standalone(chart.figure, width=900, height=400, theme=theme))  # noqa: S314
    text = "".join(root.itertext())
    assert chart.figure.title in text
    assert styles(theme) in text
