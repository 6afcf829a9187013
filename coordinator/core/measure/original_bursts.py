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
from typing import Final, Literal

import numpy as np

from coordinator.core import words
from coordinator.core.judge.judge import Finding, order, residual_causes
from coordinator.core.judge.reconcile import Missing, Reconciliation, reconcile
from coordinator.core.measure.aggregate import figure
from coordinator.core.measure.completeness import Completeness, State, combine
from coordinator.core.measure.evidence import FirewallLedger, Floats
from coordinator.core.measure.headers import headers
from coordinator.core.measure.series import BurstSeries, FlowSeries
from exchange.messages import Flow, Message, Protocol, UtcDatetime

LATE_AFTER_S: Final = 1.0  # s after the instant at which a row counts as late
EARLY_S: Final = 5.0  # s before an instant that a start may be stamped and still belong to it
MINUTE_SLACK_S: Final = 2.0
VOLLEYS_AHEAD: Final = 4  # started among which one must be large to count as whole
SILENCE_S: Final = 600.0  # s beyond three bursts' length without a start: another test follows
RATE_MAX_BITS_PER_SECOND: Final = 1e13  # of one client: beyond it a number is a slip
DURATION_MAX_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalRow:
    """One parsed row; ``None`` is the table's ``null``."""

    row_number: int  # in the file, as a person counts: the header is 1
    client: str
    started_at: datetime  # UTC
    duration_s: float | None  # None: the table does not say
    sent_bits_per_second: float | None
    received_bits_per_second: float | None
    server: str | None = None
    rtt_mean_s: float | None = None
    rtt_min_s: float | None = None
    rtt_max_s: float | None = None


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
        first.setdefault(key, row.row_number)
    return tuple(found)


def _problem(row: OriginalRow, column: str, value: str, reason: str) -> RowProblem:
    return RowProblem(row_number=row.row_number, column=column, value=value, reason=reason)


class LatePair(Message):
    """A pair that started after its burst did."""

    pair: str
    late_s: float


class OriginalBurst(Message):
    """One planned burst of the original, as its rows tell it. Rates are payload, late members
    included; ``completeness_ratio`` counts pair-seconds that were on time."""

    index: int
    planned_start_at: UtcDatetime
    duration_s: float | None  # None: the table does not say
    pairs_planned: int
    pairs_measured: int  # with a received rate, late ones included
    null_pairs: tuple[str, ...] = ()
    late_pairs: tuple[LatePair, ...] = ()
    missing_pairs: tuple[str, ...] = ()  # known from other bursts, without a row in this one
    fleet_sent_bits_per_second: float | None = None
    fleet_received_bits_per_second: float | None = None
    rtt_mean_s: float | None = None  # mean over rows of their mean
    completeness_ratio: float
    completeness: Completeness
    flags: tuple[str, ...] = ()
    reconciliation: Reconciliation | None = None


