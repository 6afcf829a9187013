"""Reads the original test's tables again: planned bursts, late members, null and missing pairs.

The original stored one row a client a burst, with its local start time, mean rates and duration,
and nobody joined a late starter to its burst. Here a row belongs to the planned instant at or
before its start; instants follow from the file itself or from a given period.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from broadside.exchange.messages import Number, TrafficAt, Whole

LATE_AFTER_S: Final = 1.0  # s after the instant at which a row counts as late
EARLY_S: Final = 5.0  # s before an instant that a start may be stamped and still belong to it
MINUTE_SLACK_S: Final = 2.0
GROUPS_AHEAD: Final = 4  # groups of starts among which one must be large to count as whole
SILENCE_S: Final = 600.0  # s beyond three bursts' length without a start: another test follows
RATE_MAX_BITS_PER_SECOND: Final = 1e13  # of one client: beyond it a number is a slip
DURATION_MAX_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalRow:
    """One parsed row; ``None`` is the table's ``null``."""

    row_number: Whole  # in the file, as a person counts: the header is 1
    client: str
    started_at: TrafficAt  # UTC
    duration_s: Number | None  # None: the table does not say
    sent_bits_per_second: Number | None
    received_bits_per_second: Number | None
    server: str | None = None
    rtt_mean_s: Number | None = None
    rtt_min_s: Number | None = None
    rtt_max_s: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """One value that cannot be right."""

    row_number: int
    column: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.row_number}, {self.column}: {self.value}: {self.reason}"


def problems(rows: Sequence[OriginalRow]) -> tuple[RowProblem, ...]:
    """Everything in the rows that forbids to import them, in row order."""
    found = []
    first: dict[tuple[str, datetime], int] = {}
    told: dict[tuple[float, float], int] = {}
    for row in sorted(rows, key=lambda row: row.row_number):
        for column, rate in (
            ("sent_throughput", row.sent_bits_per_second),
            ("received_throughput", row.received_bits_per_second),
        ):
            if rate is not None and not 0 <= rate <= RATE_MAX_BITS_PER_SECOND:
                reason = "must be between 0 and 10 Tbit/s"
                found.append(_problem(row, column, f"{rate:g}", reason))
        if row.duration_s is not None and not 0 < row.duration_s <= DURATION_MAX_S:
            reason = "must be above 0 and at most a day, in seconds"
            found.append(_problem(row, "duration", f"{row.duration_s:g}", reason))
        for column, rtt_s in (
            ("min_rtt", row.rtt_min_s),
            ("mean_rtt", row.rtt_mean_s),
            ("max_rtt", row.rtt_max_s),
        ):
            if rtt_s is not None and not 0 <= rtt_s <= 60:
                reason = "must be between 0 and 60 s, given in microseconds"
                found.append(_problem(row, column, f"{rtt_s * 1e6:g}", reason))
        key = (row.client, row.started_at)
        if key in first:
            said = f"{row.client} {row.started_at:%Y-%m-%dT%H:%M:%SZ}"
            found.append(_problem(row, "RowKey", said, f"row {first[key]} has the same"))
            continue
        first.setdefault(key, row.row_number)
        rates = (row.sent_bits_per_second or 0.0, row.received_bits_per_second or 0.0)
        if all(map(_is_exact, rates)) and told.setdefault(rates, row.row_number) != row.row_number:
            said = f"row {told[rates]} has the same and the same sent_throughput: one is a copy"
            found.append(_problem(row, "received_throughput", f"{rates[1]:.15g}", said))
    return tuple(found)


def _is_exact(rate: float) -> bool:
    """Whether a rate has six digits or more, so that no second test comes to it by chance."""
    return rate != float(f"{rate:.4e}")


