"""Tests for times, decimals and column names of metric tables."""

import pytest

from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.metric_cells import normalize_metric, split_rows

KNOWN = ("timestamp", "time", "time (utc)", "throughput (avg)", "value")


def normalize(*lines: str) -> list[str]:
    text = normalize_metric("\n".join(lines) + "\n", "metric.csv", KNOWN)
    return text.removesuffix("\n").split("\n")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_header_decides_on_the_separator(separator: str) -> None:
    rows = split_rows(separator.join(["Time", " value ", '"a,b;c"']) + "\n\n1")
    assert rows == [["Time", "value", "a,b;c"], [], ["1"]]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        # Each column has a date that only one order allows.
        (["1/2/2025 12:00", "13/2/2025 12:00"], ["2025-02-01T12:00:00", "2025-02-13T12:00:00"]),
        (["1/2/2025 12:00", "1/13/2025 12:00"], ["2025-01-02T12:00:00", "2025-01-13T12:00:00"]),
        (["01.02.2025 12:00:30"], ["2025-02-01T12:00:30"]),
        (
            ["1/2/2025 12:05 AM", "1/2/2025 12:05 PM"],
            ["2025-01-02T00:05:00", "2025-01-02T12:05:00"],
        ),
        (["25/11/2025 1:00 PM"], ["2025-11-25T13:00:00"]),
        (["2025-11-25T12:00:00Z", "1764072000"], ["2025-11-25T12:00:00Z", "1764072000"]),
    ],
)
def test_times_with_one_meaning_become_iso(cells: list[str], expected: list[str]) -> None:
    rows = normalize("time,value", *(f"{cell},1" for cell in cells))
    assert rows[1:] == [f"{cell},1" for cell in expected]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1234,5", "1,234"], ["1234.5", "1.234"]),
        (["1.234.567,8", "1.234", "7"], ["1234567.8", "1234", "7"]),
        (["1.234.567", "12.345"], ["1234567", "12345"]),
        (["1 234,56", "1\u00a0234,56", "1'234,56"], ["1234.56"] * 3),
        (["0,5", "null", ""], ["0.5", "null", ""]),
        # A point that cannot separate thousands separates decimals.
        (["1234,5", "1234.5678", "1.234"], ["1234.5", "1234.5678", "1234"]),
        (["0,5", "0.123", "1234.567", "12.34"], ["0.5", "0.123", "1234.567", "12.34"]),
        (["1.234.567", "1.2345"], ["1234567", "1.2345"]),
        # Without a decimal comma in the column, the cells are left for the table reader.
        (["1234.5", "1.5e9", "much"], ["1234.5", "1.5e9", "much"]),
    ],
)
def test_decimal_commas_become_points(cells: list[str], expected: list[str]) -> None:
    rows = normalize("time;value", *(f"1764072000;{cell}" for cell in cells))
    assert rows[1:] == [f"1764072000,{cell}" for cell in expected]


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (["time,value", "x,1", "3/4/2025 12:00,1"], ["row 3, time", "'3/4/2025 12:00'", "write"]),
        (
            ["time,value", "13/1/2025 12:00,1", "1/13/2025 12:00,1"],
            ["row 2, time", "'13/1/2025 12:00'", "write"],
        ),
        (["time,value", "31.2.2025 12:00,1"], ["row 2, time", "'31.2.2025 12:00'", "correct"]),
        (["time;value", "x;null", "x;1,234"], ["row 3, value", "'1,234'", "decimal point"]),
        # The comma of the second name is no separator.
        (["Time;Tag;Throughput, average", "x;y;1,234"], ["row 2, Throughput", "'1,234'", "write"]),
        (["Report", "", "time;value", "x;1,234"], ["row 4, value", "'1,234'"]),
    ],
)
def test_two_meanings_are_an_error_of_one_line(lines: list[str], parts: list[str]) -> None:
    with pytest.raises(BadFile) as caught:
        normalize(*lines)
    text = str(caught.value)
    assert text.startswith("metric.csv: ") and "\n" not in text
    for part in parts:
        assert part in text, text


def test_thousands_separators_need_quotes_between_commas() -> None:
    assert normalize("time,value", 'x,"1,234"') == ["time,value", 'x,"1,234"']


def test_line_separators_of_unicode_stay_in_a_cell() -> None:
    assert normalize("time;value;note", "1764072000;1;a\u2028b")[1:] == ["1764072000,1,a\u2028b"]


def test_blank_rows_replace_titles_of_portals() -> None:
    rows = normalize("Throughput of fw", "Time range: a,b", "Time,Throughput Max", "x,1")
    assert rows == ["", "", "Time,maximum", "x,1"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TimeGenerated [UTC]", "timestamp"),
        ("Time (UTC)", "Time (UTC)"),
        ("Data processed (Sum), fw", "data processed (sum)"),
        ("Avg Throughput, fw", "throughput (avg)"),
        ("Min Throughput", "minimum"),
        ("Time range", "Time range"),
        ("Latency", "Latency"),
    ],
)
def test_columns_get_the_names_of_the_profile(name: str, expected: str) -> None:
    assert split_rows("\n".join(normalize(f'time,"{name}"', "x,1")))[0] == ["time", expected]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", 'time,value\nx,"1\n'])
def test_other_text_is_left_for_the_table_reader(text: str) -> None:
    assert normalize_metric(text, "metric.csv", KNOWN) == text
