"""What broke during a burst, second by second, and how much of the load was carried.

Each pair is looked at in its own engine time, whose seconds are the engine's own, and dated by its
corrected clock. A second is *low* when the pair received less than its own running median by the
specification's ``disruption_drop_ratio`` or more. The running median is that of the last
:data:`MEDIAN_S` undisturbed seconds (in a burst's first minute: of that minute), and a new level
that lasts so long becomes the median: a lasting fall is the burst's *collapse*, not a disruption
without end. Seconds before a pair first reaches its floor are its ramp.

A reading that is longer than a second is a mean: it is low or not as a whole. So an event of such a
pair begins and ends where readings do, and carries their length. An outage that is short beside
them is not seen, and the availability says how long they are.

Events of one kind that begin within :data:`CLUSTER_S` of each other over the fleet are one
disruption.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from broadside.coordinator.core.measure.align import Aligned
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.completeness import PairGrade
from broadside.coordinator.core.measure.evidence import PairEvidence
from broadside.coordinator.core.measure.resolution import SECOND_MAX_S
from broadside.coordinator.core.measure.unsteady_clocks import clock_troubles
from broadside.coordinator.core.plan.spec import Burst, RunSpec
from broadside.coordinator.core.summary import (
    Availability,
    Disruption,
    DisruptionKind,
    State,
    gravity,
    instant,
)
from broadside.exchange.messages import Outcome, pair_name

MEDIAN_S: Final = 60  # s of undisturbed traffic behind a pair's running median
MEDIAN_EVERY_S: Final = 5  # s between two looks at it, once it stands on a whole minute
HISTORY_LEAST_S: Final = 3  # s that a pair must have been seen before anything is low
# A second that carries less of the median counts as empty: an engine's seconds wander by up to
# 50 ms, so one without a byte shares that much with its neighbours' traffic.
EMPTY_RATIO: Final = 0.05
SEEN_RATIO: Final = 0.5  # of a second: covered at least so far, its rate is known
CLUSTER_S: Final = 3.0  # s after a disruption's first event within which others belong to it
KEPT_COUNT: Final = (
    100  # disruptions a burst keeps, the gravest; the count says how many there were
)
NAMES_COUNT: Final = 10  # pairs a disruption names
CAUSES_COUNT: Final = 3  # causes a disruption names

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disrupted:
    """What :func:`find_disruptions` says of a burst."""

    availability: Availability
    disruptions: tuple[Disruption, ...]  # in time order, the gravest of them
    disruptions_count: int  # how many there were


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """One pair's part in a disruption."""

    kind: DisruptionKind
    row: int
    start_s: float  # epoch s
    end_s: float
    short_bytes: float | None
    cause: str | None
    resolution_s: float | None = None  # of its readings; None: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Seconds of one flow judged by the pairs' own medians; matrices are (pairs, seconds)."""

    rates: Floats  # bytes a second; NaN: unknown
    median: Floats  # bytes a second; NaN: not known yet
    low: Bools
    empty: Bools  # low, and next to nothing arrived


def find_disruptions(
    spec: RunSpec, burst: Burst, aligned: Aligned, grades: Sequence[PairGrade], *, over: bool
) -> Disrupted:
    """Find what broke; ``grades`` are in the order of ``aligned.pairs``.

    While the burst is not ``over`` seconds still to come are no gaps.
    """
    judged = [
        judge_levels(flow.own_bytes, flow.own_coverage, spec.disruption_drop_ratio)
        for flow in aligned.flows
    ]
    known = np.all([~np.isnan(levels.rates) for levels in judged], axis=0)
    low = np.any([levels.low for levels in judged], axis=0)
    down_s = int((known & low).sum())
    events: list[_Event] = []
    reading_s = _coarse_readings(aligned)
    for row, (pair, grade) in enumerate(zip(aligned.pairs, grades, strict=True)):
        ending = _ending(pair, grade)
        zero_s = float(aligned.first_data_at_s[row])
        if not known[row].any():
            if over or ending.kind is not DisruptionKind.GAP:
                events.append(_absence(row, burst, ending))
                down_s += burst.duration_s if ending.broken else 0
            continue
        last = int(np.flatnonzero(known[row])[-1]) + 1
        down_s += burst.duration_s - last if ending.broken else 0
        for levels in judged:
            events += _of_pair(
                row,
                pair,
                levels,
                ending,
                zero_s + burst.omit_s,
                last,
                over=over,
                server_only=row in aligned.server_only,
                spec=spec,
                reading_s=reading_s[row],
            )
    events += _reconnects(aligned)
    names = [pair_name(pair.pair_index) for pair in aligned.pairs]
    found = [_cluster(burst, names, group) for group in _groups(events)]
    gravest = sorted(found, key=gravity)[:KEPT_COUNT]
    return Disrupted(
        availability=Availability.of(
            known.size,
            int((known & ~low).sum()),
            down_s,
            max((each for each in reading_s if each is not None), default=None),
        ),
        disruptions=tuple(sorted(gravest, key=lambda each: (each.start_at, each.kind, each.pairs))),
        disruptions_count=len(found),
    )


