"""Parser for the original tables, from Azure Table Storage or a spreadsheet.

The parser accepts columns in any order and case, ``@type`` columns, thousands separators, ``null``
and empty cells. It also accepts a missing header, repeated headers and a missing ``duration``
column. Blank, title and summary rows and rows of another tool (vegeta) are skipped and counted.
A wrong value is rejected with row, column, value and fix.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path, PurePath
from typing import Final

from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_requests import ROWS_MAX_COUNT, Note, OriginalTable
from broadside.coordinator.imports.metric_csv import read_declared_metric
from broadside.coordinator.imports.table_bursts import OriginalRow, infer_series, problems
from broadside.coordinator.imports.time_text import (
    ORIGINAL_FORMAT,
    parse_number,
    parse_time,
    say_zone,
    to_utc,
)
from broadside.coordinator.imports.uploaded_files import read_rows, read_text, wrong_cell

REQUIRED: Final = ("PartitionKey", "RowKey", "sent_throughput", "received_throughput")
_READ: Final = (
    *REQUIRED,
    *("Timestamp", "test_type", "server", "duration", "max_rtt", "min_rtt", "mean_rtt"),
)
_VEGETA: Final = ("latency_total", "latency_mean", "latency_max", "latency_min")
_UNREAD: Final = (*_VEGETA, "protocol", "throughput", "success")
# Original column order by number of columns, used for tables without a header.
_HEADERLESS: Final = {
    5: (*REQUIRED, "server"),
    6: (*REQUIRED, "server", "duration"),
    9: (*REQUIRED, "max_rtt", "min_rtt", "mean_rtt", "server", "duration"),
}
_TYPES: Final = frozenset({"string", "int32", "int64", "double", "datetime", "boolean", "guid"})
_KEY: Final = re.compile(r"\d{1,2} \d{1,2} \d{4}( \d{1,2}){3}")
_TOTALS: Final = re.compile(r"\b(total|sum|average|avg|mean|min|max|count|blank)\b", re.IGNORECASE)
_NAMED_DURATION: Final = re.compile(r"(?<![0-9a-z])(\d{1,5})[ _-]?s(?:ec(?:ond)?s?)?(?![0-9a-z])")
# Maximum time in seconds by which the timestamp of a row may be before the row's start.
_STORED_EARLY_S: Final = 60.0
# Minimum number of minutes with UTC starts to reject a table. A single one might be chance.
_UTC_MINUTES_MIN: Final = 2
# Minimum ratio of UTC starts among the starts of these clients.
_UTC_SHARE: Final = 0.9
# Maximum time in seconds by which a start may be in the future, because another host's clock might
# be wrong.
_FUTURE_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Parameters for parsing a table.

    Attributes:
        zone: Time zone of local times.
        now: The current time.
        from_at: Only rows that start at or after this time.
        before_at: Only rows that start before this time.
        duration_s: Duration of all rows. None to use the values in the table.
        pairs_planned: How many pairs are planned. None to infer it from the rows.
        period_s: Burst period. None to infer it from the rows.
    """

    zone: tzinfo
    now: datetime
    from_at: datetime | None = None
    before_at: datetime | None = None
    duration_s: float | None = None
    pairs_planned: int | None = None
    period_s: float | None = None


def read_original(
    path: Path,
    reading: Reading,
    *,
    metric: Path | None = None,
    declared: Mapping[str, object] | None = None,
) -> OriginalTable:
    """Read and check a table, and optionally the firewall metric.

    Args:
        path: CSV file of the table.
        reading: Parsing parameters.
        metric: CSV file of the metric.
        declared: Meaning of the metric values. See ``read_declared_metric``.

    Raises:
        BadFile: A file cannot be imported.
    """
    table = parse_original(read_text(path), str(path), reading)
    if metric is None:
        return table
    points, declaration = read_declared_metric(metric, declared)
    return table.model_copy(
        update={
            "metric_source": metric.name,
            "metric": points,
            "metric_declaration": declaration,
        }
    )


