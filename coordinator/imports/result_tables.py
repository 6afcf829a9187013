"""Reader of tables with one row per client and burst.

The columns follow from a profile (:mod:`broadside.coordinator.imports.column_profile`). Without
one, the profiles of the original test are tried.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path, PurePath
from typing import Final

from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.column_profile import RESULT_PROFILES, load_profile
from broadside.coordinator.imports.import_requests import Note, OriginalTable
from broadside.coordinator.imports.metric_csv import read_metric
from broadside.coordinator.imports.table_bursts import OriginalRow, infer_series, problems
from broadside.coordinator.imports.table_reader import ProfileMismatch, TableReader, TableRow
from broadside.coordinator.imports.time_text import parse_zone, to_utc
from broadside.coordinator.imports.uploaded_files import read_text

# Maximum time in seconds by which the timestamp of a row may be before the row's start.
_STORED_EARLY_S: Final = 60.0
# Maximum time in seconds by which a start may be in the future, because another host's clock might
# be wrong.
_FUTURE_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Options for reading a table.

    Attributes:
        now: Current time to use.
        profile: Name or path of a profile. None to try those of the original test.
        zone: Time zone of local times. None for the zone of the profile.
        from_at: Only rows that start at or after this time, local or with an offset.
        before_at: Only rows that start before this time.
        duration_s: Duration of all rows. None to use the values in the table.
        pairs_planned: How many pairs are planned. None to infer it from the rows.
        period_s: Burst period. None to infer it from the rows.
    """

    now: datetime
    profile: str | None = None
    zone: tzinfo | None = None
    from_at: datetime | None = None
    before_at: datetime | None = None
    duration_s: float | None = None
    pairs_planned: int | None = None
    period_s: float | None = None


def read_original(
    path: Path,
    options: TableOptions,
    *,
    metric: Path | None = None,
    declared: Mapping[str, object] | None = None,
) -> OriginalTable:
    """Read and check a table, and optionally the firewall metric.

    Args:
        path: CSV file of the table.
        options: How to read it.
        metric: CSV file of the metric. None imports no metric.
        declared: Meaning of the metric values. See ``read_metric``. None sets none.

    Returns:
        Rows, planned values and notes, ready to be sent to the API.

    Raises:
        BadFile: A file cannot be imported.
    """
    table = parse_original(read_text(path), str(path), options)
    if metric is None:
        return table
    fields = read_metric(metric, declared)
    fields["notes"] = (*table.notes, *fields["notes"])
    return table.model_copy(update=fields)


def parse_original(text: str, name: str, options: TableOptions) -> OriginalTable:
    """Parse a table.

    Args:
        text: The file's content.
        name: File name to use for error messages.
        options: How to read it.

    Returns:
        Rows, planned values and notes, ready to be sent to the API.

    Raises:
        BadFile: The table cannot be imported.
    """
    mismatch: BadFile | None = None
    for profile in RESULT_PROFILES if options.profile is None else (options.profile,):
        try:
            return _parse(text, name, profile, options)
        except ProfileMismatch as error:
            mismatch = mismatch or error
    raise mismatch or BadFile(f"{name}: no profile")


def _parse(text: str, name: str, profile_name: str, options: TableOptions) -> OriginalTable:
    profile = load_profile(profile_name)
    zone = options.zone or parse_zone(profile.timezone)
    reader = TableReader(name, profile, zone)
    from_at, before_at = _bound(options.from_at, zone), _bound(options.before_at, zone)
    rows = [_result(row, options.now) for row in reader.rows(text)]
    rows = [
        row
        for row in rows
        if (from_at is None or row.started_at >= from_at)
        and (before_at is None or row.started_at < before_at)
    ]
    if not rows:
        raise BadFile(
            f"{name}: no row between --since and --until; compare them with the column "
            f"{profile.header_of('started_at')}"
        )
    rows, notes = _with_durations(rows, reader, options)
    if wrong := problems(rows):
        first = wrong[0]
        value = first.value
        if first.number is not None:
            value = profile.in_unit(first.field, first.number)
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BadFile(
            f"{name}: row {first.row_number}, {profile.header_of(first.field)}: {value}: "
            f"{first.reason}; correct or remove the row{more}"
        )
    return OriginalTable(
        source=PurePath(name).name,
        timezone=str(zone),
        engine=profile.engine,
        rows=tuple(rows),
        period_s=options.period_s,
        pairs_planned=options.pairs_planned,
        skipped_rows=dict(reader.skipped_rows),
        notes=(*_notes(reader), *notes, *_note_pairs(name, rows, options)),
    )


def _bound(at: datetime | None, zone: tzinfo) -> datetime | None:
    try:
        return None if at is None else to_utc(at, zone)
    except ValueError as error:
        raise BadFile(f"--since, --until: {at}: {error}") from None


