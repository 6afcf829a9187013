"""Reader of CSV tables, with a column profile.

The reader accepts columns in any order and case, ``@type`` columns, the separators ``,``, ``;`` and
tab, thousands separators, ``null`` and empty cells, and repeated headers. Blank rows, titles,
totals and rows of other tools are skipped and counted. A wrong value is rejected with row, column,
value and fix.
"""

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Final

from broadside.coordinator.imports import BadFile, RowField
from broadside.coordinator.imports.column_profile import FACTORS, ColumnProfile
from broadside.coordinator.imports.import_requests import ROWS_MAX_COUNT
from broadside.coordinator.imports.time_text import parse_number, parse_time, to_utc

_TOTALS: Final = re.compile(r"\b(total|sum|average|avg|mean|min|max|count|blank)\b", re.IGNORECASE)

# Higher values of a metric count as errors. As a rate, this is 1 Pbit/s.
VALUE_MAX: Final = 1e15


class ProfileMismatch(BadFile):
    """The table does not have the columns or rows of the profile."""


@dataclass(slots=True)
class TableReader:
    """Reader of one table.

    Attributes:
        name: File name to use for error messages.
        profile: Columns of the table.
        zone: Time zone of times without an offset.
        rows_max_count: Largest number of rows with results.
        headers: Name in the table of each field that is read. Empty before the header.
        places: Index of each field that is read.
        unread: Columns that are not in the profile.
        skipped_rows: Number of skipped rows by kind.
        columns: All column names in lower case.
    """

    name: str
    profile: ColumnProfile
    zone: tzinfo
    rows_max_count: int = field(default_factory=lambda: ROWS_MAX_COUNT)
    headers: dict[RowField, str] = field(default_factory=dict)
    places: dict[RowField, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    skipped_rows: Counter[str] = field(default_factory=Counter)
    columns: Sequence[str] = ()
    # Parsed times by text, used as a cache.
    _times: dict[str, datetime] = field(default_factory=dict)
    _offset: str | None = None

    def rows(self, text: str) -> Iterator["TableRow"]:
        """Yield the rows with results.

        Args:
            text: Content of the file.

        Raises:
            ProfileMismatch: A column of the profile is missing, or no row has its tool.
            BadFile: The table is invalid.
        """
        count = 0
        for number, cells in self._lines(text):
            if not any(cells):
                self.skipped_rows["blank"] += 1
            elif self._is_header(cells):
                self._read_header(number, cells)
            elif (row := self._row(number, cells)) is not None:
                count += 1
                if count > self.rows_max_count:
                    raise BadFile(
                        f"{self.name}: row {number}: more than {self.rows_max_count} results; "
                        "split the file"
                    )
                yield row
        if not self.columns:
            raise ProfileMismatch(
                f"{self.name}: row 1: no header with {', '.join(self.profile.required)}; export "
                "the whole table as CSV"
            )
        if not count:
            others = ", ".join(f"{n} {kind}" for kind, n in sorted(self.skipped_rows.items()))
            raise ProfileMismatch(
                f"{self.name}: no row with {self.profile.title} ({others or 'only a header'}); "
                "name a table of such results, or a profile for this one (--profile)"
            )

    def values(self, text: str) -> dict[datetime, float | None]:
        """Return the values of the field ``metric`` by time. None is unknown.

        Args:
            text: Content of the file.

        Raises:
            ProfileMismatch: A column of the profile is missing, or the table has no row.
            BadFile: The table is invalid, has a time twice, or a value is not from 0 to 1e15.
        """
        rows: dict[datetime, int] = {}
        values: dict[datetime, float | None] = {}
        for row in self.rows(text):
            at, value = row.time(), row.value("metric")
            if at in rows:
                raise row.error("started_at", f"row {rows[at]} has the same; remove one")
            if value is not None and not 0 <= value <= VALUE_MAX:
                raise row.error("metric", f"must be between 0 and {VALUE_MAX:g}")
            rows[at], values[at] = row.number, value
        return values

    def _lines(self, text: str) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and stripped cells.

        The separator is the one that is most frequent in the header line.
        """
        unified = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = list(itertools.islice(io.StringIO(unified), 100))
        names = [name.lower() for name in self.profile.columns["started_at"].names]
        head = next(
            (line for line in lines if any(name in line.lower() for name in names)),
            next((line for line in lines if line.strip()), ""),
        )
        delimiter = max(",;\t", key=head.count)
        reader = csv.reader(io.StringIO(unified), delimiter=delimiter, strict=True)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise BadFile(
                    f"{self.name}: row {reader.line_num}: not CSV ({error}); export the table again"
                ) from error
            yield reader.line_num, [cell.strip() for cell in cells]

    def _is_header(self, cells: Sequence[str]) -> bool:
        names = {name.lower() for name in self.profile.columns["started_at"].names}
        return any(cell.lower() in names for cell in cells)

    def _read_header(self, number: int, cells: Sequence[str]) -> None:
        lower = [cell.lower() for cell in cells]
        if self.columns:
            self.skipped_rows["repeated header"] += 1
        self.columns, self.places = lower, {}
        for name, column in self.profile.columns.items():
            matches = [known.lower() for known in column.names if known.lower() in lower]
            if not matches:
                continue
            if lower.count(matches[0]) > 1:
                raise BadFile(
                    f"{self.name}: row {number}: column {cells[lower.index(matches[0])]} occurs "
                    "twice; remove one"
                )
            self.places[name] = lower.index(matches[0])
        self.headers = {name: cells[place] for name, place in self.places.items()}
        missing = [
            column.names[0]
            for name, column in self.profile.columns.items()
            if column.required and name not in self.places
        ]
        if missing:
            raise self._mismatch(number, missing, cells)
        known = {name.lower() for name in (*self.profile.ignored, self.profile.tool_column or "")}
        known |= {lower[place] for place in self.places.values()}
        self.unread = tuple(
            cell for cell in cells if cell.lower() not in known and not cell.endswith("@type")
        )

    def _mismatch(self, number: int, missing: Sequence[str], cells: Sequence[str]) -> BadFile:
        names = ", ".join(cell for cell in cells if cell)[:200]
        return ProfileMismatch(
            f"{self.name}: row {number}: no column {', '.join(missing)} (found: {names}); export "
            "the whole table with its header as CSV, "
            + (
                f"or name the columns {' and '.join(self.profile.required)}"
                if "metric" in self.profile.columns
                else "or name a profile for it (--profile)"
            )
        )

    def _row(self, number: int, cells: Sequence[str]) -> "TableRow | None":
        """Return a row with results. Count a row without."""
        if not self.columns:
            if sum(map(bool, cells)) > 1:
                raise self._mismatch(number, self.profile.required, cells)
            self.skipped_rows["summary or title"] += 1
            return None
        row = TableRow(
            table=self,
            number=number,
            cells={name: cells[at] for name, at in self.places.items() if at < len(cells)},
        )
        keys = [row.text(name) for name in ("client", "started_at") if name in self.places]
        if not any(keys) or (not all(keys) and _TOTALS.search("".join(keys))):
            self.skipped_rows["summary or title"] += 1
            return None
        width = len(self.columns)
        if len(cells) < width or any(cells[width:]):
            raise BadFile(
                f"{self.name}: row {number}: {len(cells)} cells where the header has {width} "
                f"({', '.join(cells)[:80]}); check whether the file is complete and numbers with "
                "separators are quoted"
            )
        column = (self.profile.tool_column or "").lower()
        tool = cells[self.columns.index(column)].lower() if column in self.columns else ""
        # A row without a tool has results of this profile, or it is of another tool.
        values = [name for name in self.places if self.profile.columns[name].required]
        empty = not any(row.text(name) for name in values if name not in ("client", "started_at"))
        if tool not in self.profile.tools or (not tool and empty and column in self.columns):
            self.skipped_rows[tool[:20] or "other"] += 1
            return None
        return row

    def instant(self, row: "TableRow", text: str) -> datetime:
        """Return the UTC time of a cell.

        Args:
            row: Row of the cell, to name it in an error.
            text: Text of the cell, in the time format of the profile.

        Raises:
            BadFile: The text is not a time, or its offset is unlike that of the rows above.
        """
        try:
            local = parse_time(text, self.profile.time_format)
            offset = "no zone" if local.tzinfo is None else f"the zone {local:%z}"
            self._offset = self._offset or offset
            if offset != self._offset:
                raise row.error(
                    "started_at",
                    f"{offset}, where the rows above have {self._offset}; write all in one zone",
                )
            return to_utc(local, self.zone)
        except ValueError as error:
            raise row.error("started_at", str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row with results.

    Attributes:
        table: Reader of the table.
        number: Row in the file. The header is row 1.
        cells: Text of each field.
    """

    table: TableReader
    number: int
    cells: Mapping[RowField, str]

    def text(self, name: RowField) -> str:
        return self.cells.get(name, "")

    def value(self, name: RowField) -> float | None:
        """Return a number in the unit of the field, or None if it is unknown.

        Raises:
            BadFile: The cell is not a number.
        """
        try:
            number = parse_number(self.text(name))
        except ValueError:
            raise self.error(name, "not a number; write digits, or null for unknown") from None
        if number is None:
            return None
        return number * FACTORS[self.table.profile.columns[name].unit]

    def time(self) -> datetime:
        """Return the start in UTC.

        Raises:
            BadFile: The cell is not a time.
        """
        text, known = self.text("started_at"), self.table._times
        if text not in known:
            known[text] = self.table.instant(self, text)
        return known[text]

    def error(self, name: RowField, reason: str) -> BadFile:
        """Return the error for a wrong cell.

        Args:
            name: Field of the cell.
            reason: Why the cell is wrong, and how to correct it.
        """
        header = self.table.headers.get(name, name)
        return BadFile(
            f"{self.table.name}: row {self.number}, {header}: {self.text(name)[:60]!r}: {reason}"
        )
