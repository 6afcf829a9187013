"""Effect of an event during a burst, measured by probes and by payload.

During an outage, a path delivers nothing. The outage starts when the last answer arrives before it,
and ends when the first answer arrives after it. From its arrival time you can see if a probe was
queued or lost. So if a device queues packets, it will have the same outage as if it drops them. The
error can be up to a probe interval. If TCP needs more time to get its rate back, this will be
caused by TCP itself. This module does no input or output.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.experiments.scale_out import (
    RateCurve,
    rate_curve,
    six_digits,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import ProbeColumn
from broadside.coordinator.core.summary import Disruption, DisruptionKind, figure, instant
from broadside.exchange.messages import Flow, Message, UtcDatetime, pair_name, renamed

# How many probe intervals need to have no answer to report an outage. A single lost probe is no
# outage.
OUTAGE_STEPS: Final = 3
# How many gaps before the event to use, to get a pair's normal variation.
USUAL_COUNT: Final = 200
# Multiple of the longest normal gap.
UNREST_FACTOR: Final = 2.0
# Maximum number of seconds before the event to use for the level.
BASE_S: Final = 30
# Seconds in which TCP starts. They should not be used for the level.
HEAD_S: Final = 3
# Share of the level. A flow has recovered when it is back at this value.
BACK_RATIO: Final = 0.95
# Seconds for which the rate needs to stay there.
BACK_FOR_S: Final = 3
# Robust standard deviations below the level. If a fall is smaller, it is normal variation.
FALL_DEVIATIONS: Final = 4.0
# Share of the level. If a flow or pair falls below this value, it was affected.
TOUCHED_RATIO: Final = 0.8
# How many pairs to store, starting with the longest outage.
PAIRS_MAX_COUNT: Final = 200
# Seconds around the event to include in the rate curve.
AROUND_S: Final = 60


class ExecutedEvent(Message):
    """The event as it was run, with times by the coordinator's clock.

    Attributes:
        planned_at: Planned time of the event.
        argv: Command line.
        started_at: Time when the command started. None if it did not run.
        ended_at: Time when the command ended. None if it did not end.
        exit_code: Exit code of the command. None if it did not end.
        output: The end of its output as a single line, without any text that looks like a secret.
        problem: Why the command did not run, or why it did not finish.
    """

    planned_at: UtcDatetime
    argv: tuple[str, ...] = ()
    started_at: UtcDatetime | None = None
    ended_at: UtcDatetime | None = None
    exit_code: int | None = None
    output: Annotated[str, renamed("output", "said")] = ""
    problem: str | None = None


class PairOutage(Message):
    """A pair's outage, measured by its probes.

    Attributes:
        from_at: Start of the outage.
        outage_s: Length of the outage in seconds.
        resolution_s: Largest error of `outage_s`, in seconds.
        lost_count: Number of lost probes.
        over: False if there was no answer up to the last probe.
    """

    pair: str
    from_at: UtcDatetime
    outage_s: float
    resolution_s: float
    lost_count: int
    over: bool = True


class FlowDip(Message):
    """Payload that the fleet lost in a flow, with rates and bytes at real scale.

    Attributes:
        level_bits_per_second: Payload rate before the event, in bit/s.
        lowest_bits_per_second: Lowest payload rate after the event, in bit/s.
        short_bytes: Bytes that were missing until the level was back.
        back_after_s: Seconds from the event until 95 % of the level was back. None if this did not
            happen in the burst.
        retransmits_count: Retransmissions above normal until the level was back, or ``None`` if
            there is no data from TCP.
        old_ratio: Share of the level at the end of the burst, for sessions that were open before
            the event.
        new_ratio: Share of the level in the next burst, for new sessions after the event.
    """

    flow: Flow
    level_bits_per_second: float
    lowest_bits_per_second: float
    short_bytes: float
    back_after_s: float | None
    retransmits_count: int | None = None
    old_ratio: float | None
    new_ratio: float | None = None


class DrillResult(Message):
    """Effect of an event.

    Attributes:
        event: The event as it was executed.
        resolution_s: Interval of the probes in seconds. None without probes.
        probed_count: Number of pairs that have probes around the event.
        outages: Outages by pair, the longest first.
        outages_count: Number of pairs with an outage.
        outage_from_at: Median start of the outages.
        outage_s: Median length of the outages in seconds. 0 if the probes show no outage. None
            without probes.
        touched_pairs: Pairs for which the payload fell.
        touched_count: Number of pairs whose payload fell.
        flows: Lost payload for each flow.
        sessions_count: Sessions that were open before the event.
        cut_count: Sessions that were reset, or that had no traffic from then on to the end of the
            burst.
        cut_from_at: First second without payload, for the first cut session.
        cut_to_at: First second without payload, for the last cut session.
        cut_pairs: Names of the pairs with cut sessions.
        opened_again_count: Number of cut sessions for which the pair can be seen in the next burst.
        tcp_s: Seconds from the end of the outage until the payload was back.
        rate_curve: Received payload over time.
    """

    event: ExecutedEvent
    resolution_s: float | None
    probed_count: int
    outages: tuple[PairOutage, ...] = ()
    outages_count: int = 0
    outage_from_at: UtcDatetime | None = None
    outage_s: float | None = None
    touched_pairs: tuple[str, ...] = ()
    touched_count: int = 0
    flows: tuple[FlowDip, ...] = ()
    sessions_count: int = 0
    cut_count: int = 0
    cut_from_at: UtcDatetime | None = None
    cut_to_at: UtcDatetime | None = None
    cut_pairs: tuple[str, ...] = ()
    opened_again_count: int | None = None
    tcp_s: float | None = None
    rate_curve: Annotated[RateCurve | None, renamed("rate_curve", "course")] = None

    @property
    def back_after_s(self) -> float | None:
        """Time until every flow was back, or ``None`` if any flow was not."""
        return _back_after_s(self.flows)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRecords:
    """Records from the burst with the event, and from the next burst.

    Attributes:
        series: The burst's series.
        probes: Probes by pair index.
        disruptions: Disruptions during the burst.
        pairs_count: Number of pairs.
        streams_count: Number of streams per pair.
        scale: Factor to get real rates from measured rates.
        following: Series for the next burst, if any.
    """

    series: BurstSeries
    probes: Mapping[int, ProbeColumn]
    disruptions: Sequence[Disruption]
    pairs_count: int
    streams_count: int
    scale: float
    following: BurstSeries | None = None


def analyze_drill(event: ExecutedEvent, burst: DrillRecords) -> DrillResult:
    """Compare the burst to its own level before the event.

    Args:
        event: The event as it was run.
        burst: Records to use.

    Returns:
        Outages, lost payload and cut sessions. Without probes, the outages are unknown and not
        zero.
    """
    at_s = (event.started_at or event.planned_at).timestamp()
    results = [
        outage
        for index, column in sorted(burst.probes.items())
        if (outage := find_outage(pair_name(index), column, at_s)) is not None
    ]
    longest = sorted(results, key=lambda item: (-item.outage_s, item.pair))
    flows = tuple(_dips(burst, at_s))
    # When a queue is full, it will also drop probes before and after an outage. So the longest
    # would be too long.
    from_s = median([item.from_at.timestamp() for item in results]) if results else None
    outage_s = median([item.outage_s for item in results]) if results else None
    end_s = median([_end_s(item) for item in results]) if results else at_s
    back_s = _back_after_s(flows)
    cut = [
        item
        for item in burst.disruptions
        if item.kind is DisruptionKind.RESET and item.start_at.timestamp() + 1.0 > at_s
    ]
    silent = _fell_silent(burst, at_s)
    names = {name for item in cut for name in item.pairs} | silent.keys()
    cut_at = [*(item.start_at for item in cut), *map(instant, silent.values())]
    cut_count = max(len(names), sum(item.pairs_count for item in cut))
    touched = _touched(burst, at_s)
    return DrillResult(
        event=event,
        resolution_s=max((column.every_s for column in burst.probes.values()), default=None),
        probed_count=len(burst.probes),
        outages=tuple(longest[:PAIRS_MAX_COUNT]),
        outages_count=len(results),
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
        # A disruption only names its first ten pairs. If there are more, we do not know them.
        opened_again_count=_opened_again(burst, names) if len(names) == cut_count else None,
        tcp_s=(
            round(max(0.0, at_s + back_s - end_s), 3)
            if back_s is not None and results and all(item.over for item in results)
            else None
        ),
        rate_curve=_rate_curve(burst, at_s),
    )


def find_outage(pair: str, column: ProbeColumn, event_s: float) -> PairOutage | None:
    """Find the longest time after the event in which there was no answer.

    If a probe was not sent, it cannot be used. This just makes the possible error larger.

    Args:
        pair: Name of the pair.
        column: The pair's probes.
        event_s: When the event started, in epoch seconds.

    Returns:
        The outage, or ``None`` if there is none.
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


