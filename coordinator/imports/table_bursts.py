"""Reconstruction of the planned bursts in an original table.

The original stored one row per client and burst, with local start time, mean rates and duration. It
did not assign a late start to its burst. Here a row belongs to the planned time at or before its
start. The planned times follow from the file or from a given period.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from broadside.coordinator.imports import RowField
from broadside.exchange.messages import Integer, Number, TrafficAt

# A row is late if it starts more than this time after the planned time.
LATE_AFTER_S: Final = 1.0
# A start may be up to this time before the planned time.
EARLY_S: Final = 5.0
MINUTE_SLACK_S: Final = 2.0
# Number of groups to compare, starting at the group itself. A group is complete if it has at least
# a third of the rows of the largest one.
GROUPS_AHEAD: Final = 4
# A new series begins after three burst lengths plus this time without a start.
SILENCE_S: Final = 600.0
# Higher rates of one client count as errors.
RATE_MAX_BITS_PER_SECOND: Final = 1e13
DURATION_MAX_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalRow:
    """One parsed row. None is the table's ``null``.

    Attributes:
        row_number: Number of the row in the file. The header is row 1.
        client: Name of the client.
        started_at: Start of the test.
        duration_s: Duration in seconds. None if the table has none.
        server: Name of the server. None if the table has none.
        rtt_min_s: Smallest round-trip time in seconds.
        rtt_max_s: Largest round-trip time in seconds.
        requests_count: Number of requests, in tables that count them.
        success_ratio: Successful requests divided by all (0 to 1).
        latency_mean_s: Mean time of the requests in seconds.
    """

    row_number: Integer
    client: str
    started_at: TrafficAt
    duration_s: Number | None
    sent_bits_per_second: Number | None
    received_bits_per_second: Number | None
    server: str | None = None
    rtt_mean_s: Number | None = None
    rtt_min_s: Number | None = None
    rtt_max_s: Number | None = None
    requests_count: Integer | None = None
    success_ratio: Number | None = None
    latency_mean_s: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """One wrong value.

    Attributes:
        row_number: Row in the file.
        field: Field of the row.
        value: Value as text.
        reason: Why it is wrong.
        number: The value, if it is a number in the unit of the field.
    """

    row_number: int
    field: RowField
    value: str
    reason: str
    number: float | None = None

    def __str__(self) -> str:
        return f"row {self.row_number}, {self.field}: {self.value}: {self.reason}"


# Largest value of each field, with the reason to reject other values. Only a duration must not be
# zero.
_LIMITS: Final[Mapping[RowField, tuple[float, str]]] = {
    "sent_bits_per_second": (RATE_MAX_BITS_PER_SECOND, "must be between 0 and 10 Tbit/s"),
    "received_bits_per_second": (RATE_MAX_BITS_PER_SECOND, "must be between 0 and 10 Tbit/s"),
    "duration_s": (DURATION_MAX_S, "must be above 0 and at most a day"),
    "rtt_min_s": (60.0, "must be between 0 and 60 s"),
    "rtt_mean_s": (60.0, "must be between 0 and 60 s"),
    "rtt_max_s": (60.0, "must be between 0 and 60 s"),
}


def problems(rows: Sequence[OriginalRow]) -> tuple[RowProblem, ...]:
    """Return all errors that prevent an import, in row order."""
    result = []
    by_key: dict[tuple[str, datetime], int] = {}
    by_rates: dict[tuple[float, float], int] = {}
    for row in sorted(rows, key=lambda row: row.row_number):
        at = row.row_number
        for field, (most, reason) in _LIMITS.items():
            value = getattr(row, field)
            if value is None or (0 <= value <= most and (value or field != "duration_s")):
                continue
            problem = RowProblem(
                row_number=at, field=field, value=f"{value:g}", reason=reason, number=value
            )
            result.append(problem)
        key = (row.client, row.started_at)
        if key in by_key:
            value, reason = (
                f"{key[0]} {key[1]:%Y-%m-%dT%H:%M:%SZ}",
                f"row {by_key[key]} has the same",
            )
            result.append(RowProblem(row_number=at, field="started_at", value=value, reason=reason))
            continue
        by_key[key] = at
        rates = (row.sent_bits_per_second or 0.0, row.received_bits_per_second or 0.0)
        if all(map(_is_exact, rates)) and (other := by_rates.setdefault(rates, at)) != at:
            reason = f"row {other} has the same and the same sent rate: one is a copy"
            result.append(
                RowProblem(
                    row_number=at,
                    field="received_bits_per_second",
                    value=f"{rates[1]:.15g}",
                    reason=reason,
                )
            )
    return tuple(result)


def _is_exact(rate: float) -> bool:
    """Return True if a rate has at least six digits, so that equal values are no coincidence."""
    return rate != float(f"{rate:.4e}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicBursts:
    """Bursts with the same length and a fixed period, at ``first_at + k * period_s``.

    Attributes:
        begins_at: Earliest start.
        first_at: First planned time.
        period_s: Period in seconds. None for a single burst.
        clients: Clients with a row in the series.
    """

    begins_at: datetime
    first_at: datetime
    period_s: float | None
    clients: tuple[str, ...]

    def planned(self, started_at: datetime) -> datetime:
        """Return the last planned time that is at most ``EARLY_S`` after a start."""
        if self.period_s is None:
            return self.first_at
        since_s = (started_at - self.first_at).total_seconds() + EARLY_S
        return self.first_at + timedelta(
            seconds=math.floor(since_s / self.period_s) * self.period_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StartGroup:
    """Rows that start within ``EARLY_S`` after the first one.

    Attributes:
        at: The most frequent start. If several are equally frequent, the earliest of them.
        rows: The rows.
    """

    at: datetime
    rows: tuple[OriginalRow, ...]

    @property
    def duration_s(self) -> float:
        """Median duration in seconds. 0 if the table has no duration."""
        known = [row.duration_s for row in self.rows if row.duration_s is not None]
        return float(np.median(known)) if known else 0.0


def infer_series(
    rows: Sequence[OriginalRow], period_s: float | None = None
) -> tuple[PeriodicBursts, ...]:
    """Infer the planned burst times.

    A long silence, or a complete group with another duration, begins another series. In a series,
    groups with at least a third of the rows of the largest group are planned bursts.

    The period is the most frequent gap between neighbours that is not shorter than a burst. If
    several gaps are equally frequent, it is the shortest of them. The phase is the most frequent
    start within the period. The original test started at second 0 of a minute. Both are therefore
    rounded to whole minutes if they are within two seconds.

    Args:
        rows: Parsed rows, at least one.
        period_s: Period in seconds. None to infer it.

    Returns:
        The series in time order.
    """
    return tuple(_series_of(groups, period_s) for groups in _split_series(_grouped(rows)))


def _grouped(rows: Sequence[OriginalRow]) -> list[_StartGroup]:
    by_start: list[list[OriginalRow]] = []
    for row in sorted(rows, key=lambda row: (row.started_at, row.row_number)):
        if by_start and (row.started_at - by_start[-1][0].started_at).total_seconds() <= EARLY_S:
            by_start[-1].append(row)
        else:
            by_start.append([row])
    groups = []
    for members in by_start:
        starts = Counter(row.started_at for row in members)
        at = min(starts, key=lambda start: (-starts[start], start))
        groups.append(_StartGroup(at=at, rows=tuple(members)))
    return groups


def _split_series(groups: Sequence[_StartGroup]) -> list[list[_StartGroup]]:
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


def _series_of(groups: Sequence[_StartGroup], period_s: float | None) -> PeriodicBursts:
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
    return PeriodicBursts(
        begins_at=min(row.started_at for group in groups for row in group.rows),
        first_at=first_at,
        period_s=period_s,
        clients=tuple(client_names([row for group in groups for row in group.rows])),
    )


def _to_minute(seconds: float) -> float:
    """Round a time to a whole minute when it is within two seconds."""
    minute = round(seconds / 60) * 60
    return float(minute) if minute and abs(seconds - minute) <= MINUTE_SLACK_S else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBurst:
    """One planned burst with its rows. A pair is a client.

    Attributes:
        index: Burst index, starting at 0.
        planned_start_at: Planned time.
        duration_s: Median duration in seconds. None if the table has no duration.
        rows: One row for each client.
        repeated: More rows from the same clients, which are not used.
        series: Series that the burst belongs to.
        pairs_planned: Planned pairs.
    """

    index: int
    planned_start_at: datetime
    duration_s: float | None
    rows: tuple[OriginalRow, ...]
    repeated: tuple[OriginalRow, ...]
    series: PeriodicBursts
    pairs_planned: int

    @property
    def measured(self) -> list[OriginalRow]:
        """Rows with a received rate, including late ones."""
        return [row for row in self.rows if has_result(row)]

    @property
    def missing(self) -> list[str]:
        """Clients in the series that have no row in this burst."""
        present = {row.client for row in self.rows}
        return [client for client in self.series.clients if client not in present]

    def late_s(self, row: OriginalRow) -> float | None:
        """Return the delay in seconds for a late row, or None if it is not late."""
        late_s = (row.started_at - self.planned_start_at).total_seconds()
        return late_s if late_s > LATE_AFTER_S else None


def join_rows(
    rows: Sequence[OriginalRow], *, period_s: float | None = None, pairs_planned: int | None = None
) -> list[TableBurst]:
    """Join rows to planned bursts.

    The planned pairs are all clients in the series, or ``pairs_planned`` if that is more.

    Args:
        rows: Parsed rows in any order, at least one.
        period_s: Period in seconds. None to infer it.
        pairs_planned: How many pairs are planned. None to infer it.

    Returns:
        The bursts in time order.
    """
    inferred = infer_series(rows, period_s)
    by_instant: dict[datetime, list[OriginalRow]] = defaultdict(list)
    for row in rows:
        by_instant[_series_at(inferred, row.started_at).planned(row.started_at)].append(row)
    bursts = []
    for index, at in enumerate(sorted(by_instant)):
        used, repeated = _one_row_per_client(by_instant[at])
        series = _series_at(inferred, max(row.started_at for row in by_instant[at]))
        known_s = [row.duration_s for row in used if row.duration_s is not None]
        bursts.append(
            TableBurst(
                index=index,
                planned_start_at=at,
                duration_s=float(np.median(known_s)) if known_s else None,
                rows=tuple(used),
                repeated=tuple(repeated),
                series=series,
                pairs_planned=max(pairs_planned or 0, len(series.clients)),
            )
        )
    return bursts


def _series_at(series: Sequence[PeriodicBursts], started_at: datetime) -> PeriodicBursts:
    """Return the series that a start belongs to."""
    begun = [candidate for candidate in series if candidate.begins_at <= started_at]
    return begun[-1] if begun else series[0]


def client_names(rows: Sequence[OriginalRow]) -> list[str]:
    """Return all clients, sorted so that 10.2.0.9 is before 10.2.0.10."""
    return sorted({row.client for row in rows}, key=_address_key)


def _address_key(client: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (0, part) for part in client.split("."))


def _one_row_per_client(rows: Sequence[OriginalRow]) -> tuple[list[OriginalRow], list[OriginalRow]]:
    """Return one row per client, with a result if possible, and the other rows."""
    chosen: dict[str, OriginalRow] = {}
    others = []
    for row in sorted(rows, key=lambda row: (not has_result(row), row.started_at, row.row_number)):
        if row.client in chosen:
            others.append(row)
        else:
            chosen[row.client] = row
    return sorted(chosen.values(), key=lambda row: _address_key(row.client)), others


def has_result(row: OriginalRow) -> bool:
    """Return True if the row shows that data was received."""
    return bool(row.received_bits_per_second)
