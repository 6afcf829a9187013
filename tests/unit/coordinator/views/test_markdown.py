"""Tests for the Markdown summary of a verdict or comparison."""

import pytest
from markdown_it import MarkdownIt

from broadside.coordinator.core.comparison.group_comparison import compare
from broadside.coordinator.core.comparison.regression_gate import evaluate_gate, parse_gate
from broadside.coordinator.views.markdown import (
    comparison_markdown,
    plain,
    sparkline,
    verdict_markdown,
)
from tests.synthetic_runs import SMALL, measured
from tests.unit.coordinator.core.comparison.test_group_comparison import group

READER = MarkdownIt("commonmark", {"html": True}).enable("table")


def test_verdict_markdown_has_headline_table_and_findings() -> None:
    summary = measured(SMALL)[2]
    evil = summary.findings[0].model_copy(update={"sentence": "a|b <img src=x> [c](d) `e` **f**"})
    shown = READER.render(verdict_markdown(summary.model_copy(update={"findings": (evil,)})))
    assert f"{summary.verdict.value}: {summary.scenario}</h2>" in shown
    assert shown.count("<table>") == 1
    assert "received rate by burst" in shown
    assert "a|b &lt;img src=x&gt; [c](d) <code>e</code> **f**" in shown


def test_comparison_markdown_has_gates_and_a_row_per_metric() -> None:
    result = compare(group("a", [1e9, 1.001e9, 1.002e9]), group("b", [9e8, 9.01e8, 9.02e8]))
    gates = [evaluate_gate(parse_gate("received < -3%"), result)]
    shown = READER.render(comparison_markdown(result, gates))
    assert "<strong>fail</strong> received &lt; -3%: the change is beyond the limit" in shown
    assert shown.count("<tr>") == 1 + len(result.metrics)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("set BROADSIDE_TELEMETRY_FILE and a__b_1", "set BROADSIDE_TELEMETRY_FILE and a__b_1"),
        ("_a_ and __b__", r"\_a\_ and \_\_b\_\_"),
        ("µ_s", "µ_s"),
        ("a *b* [c](d)", r"a \*b\* \[c\](d)"),
    ],
)
def test_underscores_are_escaped_outside_of_names_only(text: str, escaped: str) -> None:
    assert plain(text) == escaped
    assert READER.render(plain(text)) == f"<p>{text}</p>\n"


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([None, 0.0, 5.0, 10.0], "·▁▅█"), ([0.0, 0.0], "▁▁")]
)
def test_sparkline_scales_from_zero_to_maximum(values: list[float | None], bars: str) -> None:
    assert sparkline(values) == bars
