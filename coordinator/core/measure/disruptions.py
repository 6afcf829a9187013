"""Detection of disruptions in a burst, and computation of its availability.

For each pair, we use the engine's own seconds, and the corrected clock to date them. A second is
*low* when the rate is below the pair's running median by ``disruption_drop_ratio`` or more. To
compute the running median, the last :data:`MEDIAN_S` undisturbed seconds are used. In a burst's
first minute, this minute is used. If a new level lasts as long, it will be used as the new median.
So a lasting fall will be reported as a *collapse*, and not as a disruption without end. Until a
pair first reaches its floor, its seconds are a ramp.

When a reading is longer than a second, it is a mean. So it can only be low as a whole. In this
case, an event starts and ends with a reading, and the reading length is stored with it. You cannot
detect an outage that is short compared to the readings. So the availability also includes the
reading length.

If events with the same kind start within :data:`CLUSTER_S`, they will be reported as a single
disruption.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Bools, Floats
from broadside.coordinator.core.measure.completeness import PairGrade
from broadside.coordinator.core.measure.formulas.phases import Sustain, sustain_of
from broadside.coordinator.core.measure.grid.align import Aligned
from broadside.coordinator.core.measure.records.clock_readings import clock_troubles
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.measure.resolution import SECOND_MAX_S
from broadside.coordinator.core.run_spec import Burst, RunSpec
from broadside.coordinator.core.summary import (
    Availability,
    Disruption,
    DisruptionKind,
    SecondState,
    instant,
    severity_rank,
)
from broadside.exchange.engines import pauses
from broadside.exchange.messages import Outcome, pair_name

# Seconds of undisturbed traffic to use for the running median.
MEDIAN_S: Final = 60
# Seconds between updates, to be used when the median is based on a whole minute.
MEDIAN_EVERY_S: Final = 5
# Seconds that need to be recorded before any second can be low.
HISTORY_LEAST_S: Final = 3
# A second counts as empty if it has a smaller share of the median. The engine's seconds can be
# shifted by up to 50 ms. So if there is no traffic, a second can still get this share from its
# neighbours.
EMPTY_RATIO: Final = 0.05
# Share of a second that needs to be covered to compute its rate.
SEEN_RATIO: Final = 0.5
# Seconds. An event belongs to a disruption if it starts within this time after the first event.
CLUSTER_S: Final = 3.0
# How many disruptions to store for a burst, starting with the most severe. The count includes all.
KEPT_COUNT: Final = 100
# How many pairs to name in a disruption.
NAMES_COUNT: Final = 10
# How many causes to name in a disruption.
CAUSES_COUNT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """A pair's part in a disruption.

    Attributes:
        kind: Disruption kind.
        row: The pair's row.
        start_s: Start in epoch seconds.
        end_s: End in epoch seconds.
        short_bytes: Bytes missing from the median level. ``None`` if unknown.
        cause: Cause from the records, if any.
        resolution_s: The pair's reading length in seconds, or ``None`` for single seconds.
    """

    kind: DisruptionKind
    row: int
    start_s: float
    end_s: float
    short_bytes: float | None
    cause: str | None
    resolution_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Seconds compared to each pair's median, as (pairs, seconds) matrices for a flow.

    Attributes:
        rates: Bytes per second. NaN if unknown.
        median: Running median in bytes per second. NaN until it can be computed.
        low: Seconds with a low rate.
        empty: Low seconds with almost no traffic.
    """

    rates: Floats
    median: Floats
    low: Bools
    empty: Bools


def find_disruptions(
    spec: RunSpec, burst: Burst, aligned: Aligned, grades: Sequence[PairGrade], *, over: bool
) -> dict[str, Any]:
    """Find the disruptions in a burst, and compute its availability.

    Args:
        spec: Run specification.
        burst: The burst to check.
        aligned: The same burst, aligned to the grid.
        grades: Grades in the same order as ``aligned.pairs``.
        over: Set to true when the burst is over. Until then, seconds still to come will not be
            reported as gaps.

    Returns:
        Summary fields. They are empty if there are no seconds, or if the traffic pauses.
    """
    if pauses(spec.traffic) or all(flow.means_only for flow in aligned.flows):
        return {}
    sustain = sustain_of(spec.traffic, spec.burst_s, burst.duration_s)
    measured = [
        _without_ramps(
            judge_levels(flow.engine_bytes, flow.engine_coverage, spec.disruption_drop_ratio),
            sustain,
        )
        for flow in aligned.flows
    ]
    known = np.all([~np.isnan(levels.rates) for levels in measured], axis=0)
    low = np.any([levels.low for levels in measured], axis=0)
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
        record = _PairRecord(
            row=row,
            ending=ending,
            zero_s=zero_s + burst.omit_s,
            last=last,
            hints="; ".join(_hints(pair, spec, server_only=row in aligned.server_only)) or None,
            reading_s=reading_s[row],
        )
        for levels in measured:
            events += _of_pair(record, levels, over=over)
    events += _reconnects(aligned)
    names = [pair_name(pair.pair_index) for pair in aligned.pairs]
    results = [_cluster(burst, names, group) for group in _groups(events)]
    gravest = sorted(results, key=severity_rank)[:KEPT_COUNT]
    readings = [length for length in reading_s if length is not None]
    return {
        "availability": Availability.of(
            known.size, int((known & ~low).sum()), down_s, max(readings, default=None)
        ),
        "disruptions": tuple(
            sorted(gravest, key=lambda item: (item.start_at, item.kind, item.pairs))
        ),
        "disruptions_count": len(results),
    }


