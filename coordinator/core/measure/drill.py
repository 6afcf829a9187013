"""What an event inside a burst did: the device's outage by probes, and what TCP made of it. Pure.

An outage is a time in which a path delivered nothing: between the arrival of the last answer before
it and of the first one after it. Probes that were held and come late are told from lost ones by
their arrival, so a device that queues is out for as long as one that drops. The truth lies within
one spacing of the probes; what TCP takes beyond that to find its rate again is TCP's own.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import ProbeColumn
from broadside.coordinator.core.measure.scale_out import RateCourse, rate_course, six_digits
from broadside.coordinator.core.measure.series import BurstSeries
from broadside.coordinator.core.summary import Disruption, DisruptionKind, figure, instant
from broadside.exchange.messages import Flow, Message, UtcDatetime, pair_name

OUTAGE_STEPS: Final = 3  # spacings without an answer that are an outage: one lost probe is none
USUAL_COUNT: Final = 200  # gaps before the event that a pair's own unrest is known by
UNREST_FACTOR: Final = 2.0  # times the longest of them
BASE_S: Final = 30  # s before the event that are the level, at most
HEAD_S: Final = 3  # s in which TCP begins
BACK_RATIO: Final = 0.95  # of the level: recovered
BACK_FOR_S: Final = 3  # s it must hold
FALL_DEVIATIONS: Final = 4.0  # robust ones, under the level: less is its own unrest
TOUCHED_RATIO: Final = 0.8  # of the level: a flow or a pair below it was hit
PAIRS_MAX_COUNT: Final = 200  # kept, the longest outages first
AROUND_S: Final = 60  # s of the course around the event


class EventRan(Message):
    """The event as it was carried out, dated by the coordinator's clock."""

    planned_at: UtcDatetime
    argv: tuple[str, ...] = ()
    started_at: UtcDatetime | None = None  # None: it did not run
    ended_at: UtcDatetime | None = None
    exit_code: int | None = None
    said: str = ""  # the end of what it printed, one line, without what looks like a secret
    problem: str | None = None  # why it did not run, or not to its end


class PairOutage(Message):
    """One pair's outage, by its probes."""

    pair: str
    from_at: UtcDatetime
    outage_s: float
    resolution_s: float  # the truth is within so much of it
    lost_count: int
    over: bool = True  # False: no answer came until the last probe


class FlowDip(Message):
    """What the fleet's payload of one flow lost; rates and bytes are at real scale."""

    flow: Flow
    level_bits_per_second: float  # before the event
    lowest_bits_per_second: float
    short_bytes: float  # under the level, until it was back
    back_after_s: float | None  # from the event to 95 % of the level; None: not within the burst
    retransmits_count: int | None = None  # over the usual, until it was back; None: TCP told none
    old_ratio: float | None  # of the level, at the burst's end: sessions from before the event
    new_ratio: float | None = None  # in the next burst: sessions that opened after it


class Drilled(Message):
    """What an event did."""

    event: EventRan
    resolution_s: float | None  # spacing of the probes
    probed_count: int  # pairs with probes around the event
    outages: tuple[PairOutage, ...] = ()  # the longest first
    outages_count: int = 0
    outage_from_at: UtcDatetime | None = None  # median over the pairs that saw it, as is
    outage_s: float | None = None  # 0: probes saw none; None: nobody probed
    touched_pairs: tuple[str, ...] = ()  # whose payload fell
    touched_count: int = 0
    flows: tuple[FlowDip, ...] = ()
    sessions_count: int = 0  # that were open before the event
    cut_count: int = 0  # of them: reset, or without a byte from then on to the burst's end
    cut_from_at: UtcDatetime | None = None  # the first second without the payload of one ...
    cut_to_at: UtcDatetime | None = None  # ... and of the last
    cut_pairs: tuple[str, ...] = ()
    opened_again_count: int | None = None  # of the cut ones' pairs, in the next burst
    tcp_s: float | None = None  # from the end of the outage until the payload was back
    course: RateCourse | None = None

    @property
    def back_after_s(self) -> float | None:
        """Until every flow was back; None while one is not, or none is known."""
        return _back_after_s(self.flows)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrilledBurst:
    """What there is of the burst with the event and of the one after it."""

    series: BurstSeries
    probes: Mapping[int, ProbeColumn]  # by pair index
    disruptions: Sequence[Disruption]
    pairs_count: int
    streams_count: int  # of a pair
    scale: float
    following: BurstSeries | None = None