def parse_original(text: str, name: str, reading: Reading) -> OriginalTable:
    """Parse a table.

    Args:
        text: The file's content.
        name: File name for error messages.
        reading: Parsing parameters.

    Raises:
        BadFile: The table cannot be imported.
    """
    reader = _Reader(name, reading.zone, reading.now)
    for number, cells in read_rows(text, name=name, header_word="RowKey"):
        reader.take(number, cells)
    rows = [
        row
        for row in reader.finish()
        if (reading.from_at is None or row.started_at >= reading.from_at)
        and (reading.before_at is None or row.started_at < reading.before_at)
    ]
    if not rows:
        raise BadFile(f"{name}: no row between the two times given; see the RowKey column")
    rows, notes = _with_durations(rows, name, reading, minutes=reader.tests)
    wrong = problems(rows)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BadFile(f"{name}: {wrong[0]}; mend or drop the row{more}")
    _refuse_mixed_zones(name, rows, reading.zone)
    return OriginalTable(
        source=PurePath(name).name,
        timezone=str(reading.zone),
        rows=tuple(rows),
        period_s=reading.period_s,
        pairs_planned=reading.pairs_planned,
        set_apart=dict(reader.set_apart),
        notes=(*reader.notes(), *notes, *_note_pairs(name, rows, reading)),
    )


def _with_durations(
    rows: list[OriginalRow], name: str, reading: Reading, *, minutes: bool
) -> tuple[list[OriginalRow], list[Note]]:
    """Return the rows with durations in seconds, and notes on durations from another source.

    Later clients of the original test also wrote ``test_type``. They wrote the period in minutes,
    started at multiples of it, and sent for one minute less.
    """
    known = [row.duration_s for row in rows if row.duration_s is not None]
    if reading.duration_s is not None:
        return [replace(row, duration_s=reading.duration_s) for row in rows], []
    if (
        minutes
        and known
        and all(2 <= number <= 60 and number == int(number) for number in known)
        and all(_starts_at_multiple(row) for row in rows)
    ):
        note = Note(
            id="duration-minutes",
            sentence="duration is in minutes, as clients that write test_type give it: for n "
            "minutes they send (n - 1) x 60 s",
            next_step="give --duration-s when that is wrong",
        )
        return [
            row if row.duration_s is None else replace(row, duration_s=(row.duration_s - 1) * 60)
            for row in rows
        ], [note]
    named = _NAMED_DURATION.search(PurePath(name).stem.lower())
    if not known and named is not None:
        note = Note(
            id="duration-named",
            sentence=f"the table has no durations; {named[1]} s is what the file's name says",
            next_step="give --duration-s when that is wrong",
        )
        return [replace(row, duration_s=float(named[1])) for row in rows], [note]
    return rows, []


def _starts_at_multiple(row: OriginalRow) -> bool:
    at = row.started_at
    return at.second == 0 and at.minute % int(row.duration_s or 1) == 0


def _note_pairs(name: str, rows: Sequence[OriginalRow], reading: Reading) -> Sequence[Note]:
    """Return a note when the planned pairs are assumed. Reject a number that is too small."""
    series = infer_series(rows, reading.period_s)
    most = max(len(part.clients) for part in series)
    if reading.pairs_planned is None:
        return [
            Note(
                id="pairs-assumed",
                sentence="the table does not say how many pairs were planned; those that have "
                f"rows, {most}, were taken",
                next_step="give --pairs-planned when there were more",
            )
        ]
    if reading.pairs_planned < most:
        raise BadFile(
            f"{name}: --pairs-planned {reading.pairs_planned}, but {most} clients have rows; "
            "give at least as many, or import a slice with --from and --before"
        )
    return []