def _without_ramps(levels: Levels, sustain: Sustain | None) -> Levels:
    """Return levels that are not low outside the sustain phase."""
    if sustain is None:
        return levels
    inside = np.zeros(levels.low.shape, np.bool_)
    inside[:, sustain.from_s : sustain.to_s] = True
    return replace(levels, low=levels.low & inside, empty=levels.empty & inside)


def _coarse_readings(aligned: Aligned) -> list[float | None]:
    """Return the longest reading per pair in seconds, or ``None`` for single seconds."""
    lengths = np.array([flow.received_reading_s for flow in aligned.flows])
    longest = np.nanmax(np.where(np.isnan(lengths), 0.0, lengths), axis=0)
    return [round(float(item), 3) if item > SECOND_MAX_S else None for item in longest]


def judge_levels(
    received_bytes: NDArray[np.floating], coverage: NDArray[np.floating], drop_ratio: float
) -> Levels:
    """Compare a pair's seconds to its own running median, for all pairs.

    Args:
        received_bytes: Received bytes, with shape (pairs, seconds).
        coverage: Ratio to which a second is covered, with the same shape.
        drop_ratio: How far a second needs to be below the median to be low, as a ratio.

    Returns:
        Rates, medians and masks, each with shape (pairs, seconds). Seconds without data are never
        low.
    """
    seen = coverage >= SEEN_RATIO
    rates: Floats = np.full(seen.shape, np.nan)
    np.divide(received_bytes, coverage, out=rates, where=seen)
    floor_ratio = 1 - drop_ratio
    # For most bursts, there is nothing more to do.
    if seen.all():
        usual = _moving_median(rates)
        # We do this for each pair separately, because memory use is highest here. A matrix with all
        # limits would add to it.
        if not any(
            (current <= floor_ratio * its).any() for current, its in zip(rates, usual, strict=True)
        ):
            return Levels(rates=rates, median=usual, low=rates <= 0, empty=rates <= 0)
    median: Floats = np.full(seen.shape, np.nan)
    low = np.zeros(seen.shape, np.bool_)
    head = rates[:, :MEDIAN_S]
    now = _median(np.where(np.isnan(head), np.inf, head))
    ramping = np.ones(len(rates), np.bool_)
    history = np.full((len(rates), MEDIAN_S), np.inf)
    filled = np.zeros(len(rates), np.intp)
    # Seconds for which a pair has been low.
    lasting = np.zeros(len(rates), np.intp)
    stops = range(MEDIAN_S, rates.shape[1], MEDIAN_EVERY_S)
    for first, stop in pairwise((0, *stops, rates.shape[1])):
        if first:
            now = np.where(filled >= HISTORY_LEAST_S, _median(history), now)
        part = slice(first, stop)
        median[:, part] = now[:, None]
        fallen = seen[:, part] & (rates[:, part] <= floor_ratio * now[:, None])
        # For most blocks, there is nothing more to do.
        if seen[:, part].all() and not fallen.any():
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
            # From now on, the new level is used as the normal level.
            settled = lasting > MEDIAN_S
            low[:, second] = fell & ~ramping & ~settled
            taken = np.flatnonzero(known & (~fell | settled))
            history[taken, filled[taken] % MEDIAN_S] = rate[taken]
            filled[taken] += 1
    with np.errstate(invalid="ignore"):
        empty = seen & ((rates <= 0) | (low & (rates <= EMPTY_RATIO * median)))
    empty[:, 0] &= rates[:, 0] <= 0
    return Levels(rates=rates, median=median, low=np.asarray(low | empty), empty=empty)