def _result(row: TableRow, now: datetime) -> OriginalRow:
    """Return the values of one row."""
    if not row.text("client"):
        raise row.error("client", "give the client's address")
    started_at = row.time()
    if started_at > now + timedelta(seconds=_FUTURE_S):
        raise row.error("started_at", "lies in the future; correct it")
    _check_stored(row, started_at)
    result = OriginalRow(
        row_number=row.number,
        client=row.text("client"),
        started_at=started_at,
        duration_s=row.value("duration_s"),
        sent_bits_per_second=row.value("sent_bits_per_second"),
        received_bits_per_second=row.value("received_bits_per_second"),
        server=row.text("server") or None,
        rtt_mean_s=row.value("rtt_mean_s"),
        rtt_min_s=row.value("rtt_min_s"),
        rtt_max_s=row.value("rtt_max_s"),
    )
    return result if row.table.profile.reply_bytes is None else _requests(row, result)


def _requests(row: TableRow, result: OriginalRow) -> OriginalRow:
    """Add the payload rate and the duration of a row that counts requests.

    vegeta divides the successful requests by the time from the first request to the last reply, so
    this time follows from the number of requests, their success and the rate.
    """
    rate, success = row.value("requests_per_second"), row.value("success_ratio")
    total_s, mean_s = row.value("latency_total_s"), row.value("latency_mean_s")
    if rate is None or success is None:
        return result
    count = round(total_s / mean_s) if total_s and mean_s else None
    return replace(
        result,
        received_bits_per_second=rate * 8 * (row.table.profile.reply_bytes or 0),
        duration_s=count * success / rate if count and rate and success else None,
        requests_count=count,
        success_ratio=success,
        latency_mean_s=mean_s,
    )


def _check_stored(row: TableRow, started_at: datetime) -> None:
    """Reject a row that was stored before its start, because its time zone is wrong."""
    stored = row.text("stored_at")
    try:
        stored_at = datetime.fromisoformat(stored)
    except ValueError:
        # The cell is empty, or another column has the same name.
        return
    if stored_at.tzinfo and stored_at < started_at - timedelta(seconds=_STORED_EARLY_S):
        raise row.error(
            "started_at",
            f"stored at {stored}, before it started: the clock of this client was not in "
            f"{row.table.zone}; import the rows of each zone separately, with --timezone",
        )


def _with_durations(
    rows: list[OriginalRow], reader: TableReader, options: TableOptions
) -> tuple[list[OriginalRow], list[Note]]:
    """Return the rows with durations in seconds, and notes on durations from another source.

    Later iperf3 clients of the original test wrote the period in minutes, started at multiples of
    it, and sent for one minute less.
    """
    known = [row.duration_s for row in rows if row.duration_s is not None]
    if options.duration_s is not None:
        return [replace(row, duration_s=options.duration_s) for row in rows], []
    if (
        (reader.profile.minutes_column or "").lower() in reader.columns
        and known
        and all(2 <= number <= 60 and number == int(number) for number in known)
        and all(_starts_at_multiple(row) for row in rows)
    ):
        note = _note(
            "duration-minutes",
            "Durations were read as periods in minutes, because the table has the column "
            f"{reader.profile.minutes_column}: n minutes are (n - 1) x 60 s of traffic.",
            "If this is wrong, give the duration with `--duration-s`",
        )
        return [
            row if row.duration_s is None else replace(row, duration_s=(row.duration_s - 1) * 60)
            for row in rows
        ], [note]
    return rows, []


def _starts_at_multiple(row: OriginalRow) -> bool:
    at = row.started_at
    return at.second == 0 and at.minute % int(row.duration_s or 1) == 0


def _note(name: str, sentence: str, next_step: str | None = None) -> Note:
    return Note(id=name, sentence=sentence[:1000], next_step=next_step)


def _notes(reader: TableReader) -> Iterator[Note]:
    """Yield notes about the file, to be added to the findings of the run."""
    profile = reader.profile
    if reader.unread:
        yield _note("columns-ignored", f"Columns not read: {', '.join(reader.unread)[:500]}.")
    skipped = sorted((kind, n) for kind, n in reader.skipped_rows.items() if kind != "blank")
    if skipped:
        counts = ", ".join(f"{n} {kind}" for kind, n in skipped)[:500]
        yield _note(
            "rows-skipped",
            f"Rows that were not read, by kind: {counts}. Their tests are not in the result.",
            "If they belong to this run, correct these rows or the profile (`--profile`), then "
            "import again",
        )
    if profile.reply_bytes is not None:
        yield _note(
            "reply-size-assumed",
            "The table counts requests and not bytes. Each successful one was counted as "
            f"{profile.reply_bytes:,} bytes of payload. The durations include the wait for the "
            "last reply.",
            "If your servers sent another size, copy the profile, set `reply_bytes` and give the "
            "copy with `--profile`",
        )


def _note_pairs(name: str, rows: Sequence[OriginalRow], options: TableOptions) -> Iterator[Note]:
    """Yield a note if the planned pairs are assumed. Reject a number that is too small."""
    most = max(len(part.clients) for part in infer_series(rows, options.period_s))
    if options.pairs_planned is None:
        yield _note(
            "pairs-assumed",
            "The table does not contain the number of planned pairs. The number of clients with "
            f"rows, {most}, was used.",
            "If there were more, give their number with `--pairs-planned`",
        )
    elif options.pairs_planned < most:
        raise BadFile(
            f"{name}: --pairs-planned {options.pairs_planned}, but {most} clients have rows; "
            "give at least as many, or import a slice with --since and --until"
        )
