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


class Table(Message):
    """Table. Each row has as many cells as there are columns."""

    title: str = ""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str | None = None
    # Index of the first column with numbers. These columns are right-aligned.
    numeric_from: int = 1


def make_table(
    rows: Iterable[_Row],
    columns: Mapping[str, Callable[[_Row], str]],
    *,
    title: str = "",
    note: str | None = None,
    numeric_from: int = 1,
) -> Table:
    """Return a table with one row for each item.

    Args:
        rows: Items.
        columns: Functions that return the cell of an item, by column name.
        title: Table title.
        note: Text below the table. None for no text.
        numeric_from: Index of the first column with numbers.
    """
    return Table(
        title=title,
        columns=tuple(columns),
        rows=tuple(tuple(cell(row) for cell in columns.values()) for row in rows),
        note=note,
        numeric_from=numeric_from,
    )


class ChartPlace(Message):
    """Chart of a report. The API returns the chart under the same name."""

    name: str
    burst_index: OptionalBurstIndex = None
    title: str
    description: str


class Section(Message):
    """One part of a report."""

    id: str
    title: str
    paragraphs: tuple[str, ...] = ()
    facts: Mapping[str, str] = {}
    tables: tuple[Table, ...] = ()
    charts: tuple[ChartPlace, ...] = ()
    code: tuple[str, ...] = ()


class Report(Message):
    """Report of a run, with all data that an engineer needs to sign it."""

    version: int = VERSION
    run_id: RunId
    scenario: str
    verdict: Verdict
    # Why this verdict, and what to do.
    reason: str = ""
    next_step: str = ""
    headline: str
    launched_by: str
    # Import time for an imported run.
    launched_at: UtcDatetime
    imported: bool = False
    # Start time of the first burst.
    traffic_from_at: UtcDatetime
    # End time of the last burst.
    traffic_until_at: UtcDatetime
    labels: Mapping[str, str] = {}
    generated_at: UtcDatetime
    broadside_version: str
    # Hash of the stored summary.
    summary_sha256: str
    # The deciding finding first, then other problems and warnings, then notes.
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    plan: Plan
    summary: RunSummary
    # None if the cost is unknown.
    price: PriceMeter | None = None
