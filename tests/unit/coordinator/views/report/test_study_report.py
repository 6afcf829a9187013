"""Tests for the study report."""

import xml.etree.ElementTree as ET
from datetime import UTC, datetime

import pytest

from broadside.coordinator.studies.study import Axis, Study, Sweep
from broadside.coordinator.views.charts.study_charts import chart_of, draw_study
from broadside.coordinator.views.report.study_report import build_study, study_html
from tests.unit.coordinator.studies.samples import (
    IN_MODES,
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
    ("sample", "text"),
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
def test_study_report_has_chart_and_tables(sample: Study, text: str) -> None:
    report = build_study(sample, NOW)
    page = study_html(report)
    assert sample.conclusion is not None
    assert report.headline == sample.conclusion.sentence
    assert text in page
    figure = draw_study(chart_of(sample), sample).figure
    shown = {series.name for series in figure.series} if len(figure.series) > 1 else set()
    svgs = [f"<svg {part.partition('</svg>')[0]}</svg>" for part in page.split("<svg ")[1:]]
    roots = [ET.fromstring(svg) for svg in svgs]  # noqa: S314
    drawings = [root for root in roots if root.get("role") == "img"]
    # There is a wide and a narrow drawing.
    assert len(drawings) == 2
    for root in drawings:
        texts = {element.text for element in root.iter() if element.text}
        assert shown | {figure.y.title} <= texts
    assert "://" not in page.replace("http://www.w3.org", "")


def test_study_without_trials_has_a_message_instead_of_a_chart() -> None:
    report = build_study(study(SWEEP, []), NOW)
    assert "no complete trial has a rate yet" in study_html(report)