def _dips(burst: DrillRecords, at_s: float) -> Iterator[FlowDip]:
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
    """Return how many retransmissions were above the normal number for this time."""
    before, after = counts[max(0, first - BASE_S) : first], counts[first:stop]
    if np.isnan(before).all() or (after.size and np.isnan(after).all()):
        return None
    usual = float(np.nanmedian(before))
    return round(max(0.0, float(np.nansum(after - usual))))


def _known(received_bytes: Floats, series: BurstSeries) -> Floats:
    """Return bytes for planned seconds, with NaN if there is no data."""
    seconds = series.start_s + np.arange(len(received_bytes))
    inside = (seconds >= series.planned_start_s + series.omit_s) & (
        seconds + 1 <= series.planned_start_s + series.omit_s + series.duration_s
    )
    return np.where(inside & (series.coverage_ratio > 0), received_bytes, np.nan)


def _before(rates: Floats, series: BurstSeries, at_s: float) -> Floats:
    """Return the seconds to use for the level, after TCP's start and before the event."""
    rates = rates[: int(at_s - series.start_s)]
    known = rates[~np.isnan(rates)][HEAD_S:][-BASE_S:]
    return known if len(known) >= BACK_FOR_S else known[:0]


def _fall(after: Floats, before: Floats) -> tuple[int, int | None]:
    """Return the first second in a fall, and the first second back at the level.

    The result is (0, 0) if there is no fall, and (first, None) if the level was not reached again.
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
    """Return the median as a share of the level, or ``None`` if all seconds are unknown."""
    known = rates[~np.isnan(rates)]
    return figure(float(np.median(known)) / level) if len(known) else None


def _touched(burst: DrillRecords, at_s: float) -> list[int]:
    """Return pairs that fell below their own level for a second after the event."""
    series = burst.series
    first = int(at_s - series.start_s)
    stop = int(series.planned_start_s + series.omit_s + series.duration_s - series.start_s)
    hit: set[int] = set()
    for flow in series.flows:
        pairs = flow.pairs_bits_per_second
        begin = max(0, first - BASE_S)
        if first - begin < BACK_FOR_S or stop - 1 <= first or not len(pairs):
            continue
        levels = np.nan_to_num(np.nanmedian(_padded(pairs[:, begin:first]), axis=1))
        after = np.nan_to_num(pairs[:, first : stop - 1], nan=np.inf)
        lowest = after.min(axis=1)
        hit |= set(np.flatnonzero((levels > 0) & (lowest < TOUCHED_RATIO * levels)).tolist())
    return sorted(hit)


def _padded(rates: "np.ndarray[tuple[int, int], np.dtype[np.float32]]") -> Floats:
    """Return a copy where a row is set to zero if all its values are unknown.

    So such a row will have no level.
    """
    values = rates.astype(np.float64)
    values[np.isnan(values).all(axis=1)] = 0.0
    return values


def _fell_silent(burst: DrillRecords, at_s: float) -> dict[str, float]:
    """Return pairs that stopped after the event and did not start again, with the time.

    If data connections are reset but the control connection is not, iperf3 can still run to its
    end. Pairs are not included if their agent ended, or if their seconds were not recorded.
    """
    series = burst.series
    others = {
        name
        for item in burst.disruptions
        if item.kind in (DisruptionKind.CUT, DisruptionKind.GAP, DisruptionKind.ABSENT)
        for name in item.pairs
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


def _opened_again(burst: DrillRecords, names: Collection[str]) -> int | None:
    """Count sessions for cut pairs that had payload in the next burst.

    The result is ``None`` if there is no next burst.
    """
    if burst.following is None:
        return None
    there = _moved(burst.following, burst.pairs_count).any(axis=1)
    back = sum(pair_name(index) in names for index in np.flatnonzero(there).tolist())
    return back * burst.streams_count


def _moved(series: BurstSeries, pairs_count: int) -> NDArray[np.bool_]:
    """Return a (pairs, seconds) matrix that is true when there was payload."""
    there = np.zeros((pairs_count, len(series.coverage_ratio)), np.bool_)
    for flow in series.flows:
        pairs = flow.pairs_bits_per_second
        there[: len(pairs), : pairs.shape[1]] |= np.nan_to_num(pairs) > 0
    return there


def _rate_curve(burst: DrillRecords, at_s: float) -> RateCurve:
    series = burst.series
    rates = 8 * burst.scale * _known(series.received_bytes, series)
    first = max(0, int(at_s - series.start_s) - AROUND_S)
    return rate_curve(series.start_s + first, rates[first : first + 3 * AROUND_S])
