"""Small tables for import tests, and the runs that they will become."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.imports.import_requests import Imported, OriginalTable
from broadside.coordinator.imports.result_tables import TableOptions, parse_original
from broadside.coordinator.imports.stored_imports import open_import, summarise

NOW = datetime(2026, 11, 20, tzinfo=UTC)
NEW_YORK = ZoneInfo("America/New_York")
HEADER = "PartitionKey,RowKey,sent_throughput,received_throughput,server,duration"


def row(client: int, minute: int, received: str = "5000000000", *, second: int = 0) -> str:
    """Return a result of a fleet that should start every five minutes."""
    return f"10.2.0.{client},01 04 2022 11 {minute:02d} {second:02d},5100000000,{received},s,280"


def fleet(clients: int, bursts: int) -> list[str]:
    """Return the header and all results of a fleet."""
    return [HEADER, *(row(c, 5 * b) for b in range(bursts) for c in range(1, clients + 1))]


def parse(lines: list[str] | str, name: str = "table.csv", **reading: object) -> OriginalTable:
    text = lines if isinstance(lines, str) else "\n".join(lines) + "\n"
    chosen: dict[str, object] = {"zone": NEW_YORK, "now": NOW} | reading
    return parse_original(text, name, TableOptions(**chosen))  # type: ignore[arg-type]  # by name


def made(imported: Imported, run_id: str = "20261120-000000-x-0000") -> tuple[Plan, RunSummary]:
    """Return the plan and the summary of an import."""
    tests = open_import(imported)
    plan = tests.plan(run_id, NOW)
    return plan, summarise(plan, tests.measure(plan), NOW)
