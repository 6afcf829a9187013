"""JUnit files for verdicts and comparisons, to be shown in a CI pipeline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.core.comparison import Comparison, Held
from broadside.coordinator.core.summary import Finding, RunSummary, Verdict

_RESULTS: Final = {
    Verdict.FAIL: Failure,
    Verdict.INCONCLUSIVE: Error,
    Verdict.MEASURED: Skipped,
}


def of_run(summary: RunSummary) -> TestSuite:
    """Return a test suite with one case for the run and one per burst.

    *Fail* is a failure. *Inconclusive* is an error, because the result is unknown. *Measured* is
    skipped, because there was no target.
    """
    suite = TestSuite(summary.scenario)
    suite.add_property("run_id", summary.run_id)
    name = f"broadside.{summary.run_id}"
    suite.add_testcase(_case(name, "verdict", summary.verdict, _said(summary.findings)))
    for burst in summary.bursts:
        took_s = (burst.planned_end_at - burst.planned_start_at).total_seconds()
        said = _said(burst.findings)
        suite.add_testcase(_case(name, f"burst {burst.index + 1}", burst.verdict, said, took_s))
    return suite


def of_gates(comparison: Comparison, held: Sequence[Held]) -> TestSuite:
    """Return a test suite with one case per gate.

    Args:
        comparison: The comparison to report.
        held: The gate results to report.
    """
    suite = TestSuite(f"{comparison.b} against {comparison.a}")
    for each in held:
        suite.add_testcase(_case("broadside.compare", str(each.gate), each.verdict, each.sentence))
    return suite


def _said(findings: Sequence[Finding]) -> str:
    return "\n".join(f"{finding.severity}: {finding.sentence}" for finding in findings)


def _case(classname: str, name: str, verdict: Verdict, said: str, took_s: float = 0.0) -> TestCase:
    case = TestCase(name, classname=classname, time=took_s)
    if verdict is Verdict.PASS:
        if said:
            case.system_out = said
        return case
    result = _RESULTS[verdict](verdict.value, verdict.value)
    result.text = said
    case.result = [result]
    return case


def save_junit(suite: TestSuite, path: Path) -> None:
    xml = JUnitXml()
    xml.add_testsuite(suite)
    try:
        xml.write(str(path), pretty=True)
    except OSError as error:
        stop(f"{path}: {error.strerror}; name a file that can be written", Exit.CANNOT_RUN)