def _coarse_readings(aligned: Aligned) -> list[float | None]:
    """Return the length of each pair's longest readings, in s; None where they are seconds."""
    lengths = np.array([flow.received_reading_s for flow in aligned.flows])
    longest = np.nanmax(np.where(np.isnan(lengths), 0.0, lengths), axis=0)
    return [round(float(each), 3) if each > SECOND_MAX_S else None for each in longest]


def judge_levels(
    received_bytes: NDArray[np.floating], coverage: NDArray[np.floating], drop_ratio: float
) -> Levels:
    """Hold each pair's seconds against its own running median; shapes (pairs, seconds)."""
    seen = coverage >= SEEN_RATIO
    rates: Floats = np.full(seen.shape, np.nan)
    np.divide(received_bytes, coverage, out=rates, where=seen)
    floor_ratio = 1 - drop_ratio
    if seen.all():  # most bursts: nothing to decide
        usual = _moving_median(rates)
        # Pair by pair: here measuring holds the most, and a matrix of bounds would be one more.
        if not any((own <= floor_ratio * its).any() for own, its in zip(rates, usual, strict=True)):
            return Levels(rates=rates, median=usual, low=rates <= 0, empty=rates <= 0)
    median: Floats = np.full(seen.shape, np.nan)
    low = np.zeros(seen.shape, np.bool_)
    head = rates[:, :MEDIAN_S]
    now = _median(np.where(np.isnan(head), np.inf, head))
    ramping = np.ones(len(rates), np.bool_)
    history = np.full((len(rates), MEDIAN_S), np.inf)
    filled = np.zeros(len(rates), np.intp)
    lasting = np.zeros(len(rates), np.intp)  # s for which the pair has been low
    stops = range(MEDIAN_S, rates.shape[1], MEDIAN_EVERY_S)
    for first, stop in pairwise((0, *stops, rates.shape[1])):
        if first:
            now = np.where(filled >= HISTORY_LEAST_S, _median(history), now)
        part = slice(first, stop)
        median[:, part] = now[:, None]
        fallen = seen[:, part] & (rates[:, part] <= floor_ratio * now[:, None])
        if seen[:, part].all() and not fallen.any():  # most blocks: nothing to decide
            ramping[:], lasting[:] = False, 0
            places = (filled[:, None] + np.arange(stop - first)) % MEDIAN_S
            np.put_along_axis(history, places, rates[:, part], axis=1)
            filled += stop - first
            continue
        if not seen[:, part].any():
            continue
        for second in range(first, stop):
            rate, known = rates[:, second], seen[:, second]
            fell = fallen[:, second - first]
            ramping &= ~(known & ~fell)
            lasting = np.where(fell, lasting + 1, np.where(known, 0, lasting))
            settled = lasting > MEDIAN_S  # the new level is the pair's own by now
            low[:, second] = fell & ~ramping & ~settled
            taken = np.flatnonzero(known & (~fell | settled))
            history[taken, filled[taken] % MEDIAN_S] = rate[taken]
            filled[taken] += 1
    with np.errstate(invalid="ignore"):
        empty = seen & ((rates <= 0) | (low & (rates <= EMPTY_RATIO * median)))
    empty[:, 0] &= rates[:, 0] <= 0
    return Levels(rates=rates, median=median, low=np.asarray(low | empty), empty=empty)


