"""Tests for JUnit files with verdicts and regression gates."""

from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from broadside.coordinator.cli.output_files import junit_of_gates, junit_of_run, save_junit
from broadside.coordinator.core.comparison.group_comparison import compare
from broadside.coordinator.core.comparison.regression_gate import evaluate_gate, parse_gate
from broadside.coordinator.core.summary import Verdict
from tests.synthetic_runs import SMALL, measured
from tests.unit.coordinator.core.comparison.test_group_comparison import group

KINDS = {
    Verdict.FAIL: [Failure],
    Verdict.INCONCLUSIVE: [Error],
    Verdict.MEASURED: [Skipped],
}


@pytest.mark.parametrize("verdict", list(Verdict))
def test_junit_file_has_cases_for_verdict_and_bursts(verdict: Verdict, tmp_path: Path) -> None:
    summary = measured(SMALL)[2].model_copy(update={"verdict": verdict})
    save_junit(junit_of_run(summary), tmp_path / "run.xml")
    (suite,) = JUnitXml.fromfile(str(tmp_path / "run.xml"))
    run, *bursts = suite
    assert [type(result) for result in run.result] == KINDS.get(verdict, [])
    assert all(summary.findings[0].sentence in result.text for result in run.result)
    assert [case.name for case in bursts] == [f"burst {b.index + 1}" for b in summary.bursts]


def test_junit_file_has_cases_for_gates(tmp_path: Path) -> None:
    comparison = compare(group("a", [1e9, 1.001e9, 1.002e9]), group("b", [9e8, 9.01e8, 9.02e8]))
    results = [
        evaluate_gate(parse_gate(text), comparison) for text in ("received < -3%", "received > 3%")
    ]
    save_junit(junit_of_gates(comparison, results), tmp_path / "gates.xml")
    (suite,) = JUnitXml.fromfile(str(tmp_path / "gates.xml"))
    assert [case.name for case in suite] == ["received < -3%", "received > +3%"]
    assert [[type(result) for result in case.result] for case in suite] == [[Failure], []]