def find_drilled(event: EventRan, burst: DrilledBurst) -> Drilled:
    """Hold the burst against its own level before the event."""
    at_s = (event.started_at or event.planned_at).timestamp()
    found = [
        outage
        for index, column in sorted(burst.probes.items())
        if (outage := find_outage(pair_name(index), column, at_s)) is not None
    ]
    longest = sorted(found, key=lambda each: (-each.outage_s, each.pair))
    flows = tuple(_dips(burst, at_s))
    # A full queue drops a pair's probes before and after an outage too: the longest says too much
    from_s = median([each.from_at.timestamp() for each in found]) if found else None
    outage_s = median([each.outage_s for each in found]) if found else None
    end_s = median([_end_s(each) for each in found]) if found else at_s
    back_s = _back_after_s(flows)
    cut = [
        each
        for each in burst.disruptions
        if each.kind is DisruptionKind.RESET and each.start_at.timestamp() + 1.0 > at_s
    ]
    silent = _fell_silent(burst, at_s)
    names = {name for each in cut for name in each.pairs} | silent.keys()
    cut_at = [*(each.start_at for each in cut), *map(instant, silent.values())]
    cut_count = max(len(names), sum(each.pairs_count for each in cut))
    touched = _touched(burst, at_s)
    return Drilled(
        event=event,
        resolution_s=max((column.every_s for column in burst.probes.values()), default=None),
        probed_count=len(burst.probes),
        outages=tuple(longest[:PAIRS_MAX_COUNT]),
        outages_count=len(found),
        outage_from_at=None if from_s is None else instant(from_s),
        outage_s=outage_s if outage_s is not None else 0.0 if burst.probes else None,
        touched_pairs=tuple(map(pair_name, touched[:PAIRS_MAX_COUNT])),
        touched_count=len(touched),
        flows=flows,
        sessions_count=burst.pairs_count * burst.streams_count,
        cut_count=cut_count * burst.streams_count,
        cut_from_at=min(cut_at, default=None),
        cut_to_at=max(cut_at, default=None),
        cut_pairs=tuple(sorted(names)[:PAIRS_MAX_COUNT]),
        # Of a disruption the first ten pairs are named: who the others are may not be known
        opened_again_count=_opened_again(burst, names) if len(names) == cut_count else None,
        tcp_s=(
            round(max(0.0, at_s + back_s - end_s), 3)
            if back_s is not None and found and all(each.over for each in found)
            else None
        ),
        course=_course(burst, at_s),
    )


def find_outage(pair: str, column: ProbeColumn, event_s: float) -> PairOutage | None:
    """The longest time after the event in which no probe's answer came; None: no such time.

    Probes that were not sent are no evidence: they widen the resolution.
    """
    (sent,) = np.nonzero(~(column.rtt_s < 0))
    if not len(sent):
        return None
    sent_at_s = column.first_at_s + column.every_s * sent
    rtt_s = column.rtt_s[sent]
    (answered,) = np.nonzero(~np.isnan(rtt_s))
    if not len(answered):
        return None
    order = np.argsort(sent_at_s[answered] + rtt_s[answered])
    arrived = (sent_at_s[answered] + rtt_s[answered])[order]
    silent = bool(np.isnan(rtt_s[-1]))
    if silent:
        arrived = np.append(arrived, sent_at_s[-1] + column.every_s)
    after = np.flatnonzero(arrived[1:] > event_s)
    if not len(after):
        return None
    gaps = np.diff(arrived)
    usual = gaps[arrived[1:] <= event_s][-USUAL_COUNT:]
    unrest_s = UNREST_FACTOR * float(usual.max()) if len(usual) else 0.0
    place = int(after[gaps[after].argmax()])
    from_s, until_s = float(arrived[place]), float(arrived[place + 1])
    last_sent_s = float(sent_at_s[answered[order[place]]])
    meanwhile = sent_at_s[(sent_at_s >= last_sent_s) & (sent_at_s <= until_s)]
    spacing_s = float(np.diff(meanwhile, append=until_s).max())
    spacing_s = max(column.every_s, spacing_s) if len(meanwhile) > 1 else until_s - from_s
    if until_s - from_s < max(OUTAGE_STEPS * column.every_s, unrest_s, 2 * spacing_s):
        return None
    lost = (sent_at_s > last_sent_s) & (sent_at_s < until_s) & np.isnan(rtt_s)
    return PairOutage(
        pair=pair,
        from_at=instant(from_s + spacing_s / 2),
        outage_s=round(max(0.0, until_s - from_s - spacing_s), 4),
        resolution_s=round(spacing_s, 4),
        lost_count=int(lost.sum()),
        over=not (silent and place + 2 == len(arrived)),
    )


