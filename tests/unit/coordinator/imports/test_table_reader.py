"""Tests for the rows of a table."""

from datetime import UTC

import pytest

from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.column_profile import ColumnProfile, ProfileColumn
from broadside.coordinator.imports.table_reader import ProfileMismatch, TableReader

PROFILE = ColumnProfile(
    title="a test",
    tool_column="tool",
    tools=("", "iperf3"),
    columns={
        "client": ProfileColumn(names=("Client",)),
        "started_at": ProfileColumn(names=("Start",)),
        "duration_s": ProfileColumn(names=("Duration",), unit="min", required=False),
    },
)
HEADER = "Client,Start,Duration,Tool,Other"
ROW = "10.2.0.4,2026-11-26T12:00:00Z,2,iperf3,x"


def reader() -> TableReader:
    return TableReader(name="t.csv", profile=PROFILE, zone=UTC)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_reads_rows_with_any_separator_and_converts_units(separator: str) -> None:
    table = reader()
    [row] = table.rows("\n".join((HEADER, ROW)).replace(",", separator))
    assert (row.text("client"), row.value("duration_s")) == ("10.2.0.4", 120.0)
    assert table.unread == ("Other",)


def test_rows_without_a_result_are_counted_by_kind() -> None:
    table = reader()
    other = ROW.replace("iperf3", "ping")
    assert len([*table.rows("\n".join(("Title", HEADER, ROW, "", other, HEADER)))]) == 1
    assert table.skipped_rows == {
        "summary or title": 1,
        "ping": 1,
        "repeated header": 1,
        "blank": 1,
    }


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        ([], ProfileMismatch, "no header with Client, Start"),
        (["Client,Other", "a,b"], ProfileMismatch, "no column Client, Start"),
        ([HEADER], ProfileMismatch, "only a header"),
        ([HEADER, ROW + ",y"], BadFile, "6 cells where the header has 5"),
        ([HEADER + ",Client", ROW], BadFile, "column Client occurs twice"),
    ],
)
def test_invalid_table_is_an_error(lines: list[str], error: type[BadFile], message: str) -> None:
    with pytest.raises(error, match=message):
        list(reader().rows("\n".join(lines)))
