"""Tests for charts over time."""

from dataclasses import replace

import numpy as np
import pytest

from broadside.coordinator.views.charts import (
    Chart,
    NoChart,
    draw_burst,
)
from broadside.coordinator.views.charts.figure import HeatMap
from broadside.coordinator.views.charts.time_charts import HEAT_CELLS_MAX
from broadside.exchange.messages import Flow
from tests.synthetic import Plant
from tests.unit.coordinator.views.charts.test_catalogue import series_of
from tests.unit.coordinator.views.charts.views import (
    burst_view,
    counted,
    mixed,
    telemetered,
    unseen,
)


def heat_of(chart: Chart) -> HeatMap:
    assert chart.figure.heat_map is not None
    return chart.figure.heat_map


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


def test_outcomes_that_did_not_occur_are_not_drawn() -> None:
    figure = draw_burst("connections", counted(burst_view())).figure
    assert [series.name for series in figure.series] == ["attempted", "established", "timed out"]
    assert {series.y[5] for series in figure.series} == {100, 90, 10}


def test_sustain_phase_is_shaded() -> None:
    view = counted(burst_view())
    ramped = replace(view, series=replace(view.series, sustain=(5, 23)))
    for name in ("connections", "connection-times"):
        figure = draw_burst(name, ramped).figure
        assert figure.spans == [(5, 23)]
        assert "(shaded: sustain phase, between ramp-up and ramp-down)" in figure.x.title
        plain = draw_burst(name, view).figure
        assert plain.spans is None
        assert "shaded" not in plain.x.title


def test_times_of_connections_are_in_milliseconds() -> None:
    figure = draw_burst("connection-times", counted(burst_view())).figure
    values = {series.name: series.y[5] for series in figure.series}
    assert values == {"handshake, p50": 1.5, "handshake, p99": 3.0, "handshake, max": 4.5}


def test_telemetry_is_drawn_relative_to_its_highest_second() -> None:
    with pytest.raises(NoChart, match="chart device: burst 1 has no data"):
        draw_burst("device", burst_view())
    figure = draw_burst("device", telemetered(burst_view())).figure
    # The minute of the sessions begins before the burst and ends after it.
    assert [series.name for series in figure.series] == [
        "CPU (100 %: 80.00 %)",
        "sessions (100 %: 80\u202f000)",
    ]
    cpu, sessions = figure.series
    assert cpu.y[1] == pytest.approx(25)
    assert max(value or 0 for value in cpu.y) == 100
    # Readings of CPU end 15 s after the start, and a value is not used for long.
    assert cpu.y[-1] is None
    assert set(sessions.y) <= {100, None}


def test_parts_are_drawn_relative_to_their_highest_second() -> None:
    view = burst_view()
    with pytest.raises(NoChart, match="chart parts: burst 1 has no data"):
        draw_burst("parts", view)
    figure = draw_burst("parts", mixed(view)).figure
    assert [series.name for series in figure.series][1:] == [
        "connections (100 %: 2 Mbit/s)",
        "connections, open (100 %: 1\u202f200)",
    ]
    assert figure.series[0].name.startswith("iperf3 (100 %: ")
    assert figure.series[1].y == [None, 50, 100]
    assert max(value or 0 for value in figure.series[0].y) == pytest.approx(100)