def _back_after_s(flows: Sequence[FlowDip]) -> float | None:
    known = [flow.back_after_s for flow in flows if flow.back_after_s is not None]
    return max(known, default=None) if len(known) == len(flows) else None


def _end_s(outage: PairOutage) -> float:
    return outage.from_at.timestamp() + outage.outage_s


def _dips(burst: DrilledBurst, at_s: float) -> Iterator[FlowDip]:
    series = burst.series
    for place, flow in enumerate(series.flows):
        rates = 8 * burst.scale * _known(flow.received_bytes, series)
        before = _before(rates, series, at_s)
        first = int(at_s - series.start_s)
        after = rates[first:]
        level = float(np.median(before)) if len(before) else 0.0
        if level <= 0 or np.isnan(after).all():
            continue
        fell, back = _fall(after, before)
        dip = after[fell:back]
        stop = len(after) if back is None else back
        new = burst.following
        yield FlowDip(
            flow=flow.flow,
            level_bits_per_second=six_digits(level),
            lowest_bits_per_second=six_digits(float(np.nanmin(after))),
            short_bytes=six_digits(float(np.nansum(np.maximum(level - dip, 0.0))) / 8),
            back_after_s=(
                None if back is None else round(max(0.0, series.start_s + first + back - at_s), 3)
            ),
            retransmits_count=_retransmits(flow.retransmits_count, first, first + stop),
            old_ratio=_median_ratio(after[-BASE_S // 3 :], level),
            new_ratio=None if new is None else _new_ratio(new, place, burst.scale, level),
        )


def _retransmits(counts: Floats, first: int, stop: int) -> int | None:
    """Over those of the seconds before, in as many seconds."""
    before, after = counts[max(0, first - BASE_S) : first], counts[first:stop]
    if np.isnan(before).all() or (after.size and np.isnan(after).all()):
        return None
    usual = float(np.nanmedian(before))
    return round(max(0.0, float(np.nansum(after - usual))))


def _known(received_bytes: Floats, series: BurstSeries) -> Floats:
    """The planned burst's seconds; those beside it are unknown, and those without a pair."""
    seconds = series.start_s + np.arange(len(received_bytes))
    inside = (seconds >= series.planned_start_s + series.omit_s) & (
        seconds + 1 <= series.planned_start_s + series.omit_s + series.duration_s
    )
    return np.where(inside & (series.coverage_ratio > 0), received_bytes, np.nan)


def _before(rates: Floats, series: BurstSeries, at_s: float) -> Floats:
    """The seconds that are the level: after TCP's beginning, before the event's own."""
    rates = rates[: int(at_s - series.start_s)]
    known = rates[~np.isnan(rates)][HEAD_S:][-BASE_S:]
    return known if len(known) >= BACK_FOR_S else known[:0]


def _fall(after: Floats, before: Floats) -> tuple[int, int | None]:
    """The first second of a fall, and the first from which the level holds again.

    (0, 0) where nothing fell; (first, None) where it is not back.
    """
    level = float(np.median(before))
    floor = BACK_RATIO * level
    noise = 1.4826 * float(np.median(np.abs(before - level)))
    (low,) = np.nonzero(after < min(floor, level - FALL_DEVIATIONS * noise))
    if not len(low):
        return 0, 0
    first = int(low[0])
    for place in range(first + 1, len(after) - BACK_FOR_S + 1):
        if (after[place : place + BACK_FOR_S] >= floor).all():
            return first, place
    return first, None


def _new_ratio(following: BurstSeries, place: int, scale: float, level: float) -> float | None:
    rates = 8 * scale * _known(following.flows[place].received_bytes, following)
    return _median_ratio(rates[~np.isnan(rates)][HEAD_S:], level)


def _median_ratio(rates: Floats, level: float) -> float | None:
    """The usual second's, of the level; None where none is known."""
    known = rates[~np.isnan(rates)]
    return figure(float(np.median(known)) / level) if len(known) else None


def _touched(burst: DrilledBurst, at_s: float) -> list[int]:
    """Pairs whose payload fell below their own level for a second after the event."""
    series = burst.series
    first = int(at_s - series.start_s)
    stop = int(series.planned_start_s + series.omit_s + series.duration_s - series.start_s)
    hit: set[int] = set()
    for flow in series.flows:
        pairs = flow.pairs_bits_per_second
        begun = max(0, first - BASE_S)
        if first - begun < BACK_FOR_S or stop - 1 <= first or not len(pairs):
            continue
        levels = np.nan_to_num(np.nanmedian(_padded(pairs[:, begun:first]), axis=1))
        after = np.nan_to_num(pairs[:, first : stop - 1], nan=np.inf)
        lowest = after.min(axis=1)
        hit |= set(np.flatnonzero((levels > 0) & (lowest < TOUCHED_RATIO * levels)).tolist())
    return sorted(hit)


def _padded(rates: "np.ndarray[tuple[int, int], np.dtype[np.float32]]") -> Floats:
    """Rows of unknowns as zeros: their level is none."""
    values = rates.astype(np.float64)
    values[np.isnan(values).all(axis=1)] = 0.0
    return values


def _fell_silent(burst: DrilledBurst, at_s: float) -> dict[str, float]:
    """Pairs without a byte from the event on, or a while later, to the burst's end: since when.

    iperf3 may go on to its end where its data connections were reset and the control one was not.
    Those whose agent ended, or whose seconds nobody recorded, are not among them.
    """
    series = burst.series
    others = {
        name
        for each in burst.disruptions
        if each.kind in (DisruptionKind.CUT, DisruptionKind.GAP, DisruptionKind.ABSENT)
        for name in each.pairs
    }
    first = max(0, int(at_s - series.start_s) - 1)
    stop = int(series.planned_start_s + series.omit_s + series.duration_s - series.start_s)
    moved = _moved(series, burst.pairs_count)[:, :stop]
    silent = moved[:, max(0, first - BASE_S) : first].any(axis=1)
    silent &= ~moved[:, max(0, stop - BACK_FOR_S) :].any(axis=1)
    ended_s = {
        pair_name(index): float(series.start_s + np.flatnonzero(moved[index])[-1] + 1)
        for index in np.flatnonzero(silent).tolist()
    }
    return {
        name: since_s
        for name, since_s in ended_s.items()
        if since_s + 1.0 > at_s and name not in others
    }


def _opened_again(burst: DrilledBurst, names: Collection[str]) -> int | None:
    """Sessions of cut pairs that moved payload in the next burst; None: there is none."""
    if burst.following is None:
        return None
    there = _moved(burst.following, burst.pairs_count).any(axis=1)
    back = sum(pair_name(index) in names for index in np.flatnonzero(there).tolist())
    return back * burst.streams_count


def _moved(series: BurstSeries, pairs_count: int) -> NDArray[np.bool_]:
    """Of each pair whether it moved payload in each second; shape (pairs, seconds)."""
    there = np.zeros((pairs_count, len(series.coverage_ratio)), np.bool_)
    for flow in series.flows:
        pairs = flow.pairs_bits_per_second
        there[: len(pairs), : pairs.shape[1]] |= np.nan_to_num(pairs) > 0
    return there


def _course(burst: DrilledBurst, at_s: float) -> RateCourse:
    series = burst.series
    rates = 8 * burst.scale * _known(series.received_bytes, series)
    first = max(0, int(at_s - series.start_s) - AROUND_S)
    return rate_course(series.start_s + first, rates[first : first + 3 * AROUND_S])
