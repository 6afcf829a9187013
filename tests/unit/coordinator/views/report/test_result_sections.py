"""Tests for the sections with results."""

from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.views.report.build import build
from broadside.coordinator.views.report.render import html
from broadside.coordinator.views.report.stored_source import detailed
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.views.charts.views import ended
from tests.unit.coordinator.views.report.test_build import sourced


async def test_verdict_is_first_and_findings_are_sorted_by_weight(fabric: Fabric) -> None:
    source = await sourced(fabric)
    report = build(source)
    text = html(report, source)
    order = [text.index(mark) for mark in ('class="verdict', 'id="findings"', 'id="figures"')]
    assert order == sorted(order)
    assert f"<strong>{source.summary.verdict.value}</strong>" in text
    weights = [finding.weight for finding in report.findings]
    assert weights == sorted(weights, reverse=True)
    places = [text.index(html_text(finding.sentence)) for finding in report.findings]
    assert places == sorted(places)


def html_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&#39;")


def test_long_run_shows_first_worst_and_last_burst() -> None:
    summary: RunSummary = ended()[2]
    bursts = [summary.bursts[0].model_copy(update={"index": index}) for index in range(9)]
    bursts[5] = bursts[5].model_copy(update={"completeness_ratio": 0.1})
    assert detailed(bursts) == [0, 5, 8]
    assert detailed(bursts[:2]) == [0, 1]
