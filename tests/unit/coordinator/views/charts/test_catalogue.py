"""Tests for the chart data of bursts and runs."""

from dataclasses import replace

import pytest

from broadside.coordinator.views.charts import (
    CHARTS,
    Chart,
    NoChart,
    UnknownChart,
    catalogue,
    draw_burst,
    draw_run,
)
from broadside.coordinator.views.charts.figure import ChartSeries
from tests.synthetic import Plant
from tests.unit.coordinator.views.charts.views import burst_view, drawn, run_view

BURST_CHARTS = [entry.name for entry in catalogue() if entry.kind == "burst"]


def series_of(chart: Chart, name: str) -> ChartSeries:
    return next(series for series in chart.figure.series if series.name == name)


def test_charts_round_trip_through_json() -> None:
    for chart in map(drawn, catalogue()):
        assert Chart.model_validate_json(chart.model_dump_json()) == chart
        assert "NaN" not in chart.model_dump_json()


def test_axes_have_units_and_layers() -> None:
    for chart in map(drawn, catalogue()):
        title = chart.figure.y.title
        assert title == "pair" or "," in title or title.startswith("%"), chart.name
        assert chart.figure.x.title, chart.name
    assert draw_burst("throughput", burst_view()).figure.y.title == "Gbit/s, IP layer"


def test_chart_error_gives_the_reason() -> None:
    with pytest.raises(UnknownChart, match="did you mean 'throughput'"):
        draw_burst("troughput", burst_view())
    with pytest.raises(NoChart, match="shows the complete run"):
        draw_burst("bursts", burst_view())
    with pytest.raises(NoChart, match="shows one burst"):
        draw_run("rtt", run_view())
    alone = Plant(pairs=4, bursts=1, device_counter=False)
    with pytest.raises(NoChart, match="no device counter"):
        draw_burst("reconciliation", burst_view(alone))
    with pytest.raises(NoChart, match="no reconciliation"):
        draw_run("residuals", run_view(alone))
    assert len(set(CHARTS)) == len(catalogue())


@pytest.mark.parametrize("name", BURST_CHARTS)
def test_chart_without_data_is_an_error(name: str) -> None:
    """There is data from the device counter even if no agents were running."""
    view = burst_view(Plant(pairs=3, bursts=1, missing=3))
    if name in ("throughput", "reconciliation"):
        chart = draw_burst(name, view)
        if name == "throughput":
            assert set(series_of(chart, "fleet received").y) == {None}
        return
    why = "no probes" if name == "latency" else "burst 1 has no data for it"
    with pytest.raises(NoChart, match=why):
        draw_burst(name, view)
    if name == "cpu":
        with pytest.raises(NoChart, match="burst 1 has no data"):
            draw_burst("throughput", replace(view, device_counter=None))
        with pytest.raises(NoChart, match="the run has no data"):
            draw_run("bursts", run_view(Plant(pairs=3, bursts=3, missing=3)))
