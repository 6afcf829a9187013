"""A pipeline reads in a JUnit file what the verdict says."""

from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml

from coordinator.cli.junit_file import save_junit
from coordinator.core.summary import Verdict
from tests.stored import SMALL, measured

KINDS = {Verdict.FAIL: [Failure], Verdict.INCONCLUSIVE: [Error]}


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_verdict_and_each_burst_are_cases(verdict: Verdict, tmp_path: Path) -> None:
    summary = measured(SMALL)[2].model_copy(update={"verdict": verdict})
    save_junit(summary, tmp_path / "run.xml")
    (suite,) = JUnitXml.fromfile(str(tmp_path / "run.xml"))
    whole, *bursts = suite
    assert [type(result) for result in whole.result] == KINDS.get(verdict, [])
    assert all(summary.findings[0].sentence in result.text for result in whole.result)
    assert [case.name for case in bursts] == [f"burst {b.index + 1}" for b in summary.bursts]