class OriginalSummary(Message):
    """A whole table."""

    period_s: float | None  # None: a single burst, or series that differ
    pairs_planned: int  # of the largest series
    completeness_ratio: float
    fleet_sent_bits_per_second: float | None = None  # mean over bursts
    fleet_received_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    reconciliation: Reconciliation | None = None
    bursts: tuple[OriginalBurst, ...] = ()
    findings: tuple[Finding, ...] = ()


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
class Schedule:
    """The planned instants of a table: one series of bursts, or several one after another."""

    series: tuple[Series, ...]  # in time order

    @property
    def first_at(self) -> datetime:
        return self.series[0].first_at

    @property
    def period_s(self) -> float | None:
        """None: a single burst, or series that differ."""
        periods = {series.period_s for series in self.series}
        return periods.pop() if len(periods) == 1 else None

    def of(self, started_at: datetime) -> Series:
        """The series that a start belongs to."""
        begun = [series for series in self.series if series.begins_at <= started_at]
        return begun[-1] if begun else self.series[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClientProcesses:
    """Rows that start within :data:`EARLY_S` of the first of them."""

    at: datetime  # the commonest start, the earliest of equally common ones
    rows: tuple[OriginalRow, ...]

    @property
    def duration_s(self) -> float:
        """0 where the table does not say."""
        known = [row.duration_s for row in self.rows if row.duration_s is not None]
        return float(np.median(known)) if known else 0.0


def infer_schedule(rows: Sequence[OriginalRow], period_s: float | None = None) -> Schedule:
    """Find the planned instants; ``period_s`` overrides what the table suggests.

    A long silence, or a whole processes of another duration, begins another series. Within one,
    started at least a third as large as the largest are taken as planned; the period is the
    commonest gap between neighbours among them that a burst fits into (the shortest of equally
    common ones), the phase the commonest start within it. The original fired at second 0 of a
    minute: both are moved to whole minutes where they are within two seconds of them. Raises
    ``ValueError`` for no rows.
    """
    if not rows:
        raise ValueError("rows: the table has none")
    return Schedule(
        series=tuple(_series_of(started, period_s) for started in _apart(_started(rows)))
    )


def _started(rows: Sequence[OriginalRow]) -> list[_ClientProcesses]:
    found: list[list[OriginalRow]] = []
    for row in sorted(rows, key=lambda row: (row.started_at, row.row_number)):
        if found and (row.started_at - found[-1][0].started_at).total_seconds() <= EARLY_S:
            found[-1].append(row)
        else:
            found.append([row])
    started = []
    for members in found:
        starts = Counter(row.started_at for row in members)
        at = min(starts, key=lambda start: (-starts[start], start))
        started.append(_ClientProcesses(at=at, rows=tuple(members)))
    return started


def _apart(started: Sequence[_ClientProcesses]) -> list[list[_ClientProcesses]]:
    series = [[started[0]]]
    for number, (before, processes) in enumerate(itertools.pairwise(started), 1):
        longest_s = max(before.duration_s, processes.duration_s)
        silence_s = (processes.at - before.at).total_seconds()
        silent = longest_s > 0 and silence_s > 3 * longest_s + SILENCE_S
        ruled_s = max(series[-1], key=lambda known: len(known.rows)).duration_s
        other = abs(processes.duration_s - ruled_s) > 0.2 * ruled_s
        ahead = max(len(later.rows) for later in started[number : number + VOLLEYS_AHEAD])
        if silent or (other and len(processes.rows) * 3 >= ahead):
            series.append([processes])
        else:
            series[-1].append(processes)
    return series


def _series_of(started: Sequence[_ClientProcesses], period_s: float | None) -> Series:
    most = max(len(processes.rows) for processes in started)
    major = [processes for processes in started if len(processes.rows) * 3 >= most]
    if period_s is None:
        least_s = min(processes.duration_s for processes in major)
        gaps = Counter(
            _to_minute((later.at - earlier.at).total_seconds())
            for earlier, later in itertools.pairwise(major)
        )
        fair = {gap: count for gap, count in gaps.items() if gap >= least_s}
        period_s = min(fair, key=lambda gap: (-fair[gap], gap)) if fair else None
    first_at = major[0].at
    if period_s is not None:
        phases: Counter[float] = Counter()
        for processes in started:
            phases[_to_minute(processes.at.timestamp()) % period_s] += len(processes.rows)
        phase = min(phases, key=lambda value: (-phases[value], value))
        since_s = first_at.timestamp() - phase + EARLY_S
        first_at = datetime.fromtimestamp(math.floor(since_s / period_s) * period_s + phase, UTC)
    return Series(
        begins_at=min(row.started_at for processes in started for row in processes.rows),
        first_at=first_at,
        period_s=period_s,
        clients=tuple(client_names([row for processes in started for row in processes.rows])),
    )


def _to_minute(seconds: float) -> float:
    """A time within two seconds of a whole minute is that minute."""
    minute = round(seconds / 60) * 60
    return float(minute) if minute and abs(seconds - minute) <= MINUTE_SLACK_S else seconds


def infer_bursts(
    rows: Sequence[OriginalRow],
    *,
    period_s: float | None = None,
    pairs_planned: int | None = None,
) -> tuple[OriginalBurst, ...]:
    """Join rows to planned bursts, in time order.

    A pair is a client; planned are all clients of the series that the burst belongs to, or
    ``pairs_planned`` where that is more. The order of ``rows`` does not matter. Raises
    ``ValueError`` for no rows.
    """
    return join_rows(rows, infer_schedule(rows, period_s), pairs_planned)[0]


def join_rows(
    rows: Sequence[OriginalRow], schedule: Schedule, pairs_planned: int | None
) -> tuple[tuple[OriginalBurst, ...], list[list[OriginalRow]]]:
    """Bursts as :func:`infer_bursts` gives them, and each burst's rows, one a client."""
    by_instant: dict[datetime, list[OriginalRow]] = defaultdict(list)
    series_of: dict[datetime, Series] = {}
    for row in rows:
        series = schedule.of(row.started_at)
        at = series.planned(row.started_at)
        by_instant[at].append(row)
        series_of[at] = series
    bursts, members = [], []
    for index, at in enumerate(sorted(by_instant)):
        kept, repeated = _one_each(by_instant[at])
        members.append(kept)
        clients = series_of[at].clients
        planned = max(pairs_planned or 0, len(clients))
        bursts.append(_burst(index, at, kept, repeated, clients, planned))
    return tuple(bursts), members


def client_names(rows: Sequence[OriginalRow]) -> list[str]:
    """Every client that has a row, 10.2.0.9 before 10.2.0.10."""
    return sorted({row.client for row in rows}, key=_address_key)


def _address_key(client: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (0, part) for part in client.split("."))


def _one_each(rows: Sequence[OriginalRow]) -> tuple[list[OriginalRow], list[OriginalRow]]:
    """One row a client: the first that holds a result, else the first; and the others."""
    chosen: dict[str, OriginalRow] = {}
    others = []
    for row in sorted(rows, key=lambda row: (not _holds(row), row.started_at, row.row_number)):
        if row.client in chosen:
            others.append(row)
        else:
            chosen[row.client] = row
    return sorted(chosen.values(), key=lambda row: _address_key(row.client)), others


def _holds(row: OriginalRow) -> bool:
    return bool(row.received_bits_per_second)


def _burst(
    index: int,
    planned_at: datetime,
    rows: Sequence[OriginalRow],
    repeated: Sequence[OriginalRow],
    clients: Sequence[str],
    planned: int,
) -> OriginalBurst:
    known_s = [row.duration_s for row in rows if row.duration_s is not None]
    duration_s = float(np.median(known_s)) if known_s else None
    whole_s = max(1, round(duration_s or 0))  # unknown: every pair counts alike
    held = [row for row in rows if _holds(row)]
    late = [
        LatePair(pair=row.client, late_s=late_s)
        for row in held
        if (late_s := (row.started_at - planned_at).total_seconds()) > LATE_AFTER_S
    ]
    nulls = tuple(row.client for row in rows if not _holds(row))
    present = {row.client for row in rows}
    missing = tuple(client for client in clients if client not in present)
    unnamed = planned - len(clients)
    seconds = {
        State.MEASURED: (len(held) - len(late)) * whole_s,
        State.LATE: len(late) * whole_s,
        State.NULL: len(nulls) * whole_s,
        State.MISSED: (len(missing) + unnamed) * whole_s,
    }
    completeness = Completeness.of(seconds)
    sent = [row.sent_bits_per_second for row in held if row.sent_bits_per_second is not None]
    rtts = [row.rtt_mean_s for row in held if row.rtt_mean_s is not None]
    flags = [f"late: {pair.pair} started {pair.late_s:g} s after the burst" for pair in late]
    zero = {row.client for row in rows if row.received_bits_per_second == 0}
    flags += [
        f"null: {client} received 0 bit/s" if client in zero else f"null: {client} has no rates"
        for client in nulls
    ]
    flags += [f"missing: {client} has no row" for client in missing]
    if unnamed:
        flags.append(f"missing: {unnamed} planned pairs never appear in the file")
    flags += [
        f"repeated: {row.client} has another row, {row.row_number}, in this burst; left out"
        for row in repeated
    ]
    if any(row.duration_s != rows[0].duration_s for row in rows):
        flags.append("durations differ: rates are means over each row's own duration")
    return OriginalBurst(
        index=index,
        planned_start_at=planned_at,
        duration_s=duration_s,
        pairs_planned=planned,
        pairs_measured=len(held),
        null_pairs=nulls,
        late_pairs=tuple(late),
        missing_pairs=missing,
        fleet_sent_bits_per_second=figure(sum(sent)) if len(sent) == len(held) and sent else None,
        fleet_received_bits_per_second=(
            figure(sum(row.received_bits_per_second or 0.0 for row in held)) if held else None
        ),
        rtt_mean_s=figure(sum(rtts) / len(rtts)) if rtts else None,
        completeness_ratio=completeness.completeness_ratio,
        completeness=completeness,
        flags=tuple(flags),
    )


def throughput_ledger(
    source: str,
    starts_at: Sequence[datetime],
    bits_per_second: Sequence[float | None],
    *,
    read_at: datetime,
    layer: Literal["ip", "wire", "unknown"] = "unknown",
) -> FirewallLedger:
    """A ledger from a metric's points: mean rates over bins that are as long as the commonest gap.

    Points may come in any order; ``None`` is unknown. Raises ``ValueError`` under two points.
    """
    if len(starts_at) < 2:
        raise ValueError(
            f"metric: {len(starts_at)} points; at least 2 are needed to know the grain"
        )
    order_of = np.argsort([at.timestamp() for at in starts_at], kind="stable")
    start = np.array([starts_at[i].timestamp() for i in order_of])
    gaps = Counter(np.diff(start).tolist())
    grain_s = float(min(gaps, key=lambda gap: (-gaps[gap], gap)))
    rates = np.array(
        [math.nan if bits_per_second[i] is None else bits_per_second[i] for i in order_of],
        dtype=np.float64,
    )
    return FirewallLedger(
        source=source,
        layer=layer,
        start_s=start,
        end_s=start + grain_s,
        bytes=rates / 8 * grain_s,
        grain_s=grain_s,
        read_at=read_at,
    )


def summarise_original(
    rows: Sequence[OriginalRow],
    ledger: FirewallLedger | None = None,
    *,
    period_s: float | None = None,
    pairs_planned: int | None = None,
) -> OriginalSummary:
    """Everything that one table says, and what the firewall's metric says of it.

    Call :func:`problems` first. Raises ``ValueError`` for no rows.
    """
    schedule = infer_schedule(rows, period_s)
    bursts, members = join_rows(rows, schedule, pairs_planned)
    whole: Reconciliation | None = None
    timed = all(burst.duration_s is not None for burst in bursts)
    if ledger is not None and timed:
        whole, parts = reconcile(
            [burst_series(burst, rows) for burst, rows in zip(bursts, members, strict=True)],
            ledger,
            headers(Protocol.TCP, []),
            [_missing(burst) for burst in bursts],
        )
        bursts = tuple(
            burst.model_copy(update={"reconciliation": part})
            for burst, part in zip(bursts, parts, strict=True)
        )
    completeness = combine(burst.completeness for burst in bursts)
    return OriginalSummary(
        period_s=schedule.period_s,
        pairs_planned=max(burst.pairs_planned for burst in bursts),
        completeness_ratio=completeness.completeness_ratio,
        fleet_sent_bits_per_second=_mean([b.fleet_sent_bits_per_second for b in bursts]),
        fleet_received_bits_per_second=_mean([b.fleet_received_bits_per_second for b in bursts]),
        firewall_bits_per_second=None if whole is None else whole.firewall_bits_per_second,
        reconciliation=whole,
        bursts=bursts,
        findings=_findings(bursts, whole, timed=timed),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return figure(sum(known) / len(known)) if known else None


def _missing(burst: OriginalBurst) -> Missing:
    """Null and missing pairs may have sent: only their rows are empty or gone."""
    absent = burst.pairs_planned - burst.pairs_measured
    return Missing(
        pairs_count=absent,
        share_ratio=absent / burst.pairs_measured if burst.pairs_measured else 0.0,
        planned_pairs_count=burst.pairs_planned,
    )


def burst_series(burst: OriginalBurst, rows: Sequence[OriginalRow]) -> BurstSeries:
    """Each row's bytes, spread evenly over its own seconds; a row that does not say how long it
    lasted takes its burst's duration. Raises ``ValueError`` for a burst of unknown duration."""
    if burst.duration_s is None:
        raise ValueError(f"burst {burst.index + 1}: its duration is unknown")
    planned_s, duration_s = burst.planned_start_at.timestamp(), burst.duration_s
    held = [row for row in rows if _holds(row)]
    spans = [
        (begin, begin + (row.duration_s or duration_s))
        for row in held
        for begin in (row.started_at.timestamp(),)
    ]
    start_s = math.floor(min([planned_s, *(begin for begin, _ in spans)]))
    end_s = math.ceil(max([planned_s + duration_s, *(end for _, end in spans)]))
    edges = start_s + np.arange(end_s - start_s + 1, dtype=np.float64)
    fleet = np.zeros(end_s - start_s)
    seen = np.zeros(end_s - start_s)
    for row, (begin, end) in zip(held, spans, strict=True):
        covered = np.diff(np.clip(edges, begin, end))
        fleet += covered * (row.received_bits_per_second or 0.0) / 8
        seen += covered
    unknown: Floats = np.full(len(fleet), np.nan)
    latest = max([pair.late_s for pair in burst.late_pairs], default=0.0)
    first, stop = math.ceil(planned_s + latest) - start_s, math.floor(planned_s + duration_s)
    window = (first, stop - start_s)
    return BurstSeries(
        burst_index=burst.index,
        start_s=start_s,
        planned_start_s=planned_s,
        duration_s=round(duration_s),
        omit_s=0,
        window=window if window[1] > window[0] else None,
        coverage_ratio=seen / max(1, burst.pairs_planned),
        client_cpu_ratio=unknown,
        server_cpu_ratio=unknown,
        flows=(
            FlowSeries(
                flow=Flow.UP,
                received_bytes=fleet,
                sent_bytes=unknown,
                proven_bytes=np.zeros(len(fleet)),
                pair_p5_bits_per_second=unknown,
                pair_p50_bits_per_second=unknown,
                pair_p95_bits_per_second=unknown,
                retransmits_count=unknown,
                rtt_mean_s=unknown,
                pairs_bits_per_second=np.full((0, len(fleet)), np.nan, np.float32),
            ),
        ),
    )


def _findings(
    bursts: Sequence[OriginalBurst], whole: Reconciliation | None, *, timed: bool
) -> tuple[Finding, ...]:
    """Every flag of every burst, and what the metric adds."""
    weights = {"missing": 66.0, "null": 64.0, "late": 61.0, "repeated": 55.0}
    found = []
    for burst in bursts:
        for number, flag in enumerate(burst.flags):
            name = flag.split(":", 1)[0] if ":" in flag else "durations"
            found.append(
                Finding(
                    id=name.split()[0],
                    kind="cause",
                    severity="warning",
                    weight=weights.get(name, 40.0) - 0.001 * burst.index - 0.00001 * number,
                    sentence=f"burst {burst.index + 1} "
                    f"({burst.planned_start_at:%Y-%m-%d %H:%M:%S} UTC): {flag}",
                )
            )
    short = [burst for burst in bursts if burst.pairs_measured < burst.pairs_planned]
    if short:
        found.append(
            Finding(
                id="incomplete-bursts",
                kind="context",
                severity="warning",
                weight=70,
                sentence=f"{len(short)} of {len(bursts)} bursts have fewer results than planned "
                f"pairs: " + ", ".join(_shortfall(burst) for burst in short[:8]),
                next_step="read a burst's sum together with the number of pairs in it",
            )
        )
    if not timed:
        found.append(
            Finding(
                id="duration-unknown",
                kind="context",
                severity="warning",
                weight=60,
                sentence="the table does not say how long its bursts lasted, so bytes, and what "
                "a firewall's metric says of them, are unknown",
                next_step="give the duration",
            )
        )
    found += residual_causes(whole)
    if whole is not None and whole.lag_s is not None:
        found.append(
            Finding(
                id="metric-lag",
                kind="context",
                severity="note",
                weight=35,
                sentence=f"the metric's labels run {whole.lag_s:.0f} s "
                f"(+-{whole.lag_uncertainty_s or 0.0:.0f} s) behind the traffic",
            )
        )
    return order(found)


def _shortfall(burst: OriginalBurst) -> str:
    rate = burst.fleet_received_bits_per_second
    said = "nothing received" if rate is None else words.rate(rate)
    return f"{burst.pairs_measured}/{burst.pairs_planned} ({said})"