def _moving_median(rates: Floats) -> Floats:
    """Return the previous minute's median for every second, updated every few seconds.

    The first minute uses its own median. There must not be any unknown values.
    """
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
    """Return the lower median for each row, ignoring values that are not finite.

    The result is NaN if there are too few values.
    """
    ordered = np.sort(values, axis=1)
    counts = np.isfinite(ordered).sum(axis=1)
    middle = ordered[np.arange(len(ordered)), np.maximum(counts - 1, 0) // 2]
    return np.where(counts >= HISTORY_LEAST_S, middle, np.nan)


# One pair ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """Reason why a pair's record ends before the planned end.

    Attributes:
        kind: Disruption kind to report.
        cause: Cause from the records, if any.
        broken: True if the network or engine failed, so that missing seconds are counted as down.
    """

    kind: DisruptionKind
    cause: str | None
    broken: bool


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
        if pair.claim is not None and grade.state is not SecondState.PENDING:
            silent = f"{pair.claim.agent_id} stopped reporting: it was killed or lost its network"
            return _Ending(kind=DisruptionKind.CUT, cause=silent, broken=False)
        missed = grade.state is SecondState.MISSED
        kind = DisruptionKind.ABSENT if missed else DisruptionKind.GAP
        return _Ending(kind=kind, cause=reason, broken=False)
    reported = report.reason or (report.engine.error if report.engine else None)
    template = f"{report.agent_id}: {reported or report.outcome}"
    kind = _ENDINGS[report.outcome]
    cause = reason if kind is DisruptionKind.GAP else template
    return _Ending(kind=kind, cause=cause, broken=report.outcome is Outcome.FAILED)


def _absence(row: int, burst: Burst, ending: _Ending) -> _Event:
    """Return an event to report a pair that has no seconds."""
    kind = DisruptionKind.ABSENT if ending.kind is DisruptionKind.CUT else ending.kind
    return _Event(
        kind=kind,
        row=row,
        start_s=burst.planned_start_at.timestamp(),
        end_s=burst.planned_end_at.timestamp(),
        short_bytes=None,
        cause=ending.cause,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairRecord:
    """Record of a pair in a burst, for all flows.

    Attributes:
        row: Row of the pair in the grid.
        ending: End of the record.
        zero_s: Start of the first cell in epoch seconds.
        last: End of the known seconds.
        hints: Possible causes, if there are any.
        reading_s: Length of a reading in seconds, or None for single seconds.
    """

    row: int
    ending: _Ending
    zero_s: float
    last: int
    hints: str | None
    reading_s: float | None


def _of_pair(record: _PairRecord, levels: Levels, *, over: bool) -> Iterator[_Event]:
    """Yield a pair's events in a flow."""
    row, ending, last, hints = record.row, record.ending, record.last, record.hints
    zero_s, reading_s = record.zero_s, record.reading_s
    rates, median = levels.rates[row], levels.median[row]
    count = len(rates)
    unknown = np.isnan(rates)
    tail = last if last < count and (over or ending.kind is not DisruptionKind.GAP) else None

    def event(
        kind: DisruptionKind, begin: int, stop: int, short_bytes: float | None, cause: str | None
    ) -> _Event:
        from_s, to_s = _reading_bounds(begin, stop, reading_s, count)
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
            # The traffic did not return. So this belongs to the same event as the end of the
            # record.
            tail = begin
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


def _reading_bounds(
    begin: int, stop: int, reading_s: float | None, count: int
) -> tuple[float, float]:
    """Extend a span of seconds to the bounds of its readings.

    If readings share a second, it will be known from both. So a span can end before its reading
    ends.

    Args:
        begin: First second.
        stop: End of the span (exclusive).
        reading_s: Reading length in seconds, or ``None`` to return the span as it is.
        count: Number of seconds in the burst.
    """
    if reading_s is None:
        return begin, stop
    first = math.floor((begin + 0.5) / reading_s) * reading_s
    return first, min(max(math.ceil((stop - 0.5) / reading_s) * reading_s, first), float(count))


def _hints(pair: PairEvidence, spec: RunSpec, *, server_only: bool) -> Iterator[str]:
    """Yield more information about a disturbed pair from its records."""
    yield from clock_troubles(pair, spec.clock_bound_max_s)
    if server_only:
        yield "the server's record only"


def _spans(flags: Bools) -> Iterator[tuple[int, int]]:
    """Yield runs of true cells as [from, before)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    for begin, stop in edges.reshape(-1, 2):
        yield int(begin), int(stop)


def _reconnects(aligned: Aligned) -> Iterator[_Event]:
    """Yield an event for any pair that had to reconnect before the planned start."""
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
    """Group events by kind and by start."""
    group: list[_Event] = []
    for event in sorted(events, key=lambda item: (item.kind, item.start_s, item.row)):
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
