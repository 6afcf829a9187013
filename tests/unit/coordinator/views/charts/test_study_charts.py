"""Tests for the charts of a study."""

import httpx
import pytest

from broadside.coordinator.studies.study import AB, Axis, Matrix, Mode, Sweep
from broadside.coordinator.views.charts import NoChart, Theme, UnknownChart
from broadside.coordinator.views.charts.figure import ChartSeries
from broadside.coordinator.views.charts.study_charts import STUDY_CHARTS, StudyChart, draw_study
from broadside.coordinator.views.charts.svg import standalone
from tests.unit.coordinator.studies.samples import (
    IN_MODES,
    MODES,
    OVER_TWO_DEVICES,
    STREAMS,
    SWEEP,
    SWEPT,
    results,
    searched,
    study,
)


def series_by_name(chart: StudyChart) -> dict[str, ChartSeries]:
    return {series.name: series for series in chart.figure.series}


def test_sweep_chart_marks_the_knee() -> None:
    traces = series_by_name(draw_study("sweep", SWEPT))
    assert traces["payload received"].x == list(STREAMS)
    assert traces["payload received"].y == [1.0, 2.0, 4.0, 8.0, 8.1]
    assert (traces["knee"].x, traces["knee"].y) == ([8.0], [8.0])


def test_sweep_over_two_fields_has_a_line_per_second_value() -> None:
    second = Axis(field="traffic.window_bytes", values=(65536, 131072))
    question = Sweep(axes=(*SWEEP.axes, second))
    rates = [n * w * 1e4 for n in STREAMS for w in (65536, 131072)]
    traces = series_by_name(draw_study("sweep", study(question, results(*rates))))
    assert set(traces) == {f"traffic.window_bytes = {w}" for w in (65536, 131072)}


def test_text_values_are_drawn_as_named_bars() -> None:
    question = Sweep(axes=(Axis(field="traffic.congestion", values=("cubic", "bbr")),))
    chart = draw_study("sweep", study(question, results(1e9, 2e9)))
    trace = series_by_name(chart)["payload received"]
    assert (trace.kind, trace.x, trace.y) == ("bars", [1.0, 2.0], [1.0, 2.0])
    assert chart.figure.x.labels == [["cubic"], ["bbr"]]


def test_modes_chart_has_payload_and_cpu_without_unknown_mode() -> None:
    chart = draw_study("modes", IN_MODES)
    traces = series_by_name(chart)
    assert traces["payload"].y == [100.0, 90.0, None]
    assert traces["CPU of clients"].y == [40.0, 40.0, None]
    # This was not reported.
    assert "CPU of servers" not in traces
    assert (chart.figure.x.labels or [])[2] == ["deny", "unknown"]


def test_bars_of_a_device_have_the_same_colour() -> None:
    chart = draw_study("modes", OVER_TWO_DEVICES)
    traces = series_by_name(chart)
    assert list(traces) == ["fw-a, payload", "fw-a, CPU", "fw-b, payload", "fw-b, CPU"]
    assert traces["fw-a, payload"].y == [70.0, 70.0, 66.316, 30.947]
    assert traces["fw-b, CPU"].y == [22.0, 25.0, 41.0, 64.0]
    drawn_series = list(traces.values())
    assert [s.colour for s in drawn_series[::2]] == [s.colour for s in drawn_series[1::2]]
    assert [s.hatch for s in drawn_series] == [None, "up"] * 2
    drawn = standalone(chart.figure, width=900, height=400, theme=Theme.LIGHT)
    assert all(f">{parts}<" in drawn for parts in ("cef", "95 Mbit/s", "log", "42 Mbit/s"))


def test_long_mode_names_are_numbered() -> None:
    modes = Matrix(modes=tuple(Mode(name=f"a-mode-with-a-long-name-{n}") for n in range(3)))
    chart = draw_study("modes", study(modes, results(1e9, 2e9, 3e9)))
    assert chart.figure.x.labels is None
    assert "2 = a-mode-with-a-long-name-1 2 Gbit/s" in chart.figure.x.title


def test_incomplete_trial_is_not_drawn() -> None:
    broken = results(10e9, 9e9, 8e9)
    broken[1] = broken[1].model_copy(update={"completeness_ratio": 0.5})
    traces = series_by_name(draw_study("modes", study(MODES, broken)))
    assert traces["payload"].y == [100.0, None, 80.0]


def test_search_chart_separates_met_and_failed_thresholds() -> None:
    traces = series_by_name(draw_study("search", searched()))
    assert max(filter(None, traces["thresholds met"].x)) <= 7.1
    assert min(filter(None, traces["thresholds not met"].x)) > 7.0


def test_chart_error_names_available_charts() -> None:
    with pytest.raises(NoChart, match="the study is a sweep; use sweep"):
        draw_study("modes", SWEPT)
    ab = AB(a=Mode(name="off"), b=Mode(name="deny"))
    with pytest.raises(NoChart, match="use modes"):
        draw_study("sweep", study(ab, results(1e9)))
    with pytest.raises(NoChart, match="no complete trial has a rate yet"):
        draw_study("sweep", study(SWEEP, results(None)))
    with pytest.raises(NoChart, match="no measured seconds"):
        draw_study("scaleout", SWEPT)
    with pytest.raises(NoChart, match="no measured seconds"):
        draw_study("drill", SWEPT)
    with pytest.raises(UnknownChart, match="charts: sweep, modes, search"):
        draw_study("pie", SWEPT)


async def test_api_has_no_charts_before_the_first_trial(api: httpx.AsyncClient) -> None:
    body = {
        "scenario": "smoke",
        "question": {"kind": "sweep", "axes": [{"field": "pairs_count", "values": [1]}]},
    }
    study_id = (await api.post("/v1/studies", json=body)).json()["study_id"]
    charts = [
        *((study_id, name) for name in STUDY_CHARTS),
        (study_id, "pie"),
        ("nothing", "sweep"),
    ]
    codes = [
        (await api.get(f"/v1/studies/{chart_study_id}/charts/{name}")).status_code
        for chart_study_id, name in charts
    ]
    assert set(codes) <= {404, 409}