def _moving_median(rates: Floats) -> Floats:
    """Every second's median of the minute before, taken every few seconds; of the first minute its
    own. Nothing in it is unknown."""
    usual = np.empty_like(rates)
    usual[:, :MEDIAN_S] = _median(rates[:, :MEDIAN_S])[:, None]
    if rates.shape[1] > MEDIAN_S:
        windows = sliding_window_view(rates, MEDIAN_S, axis=1)[:, :-1:MEDIAN_EVERY_S]
        middle = (MEDIAN_S - 1) // 2
        later = usual[:, MEDIAN_S:]
        for pair, its in zip(windows, later, strict=True):
            medians = np.partition(pair, middle, axis=1)[:, middle]
            its[:] = np.repeat(medians, MEDIAN_EVERY_S)[: len(its)]
    return usual


def _median(values: Floats) -> Floats:
    """Median of each row's finite values, by the lower of two middles; NaN under the least."""
    ordered = np.sort(values, axis=1)
    counts = np.isfinite(ordered).sum(axis=1)
    middle = ordered[np.arange(len(ordered)), np.maximum(counts - 1, 0) // 2]
    return np.where(counts >= HISTORY_LEAST_S, middle, np.nan)


# One pair ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """Why a pair's record stops before its planned end, if it does."""

    kind: DisruptionKind
    cause: str | None
    broken: bool  # the network or the engine failed: the missing seconds count as down


_ENDINGS: Final = {
    Outcome.FAILED: DisruptionKind.RESET,
    Outcome.ABANDONED: DisruptionKind.CUT,
    Outcome.MISSED: DisruptionKind.ABSENT,
    Outcome.REFUSED: DisruptionKind.ABSENT,
    Outcome.MEASURED: DisruptionKind.GAP,
    Outcome.LATE: DisruptionKind.GAP,
}


def _ending(pair: PairEvidence, grade: PairGrade) -> _Ending:
    reason = grade.reason
    report = pair.report
    if report is None:
        if pair.claim is not None and grade.state is not State.PENDING:
            silent = f"{pair.claim.agent_id} fell silent: killed, or cut off"
            return _Ending(kind=DisruptionKind.CUT, cause=silent, broken=False)
        missed = grade.state is State.MISSED
        kind = DisruptionKind.ABSENT if missed else DisruptionKind.GAP
        return _Ending(kind=kind, cause=reason, broken=False)
    said = report.reason or (report.engine.error if report.engine else None)
    words = f"{report.agent_id}: {said or report.outcome}"
    kind = _ENDINGS[report.outcome]
    cause = reason if kind is DisruptionKind.GAP else words
    return _Ending(kind=kind, cause=cause, broken=report.outcome is Outcome.FAILED)


def _absence(row: int, burst: Burst, ending: _Ending) -> _Event:
    """A pair of which no second is known."""
    kind = DisruptionKind.ABSENT if ending.kind is DisruptionKind.CUT else ending.kind
    return _Event(
        kind=kind,
        row=row,
        start_s=burst.planned_start_at.timestamp(),
        end_s=burst.planned_end_at.timestamp(),
        short_bytes=None,
        cause=ending.cause,
    )


def _of_pair(
    row: int,
    pair: PairEvidence,
    levels: Levels,
    ending: _Ending,
    zero_s: float,
    last: int,
    *,
    over: bool,
    server_only: bool,
    spec: RunSpec,
    reading_s: float | None,
) -> Iterator[_Event]:
    """One pair's events in one flow; ``last`` is the second after its last known one."""
    rates, median = levels.rates[row], levels.median[row]
    count = len(rates)
    unknown = np.isnan(rates)
    hints = "; ".join(_hints(pair, spec, server_only=server_only)) or None
    tail = last if last < count and (over or ending.kind is not DisruptionKind.GAP) else None

    def event(
        kind: DisruptionKind, begin: int, stop: int, short_bytes: float | None, cause: str | None
    ) -> _Event:
        from_s, to_s = _whole_readings(begin, stop, reading_s, count)
        return _Event(
            kind=kind,
            row=row,
            start_s=zero_s + from_s,
            end_s=zero_s + to_s,
            short_bytes=short_bytes,
            cause=cause,
            resolution_s=reading_s,
        )

    for begin, stop in _spans(levels.low[row]):
        short = float(np.nansum(np.maximum(median[begin:stop] - rates[begin:stop], 0.0)))
        if stop == tail and ending.kind is not DisruptionKind.GAP:
            tail = begin  # it did not come back: one event with its ending
            continue
        empty = bool(levels.empty[row, begin:stop].any())
        kind = DisruptionKind.STALL if empty else DisruptionKind.DROP
        yield event(kind, begin, stop, short, hints)
    for begin, stop in _spans(unknown[:last]):
        yield event(DisruptionKind.GAP, begin, stop, None, hints)
    if tail is not None:
        level = median[last - 1]
        missing = np.where(unknown[tail:], 0.0, rates[tail:])
        known_short = ending.kind is not DisruptionKind.GAP and not np.isnan(level)
        total = float(np.maximum(level - missing, 0.0).sum()) if known_short else None
        cause = "; ".join(filter(None, [ending.cause, hints])) or None
        yield event(ending.kind, tail, count, total, cause)


def _whole_readings(
    begin: int, stop: int, reading_s: float | None, count: int
) -> tuple[float, float]:
    """Return a span of own seconds widened to the readings that it lies in.

    A second that readings share is known from both, so a span may end short of its reading.
    """
    if reading_s is None:
        return begin, stop
    first = math.floor((begin + 0.5) / reading_s) * reading_s
    return first, min(max(math.ceil((stop - 0.5) / reading_s) * reading_s, first), float(count))


def _hints(pair: PairEvidence, spec: RunSpec, *, server_only: bool) -> Iterator[str]:
    """What else the records say of a pair that was disturbed."""
    yield from clock_troubles(pair, spec.clock_bound_max_s)
    if server_only:
        yield "the server's record only"


def _spans(flags: Bools) -> Iterator[tuple[int, int]]:
    """Runs of true cells as [from, before)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    for begin, stop in edges.reshape(-1, 2):
        yield int(begin), int(stop)


def _reconnects(aligned: Aligned) -> Iterator[_Event]:
    """Pairs that had to open their connections again before the instant."""
    for row, pair in enumerate(aligned.pairs):
        report = pair.report
        if report is None or not report.retries_count:
            continue
        at_s = (report.process_start_at or report.planned_start_at).timestamp()
        yield _Event(
            kind=DisruptionKind.RECONNECT,
            row=row,
            start_s=at_s,
            end_s=at_s,
            short_bytes=0.0,
            cause=f"{report.agent_id}: {report.reason or 'armed again'}",
        )


# The fleet --------------------------------------------------------------------------------------


def _groups(events: Iterable[_Event]) -> Iterator[list[_Event]]:
    """Events of one kind that began together."""
    group: list[_Event] = []
    for event in sorted(events, key=lambda each: (each.kind, each.start_s, each.row)):
        first = group[0] if group else None
        if first and (event.kind, event.start_s > first.start_s + CLUSTER_S) != (first.kind, False):
            yield group
            group = []
        group.append(event)
    if group:
        yield group


def _cluster(burst: Burst, names: Sequence[str], events: Sequence[_Event]) -> Disruption:
    rows = sorted({event.row for event in events})
    start_s = min(event.start_s for event in events)
    end_s = max(event.end_s for event in events)
    shorts = [event.short_bytes for event in events]
    causes = list(dict.fromkeys(event.cause for event in events if event.cause))
    more = len(causes) - CAUSES_COUNT
    return Disruption(
        kind=events[0].kind,
        burst_index=burst.index,
        start_at=instant(start_s),
        end_at=instant(end_s),
        duration_s=round(end_s - start_s, 3),
        scope="all" if len(rows) == len(names) > 1 else "one" if len(rows) == 1 else "some",
        pairs_count=len(rows),
        pairs=tuple(names[row] for row in rows[:NAMES_COUNT]),
        short_bytes=None
        if None in shorts
        else float(f"{sum(short or 0.0 for short in shorts):.6g}"),
        causes=(*causes[:CAUSES_COUNT], *([f"and {more} more"] if more > 0 else [])),
        resolution_s=max(
            (event.resolution_s for event in events if event.resolution_s is not None), default=None
        ),
    )