@dataclass(slots=True)
class _Reader:
    """Parser for one table, row by row.

    Attributes:
        name: File name for error messages.
        zone: Time zone of local times.
        now: The current time.
        columns: Index by name of the columns to read. None before the header.
        width: Number of columns.
        headerless: True if the table has no header.
        unknown: Columns that are not read.
        rows: Parsed rows.
        local: Parsed times by text, used as a cache.
        kind: Time zone notation of the first row.
        set_apart: Number of skipped rows by kind.
        tests: True if the rows contain ``test_type``.
    """

    name: str
    zone: tzinfo
    now: datetime
    columns: dict[str, int] | None = None
    width: int = 0
    headerless: bool = False
    unknown: tuple[str, ...] = ()
    rows: list[OriginalRow] = field(default_factory=list)
    local: dict[str, datetime] = field(default_factory=dict)
    kind: str | None = None
    set_apart: Counter[str] = field(default_factory=Counter)
    tests: bool = False

    def take(self, number: int, cells: Sequence[str]) -> None:
        """Parse one row.

        Args:
            number: Row number.
            cells: Cells of the row.

        Raises:
            BadFile: The row is wrong.
        """
        if not any(cells):
            self.set_apart["blank"] += 1
        elif "rowkey" in [cell.lower() for cell in cells]:
            self._take_header(number, cells)
        elif self.columns is None:
            self._take_unheaded(number, cells)
        else:
            self._take_row(number, cells)

    def finish(self) -> list[OriginalRow]:
        """Return all iperf3 rows.

        Raises:
            BadFile: There is no row.
        """
        if self.columns is None:
            raise BadFile(
                f"{self.name}: row 1: no header with PartitionKey and RowKey; export the whole "
                "table as CSV"
            )
        if not self.rows:
            others = ", ".join(f"{n} {what}" for what, n in sorted(self.set_apart.items()))
            raise BadFile(
                f"{self.name}: no row of an iperf3 test ({others or 'only a header'}); "
                "name a table of iperf3 results"
            )
        return self.rows

    def notes(self) -> Sequence[Note]:
        """Return notes about the file, to be added to the run findings."""
        found = []
        if self.headerless:
            found.append(
                Note(
                    id="no-header",
                    sentence="the table has no header; columns were taken in the original's "
                    "order: " + ", ".join(self.columns or ()),
                )
            )
        if self.unknown:
            found.append(
                Note(
                    id="columns-unread",
                    sentence=f"columns not read: {', '.join(self.unknown)[:500]}",
                )
            )
        counts = {what: n for what, n in self.set_apart.items() if what != "blank"}
        if counts:
            said = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
            found.append(Note(id="rows-set-apart", sentence=f"rows set apart: {said[:500]}"))
        return found

    # Headers

    def _take_header(self, number: int, cells: Sequence[str]) -> None:
        known = {name.lower(): name for name in (*_READ, *_UNREAD)}
        columns: dict[str, int] = {}
        unknown = []
        for place, cell in enumerate(cells):
            name = known.get(cell.lower())
            if name is None:
                if cell and not cell.lower().endswith("@type"):
                    unknown.append(cell)
            elif name in columns:
                raise BadFile(f"{self.name}: row {number}: column {name} comes twice; drop one")
            else:
                columns[name] = place
        missing = [name for name in REQUIRED if name not in columns]
        if missing and not columns.keys() & set(_VEGETA):
            raise BadFile(
                f"{self.name}: row {number}: no column {', '.join(missing)} (found: "
                f"{', '.join(cell for cell in cells if cell)}); export the whole table"
            )
        if self.columns is not None:
            self.set_apart["repeated header"] += 1
        self.columns, self.width, self.unknown = columns, len(cells), tuple(unknown)
        self.tests = "test_type" in columns

    def _take_unheaded(self, number: int, cells: Sequence[str]) -> None:
        """Parse a row before a header, either a title or the first row without a header."""
        if "row labels" in [cell.lower() for cell in cells]:
            raise BadFile(
                f"{self.name}: row {number}: a pivot table's sheet (Row Labels), which has no "
                "clients; export the sheet that it sums up"
            )
        if len(cells) < 2 or not _KEY.fullmatch(cells[1]):
            if sum(map(bool, cells)) > 1:
                found = ", ".join(cell for cell in cells if cell)
                raise BadFile(
                    f"{self.name}: row {number}: no columns {', '.join(REQUIRED)} (found: "
                    f"{found[:200]}); export the whole table as CSV"
                )
            self.set_apart["summary or title"] += 1
            return
        places = [p for p, cell in enumerate(cells) if cell and cell.lower() not in _TYPES]
        names = _HEADERLESS.get(len(places))
        if names is None or "." not in cells[places[names.index("server")]]:
            raise BadFile(
                f"{self.name}: row {number}: no header, and {len(places)} columns that are not "
                "the original's; put a row with PartitionKey, RowKey, ... on top"
            )
        self.columns = dict(zip(names, places, strict=True))
        self.width, self.headerless = len(cells), True
        self._take_row(number, cells)

    # Rows

    def _take_row(self, number: int, cells: Sequence[str]) -> None:
        columns = self.columns or {}
        said = {name: cells[place] for name, place in columns.items() if place < len(cells)}
        client, key = said.get("PartitionKey", ""), said.get("RowKey", "")
        if not (client or key) or (not (client and key) and _TOTALS.search(client + key)):
            self.set_apart["summary or title"] += 1
            return
        if len(cells) < self.width or any(cells[self.width :]):
            raise BadFile(
                f"{self.name}: row {number}: {len(cells)} cells where the header has {self.width} "
                f"({', '.join(cells)[:80]}); was the file cut, or a number not quoted?"
            )
        test = said.get("test_type", "").lower()
        results = any(said.get(name) for name in ("sent_throughput", "received_throughput"))
        if not test and not results and any(said.get(name) for name in _VEGETA):
            test = "vegeta"
        if test not in ("", "iperf3"):
            self.set_apart[test[:20]] += 1
            return
        if missing := [name for name in REQUIRED if name not in columns]:
            raise BadFile(
                f"{self.name}: row {number}: an iperf3 test, but no column {', '.join(missing)}; "
                "export the whole table"
            )
        if len(self.rows) >= ROWS_MAX_COUNT:
            raise BadFile(
                f"{self.name}: row {number}: more than {ROWS_MAX_COUNT} results; split the file "
                "and import the parts"
            )
        if not client:
            raise self._wrong(number, "PartitionKey", client, "give the client's address")
        self.rows.append(
            OriginalRow(
                row_number=number,
                client=client,
                started_at=self._started_at(number, key, said.get("Timestamp", "")),
                duration_s=self._number(number, said, "duration"),
                sent_bits_per_second=self._number(number, said, "sent_throughput"),
                received_bits_per_second=self._number(number, said, "received_throughput"),
                server=said.get("server") or None,
                rtt_mean_s=self._rtt_s(number, said, "mean_rtt"),
                rtt_min_s=self._rtt_s(number, said, "min_rtt"),
                rtt_max_s=self._rtt_s(number, said, "max_rtt"),
            )
        )

    def _number(self, number: int, said: Mapping[str, str], column: str) -> float | None:
        text = said.get(column, "")
        try:
            return parse_number(text)
        except ValueError:
            raise self._wrong(
                number, column, text, "not a number; write digits, or null for unknown"
            ) from None

    def _rtt_s(self, number: int, said: Mapping[str, str], column: str) -> float | None:
        microseconds = self._number(number, said, column)
        return None if microseconds is None else microseconds / 1e6

    def _started_at(self, number: int, text: str, stored: str) -> datetime:
        at = self.local.get(text)
        if at is None:
            at = self.local[text] = self._instant(number, text)
        try:
            stored_at = datetime.fromisoformat(stored) if stored else None
        except ValueError:
            # Another column has the same name.
            stored_at = None
        if (
            stored_at is not None
            and stored_at.tzinfo is not None
            and stored_at < at - timedelta(seconds=_STORED_EARLY_S)
        ):
            raise self._wrong(
                number,
                "RowKey",
                text,
                f"stored at {stored}, before it started: this client's clock was not in "
                f"{self.zone}; import the rows of each zone apart, with --timezone",
            )
        return at

    def _instant(self, number: int, text: str) -> datetime:
        try:
            said = parse_time(text)
        except ValueError as error:
            raise self._wrong(
                number, "RowKey", text, f"not a start time as {ORIGINAL_FORMAT} ({error})"
            ) from None
        kind = say_zone(said)
        self.kind = self.kind or kind
        if kind != self.kind:
            raise self._wrong(
                number,
                "RowKey",
                text,
                f"{kind}, where the rows above have {self.kind}; write all in one zone",
            )
        try:
            at = to_utc(said, self.zone)
        except ValueError as error:
            raise self._wrong(number, "RowKey", text, str(error)) from None
        if at > self.now + timedelta(seconds=_FUTURE_S):
            raise self._wrong(number, "RowKey", text, "lies in the future; mend it")
        return at

    def _wrong(self, number: int, column: str, value: str, reason: str) -> BadFile:
        return wrong_cell(self.name, number, column, value, reason)


