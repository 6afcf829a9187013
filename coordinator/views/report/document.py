"""Types of a report. Table cells are text. ``summary`` contains the numbers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from broadside.coordinator.core.plan.budget import PriceMeter
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import Finding, RunSummary, Verdict
from broadside.exchange.messages import Message, OptionalBurstIndex, RunId, UtcDatetime

# Incremented with each incompatible change of the JSON form.
VERSION: Final = 1
# Value of ``numeric_from`` for a table without numbers.
TEXT_ONLY: Final = 99

_Row = TypeVar("_Row")


class ReportTable(Message):
    """Table. Each row has as many cells as there are columns.

    Attributes:
        title: Title.
        columns: Names of the columns.
        rows: Cells by row, as text.
        note: Explanation below the table. None if there is none.
        numeric_from: Index of the first column with numbers. These columns are right-aligned.
    """

    title: str = ""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str | None = None
    numeric_from: int = 1


def make_table(
    rows: Iterable[_Row],
    columns: Mapping[str, Callable[[_Row], str]],
    *,
    title: str = "",
    note: str | None = None,
    numeric_from: int = 1,
) -> ReportTable:
    """Return a table with one row for each item.

    Args:
        rows: Items.
        columns: Functions that return the cell of an item, by column name.
        title: Table title.
        note: Text below the table. None for no text.
        numeric_from: Index of the first column with numbers.
    """
    return ReportTable(
        title=title,
        columns=tuple(columns),
        rows=tuple(tuple(cell(row) for cell in columns.values()) for row in rows),
        note=note,
        numeric_from=numeric_from,
    )


class ChartPlace(Message):
    """Chart of a report. The API returns the chart under the same name.

    Attributes:
        name: Name of the chart.
        title: Title of the chart.
        description: Description of the chart in one sentence.
    """

    name: str
    burst_index: OptionalBurstIndex = None
    title: str
    description: str


class Section(Message):
    """One part of a report.

    Attributes:
        id: Id of the section.
        title: Title of the section.
        paragraphs: Text.
        facts: Facts by name.
        tables: Tables.
        charts: Charts.
        code: Preformatted text.
    """

    id: str
    title: str
    paragraphs: tuple[str, ...] = ()
    facts: Mapping[str, str] = {}
    tables: tuple[ReportTable, ...] = ()
    charts: tuple[ChartPlace, ...] = ()
    code: tuple[str, ...] = ()


class Report(Message):
    """Report of a run, with all data that an engineer needs to sign it.

    Attributes:
        version: Version of this format.
        verdict: Verdict. None if there is none yet.
        reason: Why this verdict.
        headline: Verdict and main metric in one line.
        launched_by: Name of the user who launched or imported the run.
        launched_at: Time of the launch, or of the import.
        imported: True if the data was imported.
        traffic_from_at: Start time of the first burst.
        traffic_until_at: End time of the last burst.
        generated_at: Time when it was generated.
        summary_sha256: SHA-256 of the stored summary.
        findings: Findings: the deciding one first, then other problems and warnings, then notes.
        sections: Sections in order.
        plan: Plan of the run.
        summary: Summary of the run.
        price: Cost of the run. None if it is unknown.
    """

    version: int = VERSION
    run_id: RunId
    scenario: str
    verdict: Verdict
    reason: str = ""
    next_step: str = ""
    headline: str
    launched_by: str
    launched_at: UtcDatetime
    imported: bool = False
    traffic_from_at: UtcDatetime
    traffic_until_at: UtcDatetime
    labels: Mapping[str, str] = {}
    generated_at: UtcDatetime
    broadside_version: str
    summary_sha256: str
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    plan: Plan
    summary: RunSummary
    price: PriceMeter | None = None
