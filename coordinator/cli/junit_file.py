"""A verdict as a JUnit file, which pipelines show beside their other tests."""

from pathlib import Path

from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

from coordinator.cli.exits import Exit, stop
from coordinator.core.summary import Finding, RunSummary, Verdict


def junit(summary: RunSummary) -> JUnitXml:
    """A suite a run: a case for the run's verdict and one a burst.

    *Fail* is a failure; *inconclusive* is an error, for nothing was shown either way.
    """
    suite = TestSuite(summary.scenario)
    suite.add_property("run_id", summary.run_id)
    suite.add_testcase(_case(summary.run_id, "verdict", summary.verdict, summary.findings, 0.0))
    for burst in summary.bursts:
        took_s = (burst.planned_end_at - burst.planned_start_at).total_seconds()
        name = f"burst {burst.index + 1}"
        suite.add_testcase(_case(summary.run_id, name, burst.verdict, burst.findings, took_s))
    xml = JUnitXml()
    xml.add_testsuite(suite)
    return xml


def _case(
    run_id: str, name: str, verdict: Verdict, findings: tuple[Finding, ...], took_s: float
) -> TestCase:
    case = TestCase(name, classname=f"broadside.{run_id}", time=took_s)
    said = "\n".join(f"{finding.severity}: {finding.sentence}" for finding in findings)
    if verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        result = (Failure if verdict is Verdict.FAIL else Error)(verdict.value, verdict.value)
        result.text = said
        case.result = [result]
    elif said:
        case.system_out = said
    return case


def save_junit(summary: RunSummary, path: Path) -> None:
    try:
        junit(summary).write(str(path), pretty=True)
    except OSError as error:
        stop(f"{path}: {error.strerror}; name a file that can be written", Exit.CANNOT_RUN)
