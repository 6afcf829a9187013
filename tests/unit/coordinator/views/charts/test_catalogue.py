"""Tests for the chart data of bursts and runs."""

import re
from dataclasses import replace

import numpy as np
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
from broadside.coordinator.views.charts.figure import ChartSeries, HeatMap
from broadside.coordinator.views.charts.svg import draw
from broadside.coordinator.views.charts.time_charts import HEAT_CELLS_MAX
from broadside.exchange.messages import Flow
from tests.synthetic import Plant
from tests.unit.coordinator.views.charts.views import FAULTY, burst_view, drawn, run_view, unseen

BURST_CHARTS = [entry.name for entry in catalogue() if entry.kind == "burst"]


def series_of(chart: Chart, name: str) -> ChartSeries:
    return next(series for series in chart.figure.series if series.name == name)


def heat_of(chart: Chart) -> HeatMap:
    assert chart.figure.heat_map is not None
    return chart.figure.heat_map


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


def test_throughput_is_at_the_layer_of_the_objective() -> None:
    view = burst_view()
    received = series_of(draw_burst("throughput", view), "fleet received")
    index = received.x.index(10.5)
    second = round(view.series.planned_start_s + 10 - view.series.start_s)
    payload = float(view.series.received_bytes[second]) * 8
    assert received.y[index] == pytest.approx(payload * view.summary.header_ratio / 1e9, 1e-4)


def test_device_counter_matches_fleet_after_lag_correction() -> None:
    view = burst_view(Plant(pairs=8, bursts=1, lag_s=7.0, firewall_bits_per_second=None))
    chart = draw_burst("throughput", view)
    counter = next(s for s in chart.figure.series if s.name.startswith("device counter"))
    fleet = series_of(chart, "fleet received")
    assert "7" in counter.name
    steady = [y for x, y in zip(counter.x, counter.y, strict=True) if x and y and 5 < x < 25]
    assert np.mean(steady) == pytest.approx(np.mean([y or 0 for y in fleet.y[6:24]]), rel=0.01)


def test_unknown_values_are_gaps() -> None:
    view = unseen(burst_view(), 5, 8)
    flow = view.series.flows[0]
    pairs = flow.pairs_bits_per_second.copy()
    pairs[3, 5:8] = np.nan
    flows = (replace(flow, pairs_bits_per_second=pairs),)
    silent = replace(view, series=replace(view.series, flows=flows))
    received = series_of(draw_burst("throughput", silent), "fleet received")
    assert received.y[5:8] == [None] * 3
    heat = heat_of(draw_burst("heatmap", silent))
    first = silent.series.start_s - silent.series.planned_start_s + 0.5
    gaps = [
        x - first
        for x, cell in zip(heat.x, heat.cells[3], strict=True)
        if x is not None and cell is None
    ]
    assert gaps == [5, 6, 7]
    assert 0.0 not in heat.cells[3]


def test_heat_map_needs_seconds_of_all_flows() -> None:
    view = burst_view()
    (flow,) = view.series.flows
    down = replace(flow, flow=Flow.DOWN, pairs_bits_per_second=flow.pairs_bits_per_second[:0])
    both = replace(view, series=replace(view.series, flows=(flow, down)))
    with pytest.raises(NoChart, match="burst 1 has no data for it"):
        draw_burst("heatmap", both)


def test_large_heat_map_is_reduced_to_means() -> None:
    view = burst_view()
    flow = view.series.flows[0]
    wide = np.tile(flow.pairs_bits_per_second, (40, 12)).astype(np.float32)
    wide[0, :] = np.nan
    large = replace(
        view,
        series=replace(view.series, flows=(replace(flow, pairs_bits_per_second=wide),)),
    )
    chart = draw_burst("heatmap", large)
    cells = heat_of(chart).cells
    assert sum(map(len, cells)) <= HEAT_CELLS_MAX
    assert set(cells[0]) == {None}
    assert "mean over" in chart.figure.x.title


def test_unmeasured_pairs_are_grouped_by_state() -> None:
    chart = draw_burst("pairs", burst_view())
    states = {series.name: series for series in chart.figure.series}
    assert set(states) >= {"measured", "late", "null", "abandoned", "missed"}
    assert states["null"].notes == ["unable to connect to server"]
    assert states["missed"].y in ([0.0], [None])


def test_burst_axis_has_integer_ticks() -> None:
    for name in ("bursts", "completeness", "residuals"):
        assert draw_run(name, run_view()).figure.x.is_integer


def test_states_of_a_burst_add_up_to_100_percent() -> None:
    chart = draw_run("completeness", run_view())
    for burst in range(FAULTY.bursts):
        total = sum(state.y[burst] or 0 for state in chart.figure.series)
        assert total == pytest.approx(100, abs=0.01)


def test_latency_chart_shows_pair_values_in_milliseconds() -> None:
    view = burst_view()
    chart = draw_burst("latency", view)
    loaded = series_of(chart, "under load, p99")
    pair = view.summary.pairs[int(loaded.x[5] or 0) - 1]
    assert pair.latency is not None and pair.latency.during.p99_s is not None
    assert loaded.y[5] == pytest.approx(pair.latency.during.p99_s * 1000)
    assert set(series_of(chart, "before load, p50").y) == {1.0}


def test_chart_error_gives_the_reason() -> None:
    with pytest.raises(UnknownChart, match="did you mean 'throughput'"):
        draw_burst("troughput", burst_view())
    with pytest.raises(NoChart, match="shows the complete run"):
        draw_burst("bursts", burst_view())
    with pytest.raises(NoChart, match="shows one burst"):
        draw_run("rtt", run_view())
    alone = Plant(pairs=4, bursts=1, ledger=False)
    with pytest.raises(NoChart, match="no device counter"):
        draw_burst("reconciliation", burst_view(alone))
    with pytest.raises(NoChart, match="no reconciliation"):
        draw_run("residuals", run_view(alone))
    assert len(set(CHARTS)) == len(catalogue())


def test_pair_axis_has_integer_ticks() -> None:
    view = burst_view(Plant(pairs=1, bursts=1))
    figure = draw_burst("heatmap", view).figure
    assert figure.y.is_integer
    labels = re.findall(
        r'text-anchor="end">([^<]*)</text>', draw(figure, width=400, height=300, name="heat")
    )
    assert "1" in labels and not any("." in label for label in labels)


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
            draw_burst("throughput", replace(view, ledger=None))
        with pytest.raises(NoChart, match="the run has no data"):
            draw_run("bursts", run_view(Plant(pairs=3, bursts=3, missing=3)))
