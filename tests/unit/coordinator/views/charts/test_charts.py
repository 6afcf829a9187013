"""Charts are valid plotly, say units and layers, and never draw what is unknown as zero."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects
import pytest

from broadside.coordinator.views.charts import (
    CHARTS,
    Chart,
    NoChart,
    Theme,
    UnknownChart,
    catalogue,
    draw_burst,
    draw_run,
)
from broadside.coordinator.views.charts.second_charts import HEAT_CELLS_MAX
from broadside.coordinator.views.charts.svg import draw
from broadside.exchange.messages import Flow
from tests.synthetic import Plant
from tests.unit.coordinator.views.charts.views import FAULTY, burst_view, drawn, run_view, unseen

BURST_CHARTS = [entry.name for entry in catalogue() if entry.kind == "burst"]


def trace(chart: Chart, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(t for t in chart.figure["data"] if t.get("name", "") == name)
    return found


@pytest.mark.parametrize("theme", Theme)
def test_every_chart_is_valid_plotly_and_json(theme: Theme) -> None:
    for chart in (drawn(entry, theme) for entry in catalogue()):
        figure = json.loads(chart.model_dump_json())["figure"]
        plotly.graph_objects.Figure(figure)  # raises for a property or a value that it lacks
        assert figure["data"], chart.name


def test_axes_say_units_and_layers() -> None:
    for chart in map(drawn, catalogue()):
        said = chart.figure["layout"]["yaxis"]["title"]["text"]
        assert said == "pair" or "," in said or said.startswith("%"), chart.name
        assert chart.figure["layout"]["xaxis"]["title"]["text"], chart.name
    rates = draw_burst("throughput", burst_view(), Theme.LIGHT).figure["layout"]["yaxis"]
    assert rates["title"]["text"] == "Gbit/s, IP layer"


def test_the_throughput_is_the_series_at_the_objectives_layer() -> None:
    view = burst_view()
    received = trace(draw_burst("throughput", view, Theme.LIGHT), "fleet received")
    index = received["x"].index(10.5)
    second = round(view.series.planned_start_s + 10 - view.series.start_s)
    payload = float(view.series.received_bytes[second]) * 8
    assert received["y"][index] == pytest.approx(payload * view.summary.header_ratio / 1e9, 1e-4)


def test_the_ledger_lies_over_the_fleet_once_its_lag_is_taken_off() -> None:
    view = burst_view(Plant(pairs=8, bursts=1, lag_s=7.0, firewall_bits_per_second=None))
    chart = draw_burst("throughput", view, Theme.LIGHT)
    ledger = next(t for t in chart.figure["data"] if t["name"].startswith("firewall ledger"))
    fleet = trace(chart, "fleet received")
    assert "7" in ledger["name"]
    steady = [y for x, y in zip(ledger["x"], ledger["y"], strict=True) if 5 < x < 25]
    assert np.mean(steady) == pytest.approx(np.mean(fleet["y"][6:24]), rel=0.01)


def test_what_is_unknown_is_a_gap() -> None:
    view = unseen(burst_view(), 5, 8)
    flow = view.series.flows[0]
    pairs = flow.pairs_bits_per_second.copy()
    pairs[3, 5:8] = np.nan
    flows = (replace(flow, pairs_bits_per_second=pairs),)
    silent = replace(view, series=replace(view.series, flows=flows))
    received = trace(draw_burst("throughput", silent, Theme.LIGHT), "fleet received")
    assert received["y"][5:8] == [None] * 3
    assert received["connectgaps"] is False
    heat = draw_burst("heatmap", silent, Theme.LIGHT).figure["data"][0]
    first = silent.series.start_s - silent.series.planned_start_s + 0.5
    gaps = [x - first for x, z in zip(heat["x"], heat["z"][3], strict=True) if z is None]
    assert gaps == [5, 6, 7]
    assert 0.0 not in heat["z"][3]
    # Plotly takes a lower bound of colours only beside an upper one.
    assert heat["zmin"] == 0
    assert heat["zmax"] == pytest.approx(np.nanmax(np.array(heat["z"], float)), rel=1e-4)


def test_a_heat_map_needs_the_seconds_of_all_flows() -> None:
    view = burst_view()
    (flow,) = view.series.flows
    down = replace(flow, flow=Flow.DOWN, pairs_bits_per_second=flow.pairs_bits_per_second[:0])
    both = replace(view, series=replace(view.series, flows=(flow, down)))
    with pytest.raises(NoChart, match="nothing that it shows is on record"):
        draw_burst("heatmap", both, Theme.LIGHT)


def test_a_large_heat_map_is_thinned_and_says_so() -> None:
    view = burst_view()
    flow = view.series.flows[0]
    wide = np.tile(flow.pairs_bits_per_second, (40, 12)).astype(np.float32)
    wide[0, :] = np.nan
    large = replace(
        view,
        series=replace(view.series, flows=(replace(flow, pairs_bits_per_second=wide),)),
    )
    chart = draw_burst("heatmap", large, Theme.LIGHT)
    cells = chart.figure["data"][0]["z"]
    assert sum(map(len, cells)) <= HEAT_CELLS_MAX
    assert set(cells[0]) == {None}
    assert "mean over" in chart.figure["layout"]["xaxis"]["title"]["text"]


def test_pairs_that_were_not_measured_are_named_by_state() -> None:
    chart = draw_burst("pairs", burst_view(), Theme.LIGHT)
    states = {t["name"]: t for t in chart.figure["data"]}
    assert set(states) >= {"measured", "late", "null", "abandoned", "missed"}
    assert states["null"]["customdata"] == ["unable to connect to server"]
    assert states["missed"]["y"] in ([0.0], [None])


def test_bursts_are_numbered_in_whole_ones() -> None:
    for name in ("bursts", "completeness", "residuals"):
        axis = draw_run(name, run_view(), Theme.LIGHT).figure["layout"]["xaxis"]
        assert (axis["tick0"], axis["dtick"]) == (0, 1)


def test_states_of_every_burst_sum_to_all_that_was_planned() -> None:
    chart = draw_run("completeness", run_view(), Theme.LIGHT)
    for burst in range(FAULTY.bursts):
        total = sum(state["y"][burst] for state in chart.figure["data"])
        assert total == pytest.approx(100, abs=0.01)


def test_round_trips_are_the_pairs_own_in_milliseconds() -> None:
    view = burst_view()
    chart = draw_burst("latency", view, Theme.LIGHT)
    loaded = trace(chart, "under load, p99")
    pair = view.summary.pairs[int(loaded["x"][5]) - 1]
    assert pair.latency is not None and pair.latency.during.p99_s is not None
    assert loaded["y"][5] == pytest.approx(pair.latency.during.p99_s * 1000)
    assert set(trace(chart, "before, p50")["y"]) == {1.0}


def test_a_chart_that_cannot_be_says_why() -> None:
    with pytest.raises(UnknownChart, match="did you mean 'throughput'"):
        draw_burst("troughput", burst_view(), Theme.LIGHT)
    with pytest.raises(NoChart, match="whole runs"):
        draw_burst("bursts", burst_view(), Theme.LIGHT)
    with pytest.raises(NoChart, match="one burst"):
        draw_run("rtt", run_view(), Theme.LIGHT)
    alone = Plant(pairs=4, bursts=1, ledger=False)
    with pytest.raises(NoChart, match="no ledger"):
        draw_burst("reconciliation", burst_view(alone), Theme.LIGHT)
    with pytest.raises(NoChart, match="no ledger"):
        draw_run("residuals", run_view(alone), Theme.LIGHT)
    with pytest.raises(NoChart, match="needs 3 bursts, the run has 1"):
        draw_run("trend", run_view(alone), Theme.LIGHT)
    assert len(set(CHARTS)) == len(catalogue())


def test_pairs_stand_at_whole_numbers_however_few_they_are() -> None:
    view = burst_view(Plant(pairs=1, bursts=1))
    figure = dict(draw_burst("heatmap", view, Theme.LIGHT).figure)
    axis = figure["layout"]["yaxis"]
    assert (axis["tick0"], axis["dtick"]) == (0, 1)
    labels = re.findall(
        r'text-anchor="end">([^<]*)</text>', draw(figure, width=400, height=300, name="heat")
    )
    assert "1" in labels and not any("." in label for label in labels)


@pytest.mark.parametrize("name", BURST_CHARTS)
def test_no_axis_is_drawn_without_data(name: str) -> None:
    """Of a burst that nobody ran there is the firewall's ledger."""
    view = burst_view(Plant(pairs=3, bursts=1, missing=3))
    if name in ("throughput", "reconciliation"):
        chart = draw_burst(name, view, Theme.LIGHT)
        plotly.graph_objects.Figure(dict(chart.figure))
        if name == "throughput":
            assert set(trace(chart, "fleet received")["y"]) == {None}
        return
    why = "no probes" if name == "latency" else "nothing that it shows is on record of burst 1"
    with pytest.raises(NoChart, match=why):
        draw_burst(name, view, Theme.LIGHT)
    if name == "cpu":
        with pytest.raises(NoChart, match="on record of burst 1"):
            draw_burst("throughput", replace(view, ledger=None), Theme.LIGHT)
        with pytest.raises(NoChart, match="on record of the run"):
            draw_run("trend", run_view(Plant(pairs=3, bursts=3, missing=3)), Theme.LIGHT)