def _refuse_mixed_zones(name: str, rows: Sequence[OriginalRow], zone: tzinfo) -> None:
    """Reject a table with local times for some clients and UTC for others.

    A table is rejected if two conditions are met. Read as UTC, nearly all starts of those clients
    are in minutes in which other clients start. Read as local time, none is in such a minute.
    """
    ahead = rows[0].started_at.astimezone(zone).utcoffset() or timedelta()
    by_client: defaultdict[str, list[datetime]] = defaultdict(list)
    for row in rows:
        by_client[row.client].append(row.started_at.replace(second=0, microsecond=0))
    minutes = {at for own in by_client.values() for at in own}
    doubtful = {at for at in minutes if at + ahead in minutes}
    odd = [client for client, own in by_client.items() if not doubtful.isdisjoint(own)]
    theirs = [at for client in odd for at in by_client[client]]
    as_utc = [at for at in theirs if at in doubtful]
    if (
        ahead
        and len(doubtful) >= _UTC_MINUTES_MIN
        and len(as_utc) >= _UTC_SHARE * len(theirs)
        and {at + ahead for at in doubtful}.isdisjoint(theirs)
    ):
        row = next(row for row in rows if row.client in odd)
        raise BadFile(
            f"{name}: row {row.row_number}, RowKey: {row.client} and {len(odd) - 1} more clients "
            f"start when the others do if their times are UTC, and not {zone}: the table mixes "
            "zones; import each part apart with its --timezone (or slices with --from, --before)"
        )
