"""Files that commands write: reports, charts, and JUnit results for a CI pipeline."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from broadside.coordinator.cli.exit_codes import exit_usage, exit_with_error
from broadside.coordinator.cli.terminal_text import write_bytes
from broadside.coordinator.core import formatting
from broadside.coordinator.views.charts.theme import Theme

if TYPE_CHECKING:
    from broadside.coordinator.views.charts import Chart
    from broadside.coordinator.views.charts.study_charts import StudyChart

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite

    from broadside.coordinator.core.comparison.group_comparison import Comparison
    from broadside.coordinator.core.comparison.regression_gate import GateResult
    from broadside.coordinator.core.summary import RunSummary, Verdict
    from broadside.coordinator.core.verdict_reason import VerdictReason


class ReportFileFormat(StrEnum):
    """Format of a report file."""

    HTML = "html"
    PDF = "pdf"
    JSON = "json"

    @classmethod
    def choose(cls, format: "ReportFileFormat | None", output: Path | None) -> "ReportFileFormat":
        """Return the format of the option or of the file extension. The default is HTML.

        Args:
            format: Format of the option, or None if it is not given.
            output: File to write. Its extension is the format if the option is not given. None is
                standard output.
        """
        return format or format_of(output, cls) or cls.HTML

    @property
    def requested(self) -> str:
        """Format to request from the coordinator. A PDF is printed locally from HTML."""
        return "json" if self is ReportFileFormat.JSON else "html"


OutputFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="Output file, - for standard output."),
]
ChartFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="Output file (.png, .svg or .json)."),
]
ReportFormatOption = Annotated[
    ReportFileFormat | None,
    typer.Option(
        "--output", "-o", help="Output format; default: by the file extension, else html."
    ),
]


def save_chart(
    chart: "Chart | StudyChart", output: Path, *, theme: Theme, width: int, height: int
) -> None:
    """Write a chart to a file. The file extension defines the format.

    Args:
        chart: The chart to write.
        output: File with the extension .json, .svg or .png.
        theme: Light or dark theme.
        width: Width in pixels.
        height: Height in pixels.
    """
    from broadside.coordinator.cli.progress_display import show_progress
    from broadside.coordinator.views.browser import BROWSER_TIMEOUT_S, render_png
    from broadside.coordinator.views.charts.svg import standalone

    if output.suffix == ".json":
        save(chart.answer_json().encode(), output)
        return
    if output.suffix not in (".svg", ".png"):
        exit_usage(f"--file {output}: use the extension .png, .svg or .json")
    drawing = standalone(chart.figure, width=width, height=height, theme=theme)
    is_png = output.suffix == ".png"
    if is_png:
        with show_progress("drawing", limit_s=BROWSER_TIMEOUT_S):
            save(render_png(drawing, width, height), output)
    else:
        save(drawing.encode(), output)


def save(body: bytes, output: Path | None) -> None:
    """Write bytes to a file, or to standard output if it is None or `-`.

    Args:
        body: Content of the file.
        output: File to write.

    Raises:
        typer.Exit: The file cannot be written.
    """
    if output is None or str(output) == "-":
        write_bytes(body)
        return
    try:
        output.write_bytes(body)
    except OSError as error:
        exit_usage(f"--file {output}: {error.strerror}; give a file that can be written")
    typer.echo(f"wrote {output} ({formatting.size(len(body))})", err=True)


def save_report(name: str, body: bytes, format: ReportFileFormat, output: Path | None) -> None:
    """Write a report to a file, as received or as PDF.

    Args:
        name: Run or study id, for the default file name.
        body: The report that was received.
        format: File format.
        output: File, `-` for standard output, or None for the default name.
    """
    if format is ReportFileFormat.PDF:
        from broadside.coordinator.cli.progress_display import show_progress
        from broadside.coordinator.views.browser import BROWSER_TIMEOUT_S, print_pdf

        with show_progress("printing", limit_s=BROWSER_TIMEOUT_S):
            body = print_pdf(body.decode())
    save(body, output or Path(f"{name}.{format.value}"))


_F = TypeVar("_F", bound=StrEnum)


def format_of(output: Path | None, formats: type[_F]) -> _F | None:
    """Return the format of a file extension. Exit if it is unknown.

    Args:
        output: The file, or None.
        formats: The known formats.

    Returns:
        The format. None without an extension, and for a folder.
    """
    if output is None or not output.suffix or output.is_dir():
        return None
    try:
        return formats(output.suffix[1:].lower())
    except ValueError:
        known = ", ".join(f".{one.value}" for one in formats)
        exit_usage(
            f"--file {output}: the extension {output.suffix!r} is not one of {known}; "
            "use one of them, or give --output"
        )


def junit_of_run(summary: "RunSummary") -> "TestSuite":
    """Return a test suite with one case for the run and one per burst.

    *Fail* is a failure. *Inconclusive* is an error, because the result is unknown. *Measured* is
    skipped, because there was no target.
    """
    from junitparser import TestSuite

    from broadside.coordinator.core.verdict_reason import explain_verdict

    suite = TestSuite(summary.scenario)
    suite.add_property("run_id", summary.run_id)
    name = f"broadside.{summary.run_id}"
    explained = explain_verdict(summary)
    suite.add_property("reason", explained.reason)
    suite.add_property("next_step", explained.next_step)
    suite.add_testcase(_judged_case(name, "verdict", summary.verdict, explained))
    for burst in summary.bursts:
        duration_s = (burst.planned_end_at - burst.planned_start_at).total_seconds()
        title = f"burst {burst.index + 1}"
        case = _judged_case(name, title, burst.verdict, explain_verdict(burst))
        case.time = duration_s
        suite.add_testcase(case)
    return suite


def junit_of_gates(comparison: "Comparison", results: "Sequence[GateResult]") -> "TestSuite":
    """Return a test suite with one case per gate of a comparison.

    Args:
        comparison: Comparison, which names the suite.
        results: Result of each gate.
    """
    from junitparser import TestSuite

    suite = TestSuite(f"{comparison.b} against {comparison.a}")
    for result in results:
        suite.add_testcase(
            _case(
                "broadside.compare",
                str(result.gate),
                result.verdict,
                result.sentence,
                result.sentence,
            )
        )
    return suite


def _judged_case(
    classname: str, name: str, verdict: "Verdict", explained: "VerdictReason"
) -> "TestCase":
    """Return a case whose message is the reason, and whose text begins with the next step."""
    lines = [f"{verdict.value}: {explained.reason}", f"next: {explained.next_step}"]
    lines += [
        f"{finding.severity} [{finding.id}]: {finding.sentence}" for finding in explained.others
    ]
    lines += [f"note [{finding.id}]: {finding.sentence}" for finding in explained.notes]
    return _case(classname, name, verdict, explained.reason, "\n".join(lines))


def _case(classname: str, name: str, verdict: "Verdict", message: str, text: str) -> "TestCase":
    from junitparser import Error, Failure, Skipped, TestCase

    case = TestCase(name, classname=classname, time=0.0)
    kinds = {"fail": Failure, "inconclusive": Error, "measured": Skipped}
    kind = kinds.get(verdict.value)
    if kind is None:
        if text:
            case.system_out = text
        return case
    result = kind(message, verdict.value)
    result.text = text
    case.result = [result]
    return case


def save_junit(suite: "TestSuite", path: Path) -> None:
    """Write a test suite to a JUnit file.

    Args:
        suite: Test suite to write.
        path: File to write.

    Raises:
        typer.Exit: The file cannot be written.
    """
    from junitparser import JUnitXml

    xml = JUnitXml()
    xml.add_testsuite(suite)
    try:
        xml.write(str(path), pretty=True)
    except OSError as error:
        exit_with_error(f"--junit {path}: {error.strerror}; give a file that can be written")
