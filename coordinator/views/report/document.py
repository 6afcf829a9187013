"""What a report consists of. Cells are words for a person; the figures are in ``summary``."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from broadside.coordinator.core.plan.meter import PriceMeter
from broadside.coordinator.core.plan.spec import Plan
from broadside.coordinator.core.summary import Finding, RunSummary, Verdict
from broadside.exchange.messages import Message, RunId, UtcDatetime

VERSION: Final = 1  # raised when a reader of the JSON must change

_Row = TypeVar("_Row")


class Table(Message):
    """A table; every row has as many cells as there are columns."""

    title: str = ""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str | None = None
    numeric_from: int = 1  # columns from this one on are figures, set to the right


def tabled(
    rows: Iterable[_Row],
    columns: Mapping[str, Callable[[_Row], str]],
    *,
    title: str = "",
    note: str | None = None,
    numeric_from: int = 1,
) -> Table:
    """A row for each of ``rows``; a column is its name and what it says of one."""
    return Table(
        title=title,
        columns=tuple(columns),
        rows=tuple(tuple(say(row) for say in columns.values()) for row in rows),
        note=note,
        numeric_from=numeric_from,
    )


class ChartPlace(Message):
    """Where a chart stands; the API serves its figure under the same name."""

    name: str
    burst_index: int | None = None
    title: str
    says: str


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
    """Everything that an engineer signs."""

    version: int = VERSION
    run_id: RunId
    scenario: str
    verdict: Verdict
    headline: str
    launched_by: str
    launched_at: UtcDatetime  # of an import: when it was imported
    imported: bool = False
    traffic_from_at: UtcDatetime  # the first burst's start
    traffic_until_at: UtcDatetime  # the last burst's end
    labels: Mapping[str, str] = {}
    generated_at: UtcDatetime
    broadside_version: str
    summary_sha256: str  # of the stored summary's bytes
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    plan: Plan
    summary: RunSummary
    price: PriceMeter | None = None  # None: not known
