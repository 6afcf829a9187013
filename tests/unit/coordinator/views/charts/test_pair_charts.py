"""Tests for charts over pairs."""

import re

import pytest

from broadside.coordinator.views.charts import (
    draw_burst,
)
from broadside.coordinator.views.charts.svg import draw
from tests.synthetic import Plant
from tests.unit.coordinator.views.charts.test_catalogue import series_of
from tests.unit.coordinator.views.charts.views import burst_view


def test_unmeasured_pairs_are_grouped_by_state() -> None:
    chart = draw_burst("pairs", burst_view())
    states = {series.name: series for series in chart.figure.series}
    assert set(states) >= {"measured", "late", "null", "abandoned", "missed"}
    assert states["null"].notes == ["unable to connect to server"]
    assert states["missed"].y in ([0.0], [None])


def test_latency_chart_shows_pair_values_in_milliseconds() -> None:
    view = burst_view()
    chart = draw_burst("latency", view)
    loaded = series_of(chart, "under load, p99")
    pair = view.summary.pairs[int(loaded.x[5] or 0) - 1]
    assert pair.latency is not None and pair.latency.during.p99_s is not None
    assert loaded.y[5] == pytest.approx(pair.latency.during.p99_s * 1000)
    assert set(series_of(chart, "before load, p50").y) == {1.0}


def test_pair_axis_has_integer_ticks() -> None:
    view = burst_view(Plant(pairs=1, bursts=1))
    figure = draw_burst("heatmap", view).figure
    assert figure.y.is_integer
    labels = re.findall(
        r'text-anchor="end">([^<]*)</text>', draw(figure, width=400, height=300, name="heat")
    )
    assert "1" in labels and not any("." in label for label in labels)
