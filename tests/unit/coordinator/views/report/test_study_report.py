"""A study's report says its answer, draws its chart and lists its trials, for every question."""

import xml.etree.ElementTree as ET
from datetime import UTC, datetime

import pytest

from broadside.coordinator.studies.study import Axis, Study, Sweep
from broadside.coordinator.views.charts.study_charts import chart_of, draw_study
from broadside.coordinator.views.report.study_report import build_study, study_html
from tests.unit.coordinator.studies.samples import (
    IN_MODES,
    OVER_TWO_DEVICES,
    SWEEP,
    SWEPT,
    drilled,
    grown,
    results,
    searched,
    study,
)

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ENGINES = Sweep(
    axes=(
        Axis(field="traffic.engine", values=("iperf3", "http")),
        Axis(field="traffic.streams_count", values=(1, 8)),
    )
)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (SWEPT, "Payload over traffic.streams_count"),
        (IN_MODES, "Payload and CPU by mode"),
        (searched(), "Received rate over offered rate"),
        (grown(), "31.4 Gbit/s"),
        (drilled(), "1500 ms ± 20"),
        (study(ENGINES, results(1e9, 2e9, 3e9, None)), "Payload over traffic.engine"),
    ],
    ids=["sweep", "modes", "search", "scaleout", "drill", "engines"],
)
def test_every_question_has_its_chart_and_tables(told: Study, words: str) -> None:
    report = build_study(told, NOW)
    page = study_html(report)
    assert told.conclusion is not None
    assert report.headline == told.conclusion.sentence
    assert words in page
    figure = draw_study(chart_of(told), told).figure
    shown = {series.name for series in figure.series} if len(figure.series) > 1 else set()
    svgs = [f"<svg {part.partition('</svg>')[0]}</svg>" for part in page.split("<svg ")[1:]]
    roots = [ET.fromstring(svg) for svg in svgs]  # noqa: S314 - our own
    drawings = [root for root in roots if root.get("role") == "img"]
    assert len(drawings) == 2  # on paper, and on a phone
    for root in drawings:
        written = {text.text for text in root.iter() if text.text}
        assert shown | {figure.y.title} <= written
    assert "://" not in page.replace("http://www.w3.org", "")


def test_two_devices_are_told_apart_with_their_shares_and_cpu() -> None:
    [devices] = [
        table
        for section in build_study(OVER_TWO_DEVICES, NOW).sections
        for table in section.tables
        if table.title == "Devices"
    ]
    assert devices.rows[6:] == (
        ("4", "mode log", "fw-a", "29.4 Mbit/s", "70.0 %", "99.0 %"),
        ("4", "mode log", "fw-b", "12.6 Mbit/s", "30.0 %", "64.0 %"),
    )
    assert "fw-b, CPU" in study_html(build_study(OVER_TWO_DEVICES, NOW))


def test_a_study_without_a_trial_says_so_in_place_of_a_chart() -> None:
    report = build_study(study(SWEEP, []), NOW)
    assert "no complete trial has a rate yet" in study_html(report)