def _problem(row: OriginalRow, column: str, value: str, reason: str) -> RowProblem:
    return RowProblem(row_number=row.row_number, column=column, value=value, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Bursts of one length, fired one period after another: ``first_at + k x period_s``."""

    begins_at: datetime  # its earliest start
    first_at: datetime
    period_s: float | None  # None: a single burst
    clients: tuple[str, ...]

    def planned(self, started_at: datetime) -> datetime:
        """The instant that a start belongs to: the last one at or (a little) before it."""
        if self.period_s is None:
            return self.first_at
        since_s = (started_at - self.first_at).total_seconds() + EARLY_S
        return self.first_at + timedelta(
            seconds=math.floor(since_s / self.period_s) * self.period_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StartGroup:
    """Rows that start within :data:`EARLY_S` of the first of them."""

    at: datetime  # the commonest start, the earliest of equally common ones
    rows: tuple[OriginalRow, ...]

    @property
    def duration_s(self) -> float:
        """0 where the table does not say."""
        known = [row.duration_s for row in self.rows if row.duration_s is not None]
        return float(np.median(known)) if known else 0.0


def infer_series(rows: Sequence[OriginalRow], period_s: float | None = None) -> tuple[Series, ...]:
    """The planned instants in time order; ``period_s`` overrides what the table suggests.

    A long silence, or a whole group of another duration, begins another series. Within one, groups
    at least a third as large as the largest are taken as planned; the period is the commonest gap
    between neighbours among them that a burst fits into (the shortest of equally common ones), the
    phase the commonest start within it. The original fired at second 0 of a minute: both are moved
    to whole minutes where they are within two seconds of them. There is a row at least.
    """
    return tuple(_series_of(groups, period_s) for groups in _apart(_grouped(rows)))


def _grouped(rows: Sequence[OriginalRow]) -> list[_StartGroup]:
    found: list[list[OriginalRow]] = []
    for row in sorted(rows, key=lambda row: (row.started_at, row.row_number)):
        if found and (row.started_at - found[-1][0].started_at).total_seconds() <= EARLY_S:
            found[-1].append(row)
        else:
            found.append([row])
    groups = []
    for members in found:
        starts = Counter(row.started_at for row in members)
        at = min(starts, key=lambda start: (-starts[start], start))
        groups.append(_StartGroup(at=at, rows=tuple(members)))
    return groups


def _apart(groups: Sequence[_StartGroup]) -> list[list[_StartGroup]]:
    series = [[groups[0]]]
    for number, (before, group) in enumerate(itertools.pairwise(groups), 1):
        longest_s = max(before.duration_s, group.duration_s)
        silence_s = (group.at - before.at).total_seconds()
        silent = longest_s > 0 and silence_s > 3 * longest_s + SILENCE_S
        ruled_s = max(series[-1], key=lambda known: len(known.rows)).duration_s
        other = abs(group.duration_s - ruled_s) > 0.2 * ruled_s
        ahead = max(len(later.rows) for later in groups[number : number + GROUPS_AHEAD])
        if silent or (other and len(group.rows) * 3 >= ahead):
            series.append([group])
        else:
            series[-1].append(group)
    return series


def _series_of(groups: Sequence[_StartGroup], period_s: float | None) -> Series:
    most = max(len(group.rows) for group in groups)
    major = [group for group in groups if len(group.rows) * 3 >= most]
    if period_s is None:
        least_s = min(group.duration_s for group in major)
        gaps = Counter(
            _to_minute((later.at - earlier.at).total_seconds())
            for earlier, later in itertools.pairwise(major)
        )
        fair = {gap: count for gap, count in gaps.items() if gap >= least_s}
        period_s = min(fair, key=lambda gap: (-fair[gap], gap)) if fair else None
    first_at = major[0].at
    if period_s is not None:
        phases: Counter[float] = Counter()
        for group in groups:
            phases[_to_minute(group.at.timestamp()) % period_s] += len(group.rows)
        phase = min(phases, key=lambda value: (-phases[value], value))
        since_s = first_at.timestamp() - phase + EARLY_S
        first_at = datetime.fromtimestamp(math.floor(since_s / period_s) * period_s + phase, UTC)
    return Series(
        begins_at=min(row.started_at for group in groups for row in group.rows),
        first_at=first_at,
        period_s=period_s,
        clients=tuple(client_names([row for group in groups for row in group.rows])),
    )


def _to_minute(seconds: float) -> float:
    """A time within two seconds of a whole minute is that minute."""
    minute = round(seconds / 60) * 60
    return float(minute) if minute and abs(seconds - minute) <= MINUTE_SLACK_S else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBurst:
    """One planned instant and the rows that belong to it. A pair is a client."""

    index: int
    planned_start_at: datetime
    duration_s: float | None  # None: the table does not say
    rows: tuple[OriginalRow, ...]  # one a client
    repeated: tuple[OriginalRow, ...]  # others of the same clients: left out
    series: Series
    pairs_planned: int

    @property
    def held(self) -> list[OriginalRow]:
        """Rows with a received rate, late ones included."""
        return [row for row in self.rows if holds(row)]

    @property
    def missing(self) -> list[str]:
        """Clients of the series that have no row here."""
        present = {row.client for row in self.rows}
        return [client for client in self.series.clients if client not in present]

    def late_s(self, row: OriginalRow) -> float | None:
        """How long after the instant a row started; None for one on time."""
        late_s = (row.started_at - self.planned_start_at).total_seconds()
        return late_s if late_s > LATE_AFTER_S else None


def join_rows(
    rows: Sequence[OriginalRow], *, period_s: float | None = None, pairs_planned: int | None = None
) -> list[TableBurst]:
    """Join rows to planned bursts, in time order.

    Planned are all clients of the series that the burst belongs to, or ``pairs_planned`` where
    that is more. The order of ``rows`` does not matter; there is one at least.
    """
    found = infer_series(rows, period_s)
    by_instant: dict[datetime, list[OriginalRow]] = defaultdict(list)
    for row in rows:
        by_instant[_series_at(found, row.started_at).planned(row.started_at)].append(row)
    bursts = []
    for index, at in enumerate(sorted(by_instant)):
        kept, repeated = _one_each(by_instant[at])
        series = _series_at(found, max(row.started_at for row in by_instant[at]))
        known_s = [row.duration_s for row in kept if row.duration_s is not None]
        bursts.append(
            TableBurst(
                index=index,
                planned_start_at=at,
                duration_s=float(np.median(known_s)) if known_s else None,
                rows=tuple(kept),
                repeated=tuple(repeated),
                series=series,
                pairs_planned=max(pairs_planned or 0, len(series.clients)),
            )
        )
    return bursts


def _series_at(series: Sequence[Series], started_at: datetime) -> Series:
    """The series that a start belongs to."""
    begun = [each for each in series if each.begins_at <= started_at]
    return begun[-1] if begun else series[0]


def client_names(rows: Sequence[OriginalRow]) -> list[str]:
    """Every client that has a row, 10.2.0.9 before 10.2.0.10."""
    return sorted({row.client for row in rows}, key=_address_key)


def _address_key(client: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (0, part) for part in client.split("."))


def _one_each(rows: Sequence[OriginalRow]) -> tuple[list[OriginalRow], list[OriginalRow]]:
    """One row a client: the first that holds a result, else the first; and the others."""
    chosen: dict[str, OriginalRow] = {}
    others = []
    for row in sorted(rows, key=lambda row: (not holds(row), row.started_at, row.row_number)):
        if row.client in chosen:
            others.append(row)
        else:
            chosen[row.client] = row
    return sorted(chosen.values(), key=lambda row: _address_key(row.client)), others


def holds(row: OriginalRow) -> bool:
    """Whether a row says that something was received."""
    return bool(row.received_bits_per_second)
