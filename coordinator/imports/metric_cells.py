"""Conversion of metric tables to one form: times, decimals and column names. Pure.

Rows keep their numbers. A cell that is not converted is left for the table reader, which reports
it. A cell with two possible meanings is rejected.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from broadside.coordinator.imports import BadFile
from broadside.exchange.engines.iperf3_forms import split_lines

# Rows in which the header is searched. Above it, portals write titles.
_HEADER_ROWS_MAX_COUNT: Final = 100
_DATE: Final = re.compile(
    r"(\d{1,2})([/.])(\d{1,2})\2(\d{4}),?[ T]+(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,]\d+)?)?"
    r"(?:\s*([AaPp])\.?[Mm]\.?)?"
)
# 1.234.567,8 or 1234,5 or 1 234,56: the comma can only be a decimal separator.
_COMMA_DECIMAL: Final = re.compile(
    r"\d{1,3}(?:[. '\u00a0\u202f]\d{3})+,\d+|\d+,(?:\d{1,2}|\d{4,})|\d{4,},\d+|0,\d+"
)
# 1.234 or 12 345,67: separators of thousands between groups of three digits. In 1234.5678 and 0.123
# the point separates decimals.
_GROUPED: Final = re.compile(r"[1-9]\d{0,2}(?:[. '\u00a0\u202f]\d{3})+(?:,\d+)?")
# 1.234.567: the dots can only be thousands separators.
_DOT_GROUPS: Final = re.compile(r"\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?")
# 1,234: a thousands separator in English, a decimal separator in most other languages.
_EITHER: Final = re.compile(r"[1-9]\d{0,2},\d{3}")
# Column names of portals and of Log Analytics, with the name that the profile uses.
_TITLES: Final = (
    (re.compile(r"timegenerated\b.*|(?:time|timestamp|date)\b.*", re.IGNORECASE), "timestamp"),
    (re.compile(r".*data ?processed.*", re.IGNORECASE), "data processed (sum)"),
    (
        re.compile(r".*throughput.*(?:\(|\b)(?:avg|average)\b.*|avg throughput.*", re.IGNORECASE),
        "throughput (avg)",
    ),
    (re.compile(r".*throughput.*\bmax(?:imum)?\b.*|max throughput.*", re.IGNORECASE), "maximum"),
    (re.compile(r".*throughput.*\bmin(?:imum)?\b.*|min throughput.*", re.IGNORECASE), "minimum"),
)


def split_rows(text: str) -> list[list[str]]:
    """Return the cells of each line. The separator is the most frequent one of the header.

    Raises:
        csv.Error: The text is not CSV.
    """
    lines = split_lines(text)
    rows = csv.reader(io.StringIO("\n".join(lines)), delimiter=_delimiter(lines), strict=True)
    return [[cell.strip() for cell in row] for row in rows]


def _delimiter(lines: Sequence[str]) -> str:
    head = next((line for line in lines[:_HEADER_ROWS_MAX_COUNT] if _is_head(line)), "")
    return max(",;\t", key=head.count)


def _is_head(line: str) -> bool:
    cells = [cell.strip().strip('"') for cell in re.split("[,;\t]", line)]
    times = [cell for cell in cells if _TITLES[0][0].fullmatch(cell)]
    return len(cells) > 1 and bool(times) and "range" not in times[0].lower()


def normalize_metric(text: str, name: str, known: Sequence[str]) -> str:
    """Return a metric table as CSV with commas, in which all cells have one meaning.

    Args:
        text: Content of the file.
        name: File name to use for error messages.
        known: Column names that need no conversion, in lower case.

    Raises:
        BadFile: A date or number has two possible meanings.
    """
    try:
        rows = split_rows(text)
    except csv.Error:
        # The table reader reports it with the row.
        return text
    header = _find_header(rows, known)
    if header is None:
        return text
    head, titles = header
    delimiter_is_comma = _delimiter(split_lines(text)) == ","
    body = rows[head + 1 :]
    columns = list(dict.fromkeys(index for index in range(len(titles))))
    for index in columns:
        cells = [(number, row[index]) for number, row in enumerate(body) if index < len(row)]
        location = f"{name}: row {{}}, {rows[head][index]}"
        if _is_time(titles[index].lower()):
            converted = list(_times(cells, location, head + 2))
        else:
            converted = list(_decimals(cells, location, head + 2, strict=not delimiter_is_comma))
        for number, cell in converted:
            body[number][index] = cell
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    # Blank rows in place of titles keep the row numbers.
    output.write("\n" * head)
    writer.writerow(titles)
    writer.writerows(body)
    return output.getvalue()


def _is_time(title: str) -> bool:
    return title.startswith(("time", "date"))


def _find_header(
    rows: Sequence[Sequence[str]], known: Sequence[str]
) -> tuple[int, list[str]] | None:
    """Return the index of the header and its names, with the names of the profile."""
    for number, row in enumerate(rows[:_HEADER_ROWS_MAX_COUNT]):
        titles = [_title(cell, known) for cell in row]
        if sum(map(bool, row)) > 1 and any(title.startswith("timestamp") for title in titles):
            return number, titles
        if any(cell.lower() in known and _is_time(cell.lower()) for cell in row):
            return number, titles
    return None


def _title(cell: str, known: Sequence[str]) -> str:
    if cell.lower() in known:
        return cell
    names = (name for pattern, name in _TITLES if pattern.fullmatch(cell))
    return next(names, cell) if "range" not in cell.lower() else cell


def _times(
    cells: Sequence[tuple[int, str]], location: str, first_row: int
) -> Iterator[tuple[int, str]]:
    """Yield dates such as 11/25/2025 12:00 PM or 25.11.2025 12:00 in ISO 8601."""
    matches = [(number, match) for number, cell in cells if (match := _DATE.fullmatch(cell))]
    if not matches:
        return
    day_first = any(int(match[1]) > 12 or match[2] == "." for _, match in matches)
    month_first = any(int(match[3]) > 12 for _, match in matches) or (
        not day_first and any(match[8] in ("A", "P") for _, match in matches)
    )
    number, first = matches[0]
    if day_first == month_first:
        raise BadFile(
            f"{location.format(first_row + number)}: {first[0]!r}: the order of day and month is "
            "ambiguous; write times such as 2025-11-25T12:00:00Z"
        )
    for number, match in matches:
        day, month = (match[1], match[3]) if day_first else (match[3], match[1])
        hour = int(match[5])
        if match[8]:
            hour = hour % 12 + (12 if match[8] in "Pp" else 0)
        try:
            at = datetime(  # noqa: DTZ001 - the table reader adds the zone
                int(match[4]), int(month), int(day), hour, int(match[6]), int(match[7] or 0)
            )
        except ValueError as error:
            raise BadFile(
                f"{location.format(first_row + number)}: {match[0]!r}: {error}; correct the time"
            ) from None
        yield number, at.isoformat()


def _decimals(
    cells: Sequence[tuple[int, str]], location: str, first_row: int, *, strict: bool
) -> Iterator[tuple[int, str]]:
    """Yield numbers with a decimal comma in plain form, if the column shows that it is one."""
    has_comma = any(
        _COMMA_DECIMAL.fullmatch(cell) or ("," in cell and _DOT_GROUPS.fullmatch(cell))
        for _, cell in cells
    )
    has_groups = any(_DOT_GROUPS.fullmatch(cell) for _, cell in cells)
    for number, cell in cells:
        if has_comma or has_groups:
            plain = re.sub("[. '\u00a0\u202f]", "", cell) if _GROUPED.fullmatch(cell) else cell
            if re.fullmatch(r"\d+(?:[.,]\d+)?", plain):
                yield number, plain.replace(",", ".")
        elif strict and _EITHER.fullmatch(cell):
            raise BadFile(
                f"{location.format(first_row + number)}: {cell!r}: the comma can separate decimals "
                "or thousands; write numbers without thousands separators and with a decimal point"
            )
