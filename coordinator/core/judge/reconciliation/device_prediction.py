"""Prediction of the device counter from fleet bytes, other runs, background and lag.

:class:`DevicePrediction` computes how much payload of each burst should be in each counter bin at a
given lag. It also estimates the background level
(:mod:`broadside.coordinator.core.judge.reconciliation.idle_level`). A counter counts the traffic
of all runs through the device, so known traffic of other runs is subtracted first. Bins are not
used if planned pairs may have sent much traffic in them without a record.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.reconciliation.counter_bins import (
    Bins,
    BinSums,
    Curve,
    countable,
    counter_factor,
    fleet_curve,
    readable,
    seconds_curve,
)
from broadside.coordinator.core.judge.reconciliation.device_fit import HALF_FULL_RATIO, NORMAL_RARE
from broadside.coordinator.core.judge.reconciliation.idle_level import (
    QUIET_BINS_MIN,
    IdleLevel,
    from_fit,
    from_quiet,
    quiet_bins,
    unread_bins,
)
from broadside.coordinator.core.judge.reconciliation.lag import (
    LAG_MAX_S,
    LAG_MIN_S,
    Known,
    Lag,
    estimate_lag,
)
from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import Neighbour
from broadside.coordinator.core.measure.formulas.headers import Headers
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.exchange.messages import Protocol

# Margin of one reading at each end, in addition to the lag uncertainty.
MARGIN_S: Final = 2.0
# Margin around a burst with unseen pairs.
UNSEEN_MARGIN_S: Final = 5.0
# A burst with records for this share of its pair-seconds is treated as complete.
SEEN_RATIO: Final = 0.995
# A bin is not used if unseen pairs may have added more than this share.
FREE_RATIO: Final = 0.1
# Number of trial lags within the lag interval, for the comparison over time.
LAGS_COUNT: Final = 33
# Number of bins to read on each side of a burst. If both have other traffic, it fills the bin next
# to the burst completely.
BESIDE_BINS: Final = 2
# If traffic ends at a random time within a bin, it fills at least this share of the bin with a
# probability of 95 %.
FILLED_LEAST_RATIO: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a run that the comparison needs.

    Attributes:
        clock_bound_s: Largest clock error of the hosts.
        neighbours: Bursts of other runs through the same device.
        absent: Start and end (epoch s) of planned bursts that were not measured.
        bypassed: True if the run must not cross the device.
        protocol: Payload protocol.
    """

    clock_bound_s: float = 0.0
    neighbours: Sequence[Neighbour] = ()
    absent: Sequence[tuple[float, float]] = ()
    bypassed: bool = False
    protocol: Protocol = Protocol.TCP


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedShare:
    """Bytes of a burst in the device counter at a different lag.

    Attributes:
        counter_bytes: Counted bytes, with the idle level included.
        fleet_bytes: Fleet payload.
        width_s: Total bin length.
    """

    counter_bytes: float
    fleet_bytes: float
    width_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstShare:
    """Bytes of one burst in the device counter, with the idle level included.

    The sums include every bin that the burst may have touched.

    Attributes:
        total_bytes: Fleet payload in the burst, including payload outside known bins.
        fleet_bytes: Fleet payload in the bins that are used.
        counter_bytes: Counted bytes in these bins. If bursts share a bin, it will be divided by
            their payload.
        beside_bytes: Bytes of other runs that were subtracted from these bins.
        width_s: Total length of these bins.
        bins_count: Number of bins with bytes of the burst.
        moved: The same sums at both ends of the lag interval.
        unseen_bytes: Bytes that unseen pairs of other bursts may have added to these bins.
        tail_bytes: Bytes that were sent but that no receiver counted, because they were in flight
            at the end.
        near_bytes_per_s: Rate of other traffic above the idle level, beside the burst. It may have
            continued during the burst.
        parts: Bins that are used.
        full: Bins that are completely inside the steady window.
        fleet_bytes_per_s: Payload rate in the steady window.
    """

    total_bytes: float
    fleet_bytes: float
    counter_bytes: float
    beside_bytes: float
    width_s: float
    bins_count: int
    moved: tuple["MovedShare", "MovedShare"]
    unseen_bytes: float
    tail_bytes: float
    near_bytes_per_s: float
    parts: BinSums
    full: BinSums
    fleet_bytes_per_s: float

    def unsure_ratio(self, level: float) -> float:
        """Return how much the residual can change within the lag interval.

        Args:
            level: Idle level, in bytes/s.

        Returns:
            The largest relative change. 0 if no bytes above the idle level were counted, or if none
            were predicted.
        """
        net = self.counter_bytes - level * self.width_s
        if net <= 0 or self.fleet_bytes <= 0:
            return 0.0
        ends = [item for item in self.moved if item.fleet_bytes > 0]
        return max(
            (
                abs(
                    (item.counter_bytes - level * item.width_s)
                    / item.fleet_bytes
                    * self.fleet_bytes
                    / net
                    - 1
                )
                for item in ends
            ),
            default=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstCurve:
    """Cumulative payload of one burst.

    Attributes:
        curve: Cumulative payload.
        first_s: Start of the first second with payload (epoch s).
        last_s: End of the last second with payload (epoch s).
    """

    curve: Curve
    first_s: float
    last_s: float

    @classmethod
    def of(cls, burst: BurstSeries) -> "BurstCurve":
        received = countable(burst.received_bytes)
        total = np.concatenate(([0.0], np.cumsum(received)))
        busy = np.flatnonzero(received > 0)
        planned = (burst.planned_start_s, burst.planned_end_s)
        return cls(
            curve=Curve(
                at_s=burst.start_s + np.arange(len(total), dtype=np.float64), total_bytes=total
            ),
            first_s=float(burst.start_s + busy[0]) if len(busy) else planned[0],
            last_s=float(burst.start_s + busy[-1] + 1) if len(busy) else planned[1],
        )

    @property
    def sent_bytes(self) -> float:
        return float(self.curve.total_bytes[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenBins:
    """Counter bins that a burst may have touched. All arrays have one element per bin.

    Attributes:
        start_s: Start of the traffic in a bin, corrected by the lag (epoch s).
        end_s: End of this traffic (epoch s).
        unsure_s: Uncertainty of both times, in s.
        bytes: Counted bytes.
        width: Bin length, in s.
        beside: Bytes of other runs.
        fleet: Payload of the burst.
        part: Share of the bin that belongs to this burst, by payload.
        free: Bytes that unseen pairs of other bursts may have sent, at most.
        use: Mask of the bins that are used.
    """

    start_s: Floats
    end_s: Floats
    unsure_s: float
    bytes: Floats
    width: Floats
    beside: Floats
    fleet: Floats
    part: Floats
    free: Floats
    use: NDArray[np.bool_]

    @property
    def net(self) -> Floats:
        return self.bytes - self.beside


class DevicePrediction:
    """Prediction of the counter from all known traffic through the device."""

    def __init__(
        self,
        bursts: Sequence[BurstSeries],
        device_counter: CounterRecord,
        headers: Headers,
        conditions: Conditions,
        largest_ratio: float,
    ) -> None:
        bins, neighbours, absent = (
            readable(device_counter),
            conditions.neighbours,
            conditions.absent,
        )
        self.clock_bound_s = conditions.clock_bound_s
        # A pair without records may have sent this multiple of the mean rate.
        self.largest_ratio = largest_ratio
        self.bursts, self.bins, self.hint_s = bursts, bins, device_counter.lag_hint_s
        self.grain_s = device_counter.grain_s
        self.fleet = fleet_curve(bursts)
        self.steps = [BurstCurve.of(burst) for burst in bursts]
        self.beside = _beside_curve(neighbours, counter_factor(device_counter, headers, []).ratio)
        most = largest_ratio * _usual_rate(bursts)
        self.free = [_unrecorded(burst, most) for burst in bursts]
        self.unrecorded = _unrecorded_curve(self.free, absent, most)
        self.spans = [
            *(
                _span(burst, step, free)
                for burst, step, free in zip(bursts, self.steps, self.free, strict=True)
            ),
            *(n.span_s for n in neighbours),
            *((begin - UNSEEN_MARGIN_S, end + UNSEEN_MARGIN_S) for begin, end in absent),
        ]
        self.lag = estimate_lag(
            bins,
            Known(
                fleet=self.fleet,
                bursts=[(step.first_s, step.last_s, step.sent_bytes) for step in self.steps],
                unrecorded=self.unrecorded,
                beside=self.beside,
            ),
            grain_s=self.grain_s,
            hint_s=self.hint_s,
        )

    def true_bins(self, lag: Lag) -> tuple[Floats, Floats]:
        """Return the start and end of the traffic in each bin, corrected for the lag (epoch s)."""
        return (
            self.bins.start_s - lag.at(self.bins.start_s),
            self.bins.end_s - lag.at(self.bins.end_s),
        )

    def busy_bytes(self, lag: Lag) -> float:
        """Return the counted bytes above the median level, without known bytes of other runs."""
        net = self.bins.bytes - self._beside(*self.true_bins(lag))
        usual = np.median(net / self.bins.width_s) if len(net) else 0.0
        return float(np.maximum(0.0, net - usual * self.bins.width_s).sum())

    def crossing_lag(self) -> Lag:
        """Return the lag to use for a run that is not visible in the counter.

        It is the lag at which the counter could include the most traffic of the run. Lags that do
        not fit the known traffic of other runs are excluded.
        """
        lags = np.arange(LAG_MIN_S, LAG_MAX_S + 1, max(1.0, self.grain_s / 2))
        if self.hint_s is not None:
            lags = self.hint_s + np.array([-self.grain_s, 0.0, self.grain_s])
        bins = self.bins
        shown, misfit = np.zeros(len(lags)), np.zeros(len(lags))
        for place, lag_s in enumerate(lags):
            start, end = bins.start_s - lag_s, bins.end_s - lag_s
            net = bins.bytes - self._beside(start, end)
            shown[place] = float((self.fleet.between(start, end) * net).sum())
            misfit[place] = float(np.abs(net).sum())
        if self.beside is not None and len(bins):
            one = float(np.median([step.sent_bytes for step in self.steps]))
            shown[misfit > misfit.min() + FREE_RATIO * one] = -np.inf
        best = float(lags[int(np.argmax(shown))])
        return Lag(lag_s=best, uncertainty_s=self.grain_s, known=False)

    def idle(self, lag: Lag, bins_a_burst: int) -> IdleLevel | None:
        """Estimate the level of steady traffic that is not from known runs.

        Args:
            lag: Counter lag.
            bins_a_burst: How many bins a burst covers.

        Returns:
            The level. None if it cannot be estimated.
        """
        if not lag.known and not len(self.bins):
            return None
        start, end = self.true_bins(lag)
        margin = min(lag.uncertainty_s, LAG_MAX_S) + MARGIN_S
        net = replace(self.bins, bytes=np.maximum(0.0, self.bins.bytes - self._beside(start, end)))
        quiet = quiet_bins(start - margin, end + margin, self.spans)
        unread = unread_bins(net.bytes, quiet)
        quiet &= ~unread
        unplanned = self._unplanned_burst(net, quiet, lag)
        quiet &= ~unplanned
        count = sum(step.sent_bytes > 0 for step in self.steps)
        if quiet.sum() >= QUIET_BINS_MIN:
            level = from_quiet(net, quiet, bins_a_burst=bins_a_burst, bursts_count=max(1, count))
            result = net.pick(unplanned)
            over = result.bytes - level.bytes_per_s * result.width_s
            return replace(level, unplanned_bytes=float(over.sum()))
        fleet = self.fleet.between(start, end)
        sound = ~unread
        if self.unrecorded is not None:
            # If only few pairs are unseen in a burst, the fitted scale will include their traffic.
            sound &= self.unrecorded.between(start, end) <= FREE_RATIO * fleet
        moved = self.fleet.between(start - 0.5, end - 0.5) - self.fleet.between(
            start + 0.5, end + 0.5
        )
        return from_fit(
            net.pick(sound), quiet[sound], fleet[sound], moved[sound], lag.uncertainty_s
        )

    def _unplanned_burst(self, net: Bins, quiet: NDArray[np.bool_], lag: Lag) -> NDArray[np.bool_]:
        """Return a mask of the quiet bins that contain an unplanned burst.

        An unplanned burst is a single block of bins that are more than half as full as in a planned
        burst. It is not longer than a planned burst and has quiet bins on both sides. Such traffic
        is not steady. During a planned burst it would increase the bins by half or more.
        """
        none = np.zeros(len(quiet), np.bool_)
        rates = net.bytes / net.width_s
        full = _usual_rate(self.bursts) * (lag.scale or 1.0)
        high = np.flatnonzero(quiet & (rates > HALF_FULL_RATIO * full))
        if not len(high) or full <= 0:
            return none
        first, last = max(0, int(high[0]) - 1), int(high[-1]) + 1
        longest_s = max(end - begin for begin, end in self.spans)
        lasted_s = float(net.end_s[high[-1]] - net.start_s[high[0]])
        alone = (
            len(high) == high[-1] - high[0] + 1
            and lasted_s <= longest_s + 2 * self.grain_s
            and quiet[first : last + 1].all()
        )
        none[first : last + 1] = alone
        return none if (quiet & ~none).sum() >= QUIET_BINS_MIN else none & False

    def share(self, number: int, lag: Lag) -> BurstShare:
        """Compute how many bytes the counter has for a burst.

        Args:
            number: Burst index.
            lag: Counter lag.

        Returns:
            Bytes of the fleet and of the counter in the bins of the burst, and the width of these
            bins in seconds.
        """
        burst, step = self.bursts[number], self.steps[number]
        total = step.sent_bytes
        seen = self._seen_bins(number, lag)
        use, fleet, part = seen.use, seen.fleet[seen.use], seen.part[seen.use]
        device_counter = part * seen.net[use]
        full = self._full(burst, seen)
        received = countable(burst.received_bytes)
        steady = received if burst.window is None else received[slice(*burst.window)]
        sent = float(np.nansum([flow.sent_bytes for flow in burst.flows]))
        return BurstShare(
            total_bytes=total,
            fleet_bytes=float(fleet.sum()),
            counter_bytes=float(device_counter.sum()),
            beside_bytes=float(seen.beside[use].sum()),
            width_s=float((part * seen.width[use]).sum()),
            bins_count=int((fleet > 0).sum()),
            moved=(
                self._moved(number, seen, -seen.unsure_s),
                self._moved(number, seen, seen.unsure_s),
            ),
            unseen_bytes=float(seen.free[use].sum()) / self.largest_ratio,
            tail_bytes=max(0.0, sent - total),
            near_bytes_per_s=0.0,
            parts=self._parts(number, seen, device_counter),
            full=BinSums(
                device_counter=seen.net[full],
                fleet=seen.fleet[full],
                width=seen.width[full],
                placed=seen.fleet[full][:, None],
                earlier=seen.fleet[full],
                later=seen.fleet[full],
            ),
            fleet_bytes_per_s=float(steady.mean()) if len(steady) else 0.0,
        )

    def blocks(self, number: int, lag: Lag, reading_s: float) -> tuple[Floats, Floats]:
        """Return the counted bytes and the payload in blocks.

        A block is as long as a bin or a reading, whichever is longer. Bytes cannot be predicted
        within a reading, so a block starts with a reading. The arrays are empty if no bytes were
        counted, or if there are gaps between long readings.

        Args:
            number: Burst index.
            lag: Counter lag.
            reading_s: How long a reading of the receivers is.

        Returns:
            Bytes of the counter and of the fleet, two arrays with one value per block.
        """
        seen, step = self._seen_bins(number, lag), self.steps[number]
        full = self._full(self.bursts[number], seen)
        counted, start, end = seen.net[full], seen.start_s[full], seen.end_s[full]
        if reading_s > self.grain_s and len(counted) and np.allclose(start[1:], end[:-1]):
            count = math.ceil((end[-1] - step.first_s) / reading_s)
            edges = step.first_s + reading_s * np.arange(count + 1)
            edges = edges[(edges >= start[0]) & (edges <= end[-1])]
            curve = np.concatenate(([0.0], np.cumsum(counted)))
            counted = np.diff(np.interp(edges, np.append(start, end[-1]), curve))
            return counted, step.curve.between(edges[:-1], edges[1:])
        if reading_s > self.grain_s or counted.sum() <= 0:
            return np.zeros(0), np.zeros(0)
        return counted, seen.fleet[full]

    def _seen_bins(self, number: int, lag: Lag) -> "_SeenBins":
        """Return the bins that a burst may have touched at a given lag."""
        step, total = self.steps[number], self.steps[number].sent_bytes
        start, end = self.true_bins(lag)
        unsure_s = lag.uncertainty_s if lag.known else 0.0
        margin = unsure_s + MARGIN_S
        low = int(np.searchsorted(end, step.first_s - margin, side="right"))
        high = int(np.searchsorted(start, step.last_s + margin, side="left"))
        mine = slice(low, max(low, high))
        start, end = start[mine], end[mine]
        beside = self._beside(start, end)
        fleet, part = self._split(number, start, end)
        free = self._others_free(number, start - unsure_s, end + unsure_s)
        return _SeenBins(
            start_s=start,
            end_s=end,
            unsure_s=unsure_s,
            bytes=self.bins.bytes[mine],
            width=self.bins.width_s[mine],
            beside=beside,
            fleet=fleet,
            part=part,
            free=free,
            use=(free <= FREE_RATIO * fleet + 1e-9 * max(1.0, total)) & (part > 0) & (total > 0),
        )

    def _moved(self, number: int, seen: "_SeenBins", by_s: float) -> MovedShare:
        """Return the bytes of a burst if the bins are moved by ``by_s``."""
        start, end, use = seen.start_s + by_s, seen.end_s + by_s, seen.use
        fleet, part = self._split(number, start, end)
        device_counter = part * (seen.bytes - self._beside(start, end))
        return MovedShare(
            counter_bytes=float(device_counter[use].sum()),
            fleet_bytes=float(fleet[use].sum()),
            width_s=float((part * seen.width)[use].sum()),
        )

    def _parts(self, number: int, seen: "_SeenBins", device_counter: Floats) -> BinSums:
        """Return the bins of a burst, with a prediction for each trial lag in the lag interval."""
        use, start, end = seen.use, seen.start_s, seen.end_s
        lags = np.linspace(-seen.unsure_s, seen.unsure_s, LAGS_COUNT)
        # The best lag is at most half a step away from a trial lag.
        placed_s = self.clock_bound_s + seen.unsure_s / (LAGS_COUNT - 1)
        at_lags = [self._split(number, start + by_s, end + by_s)[0][use] for by_s in lags]
        return BinSums(
            device_counter=device_counter,
            fleet=seen.fleet[use],
            width=(seen.part * seen.width)[use],
            placed=np.stack(at_lags, axis=1),
            earlier=self._split(number, start + placed_s, end + placed_s)[0][use],
            later=self._split(number, start - placed_s, end - placed_s)[0][use],
        )

    @staticmethod
    def _full(burst: BurstSeries, seen: "_SeenBins") -> NDArray[np.bool_]:
        """Return a mask of the bins that are completely inside the steady window of a burst."""
        if burst.window is None:
            return np.zeros(len(seen.use), np.bool_)
        first_s, last_s = (burst.start_s + edge for edge in burst.window)
        inside = (seen.start_s >= first_s + seen.unsure_s - 1e-6) & (
            seen.end_s <= last_s - seen.unsure_s + 1e-6
        )
        return np.asarray(seen.use & inside & (seen.fleet > 0))

    def beside_burst(
        self, number: int, share: BurstShare, lag: Lag, idle: IdleLevel, noise: float
    ) -> float:
        """Return the rate of other traffic that may have continued during a burst.

        Other traffic can start during the burst and end after it, or start before it and end during
        it. It is then visible only beside the burst. The bins after a burst are read from two
        seconds after its end, when its own last bytes have passed. Bytes that only senders recorded
        are not subtracted.

        If the two nearest bins are above the level, this traffic filled the nearest one completely.
        If only the nearest one is, the traffic may have ended inside it. Its rate was then higher
        than the mean of this bin, and the bins at the edge of the burst limit it. Bytes that a late
        reading moves out of a busy bin are ignored.

        Args:
            number: Burst index.
            share: Bytes of the burst in the counter.
            lag: Counter lag.
            idle: Level of other steady traffic.
            noise: Relative standard deviation of a busy bin.

        Returns:
            The rate in bytes/s.
        """
        step = self.steps[number]
        start, end = self.true_bins(lag)
        margin = min(lag.uncertainty_s, LAG_MAX_S) + MARGIN_S
        quiet = quiet_bins(start - margin, end + margin, self.spans)
        quiet &= ~unread_bins(self.bins.bytes, quiet)
        reach_s = margin + BESIDE_BINS * self.grain_s
        after = np.flatnonzero(quiet & (start >= step.last_s) & (start < step.last_s + reach_s))
        before = np.flatnonzero(quiet & (end <= step.first_s) & (end > step.first_s - reach_s))
        over = (self.bins.bytes - self._beside(start, end)) / self.bins.width_s - idle.bytes_per_s
        result = 0.0
        for bins, toward in ((after, -1), (before[::-1], 1)):
            near = bins[:BESIDE_BINS]
            if not len(near):
                continue
            rates = over[near]
            shows = rates > NORMAL_RARE * idle.bin_sigma
            most = float(rates[shows].max(initial=0.0))
            # The standard deviation of a bin includes bytes that move at both of its edges.
            busy = over[near[:1] + toward] if 0 <= near[0] + toward < len(over) else np.zeros(1)
            moved = NORMAL_RARE * np.hypot(idle.bin_sigma, noise / math.sqrt(2) * busy[0])
            if rates[0] > moved and not shows[1:].any() and idle.how == "quiet":
                edge = self._at_edge(number, share, lag, idle, int(near[0]))
                most = float(np.clip(edge, most, most / FILLED_LEAST_RATIO))
            result = max(result, most)
        return result

    def _at_edge(
        self, number: int, share: BurstShare, lag: Lag, idle: IdleLevel, first: int
    ) -> float:
        """Return the highest rate of other traffic between a burst and the nearest quiet bin.

        It is the largest value for any lag within the interval, in bytes/s. It is infinite if no
        bin at the edge is known.

        Args:
            number: Burst index.
            share: Bytes of the burst in the counter.
            lag: Counter lag.
            idle: Level of other steady traffic.
            first: Index of the quiet bin next to the burst, before or after it.
        """
        step = self.steps[number]
        start, end = self.true_bins(lag)
        unsure_s = lag.uncertainty_s
        if start[first] >= step.last_s:
            edge = (end > step.last_s - unsure_s) & (start < start[first])
        else:
            edge = (start < step.first_s + unsure_s) & (end > end[first])
        edge &= (end > step.first_s - self.grain_s) & (start < step.last_s + self.grain_s)
        if not edge.any() or share.fleet_bytes <= 0:
            return math.inf
        bins = self.bins.pick(edge)
        scale = (share.counter_bytes - idle.bytes_per_s * share.width_s) / share.fleet_bytes
        most = 0.0
        for by_s in np.linspace(-unsure_s, unsure_s, LAGS_COUNT):
            begin, stop = start[edge] + by_s, end[edge] + by_s
            fleet = self.fleet.between(begin, stop)
            inside = np.minimum(stop, step.last_s) - np.maximum(begin, step.first_s)
            beside_s = float((bins.width_s - np.maximum(0.0, inside)).sum())
            net = bins.bytes - self._beside(begin, stop) - idle.bytes_per_s * bins.width_s
            left = float((net - scale * fleet).sum())
            if beside_s > 0:
                most = max(most, left / beside_s)
        return most

    def _beside(self, start: Floats, end: Floats) -> Floats:
        """Return the counted bytes of other runs in each bin."""
        if self.beside is None:
            return np.zeros(len(start))
        return self.beside.between(start, end)

    def _others_free(self, number: int, start: Floats, end: Floats) -> Floats:
        """Return how many bytes unseen pairs of other bursts may have sent in each bin, at most."""
        if self.unrecorded is None:
            return np.zeros(len(start))
        free = self.unrecorded.between(start, end)
        local = self.free[number]
        if local is not None:
            free = free - seconds_curve(*local).between(start, end)
        return np.maximum(0.0, free)

    def _split(self, number: int, start: Floats, end: Floats) -> tuple[Floats, Floats]:
        """Return the payload of a burst in each bin, and its share of the bin.

        The share is 1 in bins that have no payload of any burst.
        """
        step = self.steps[number]
        mine = step.curve.between(start, end)
        mine[mine < 1e-9 * max(1.0, step.sent_bytes)] = 0.0
        fleet = self.fleet.between(start, end)
        return mine, np.divide(mine, fleet, out=np.ones(len(mine)), where=fleet > 0)


def _beside_curve(neighbours: Sequence[Neighbour], ratio: float) -> Curve | None:
    """Return the cumulative bytes of other runs at the layer of the counter.

    None if there are no other runs.
    """
    if not neighbours:
        return None
    curve = fleet_curve(neighbours)
    return replace(curve, total_bytes=curve.total_bytes * ratio)


def _unrecorded_curve(
    free: Sequence[tuple[Floats, Floats] | None],
    absent: Sequence[tuple[float, float]],
    most: float,
) -> Curve | None:
    """Return a curve of the bytes that unseen pairs and absent bursts may have sent, at most.

    None if there are no such pairs or bursts.
    """
    unseen = [item for item in free if item is not None]
    for begin, end in absent:
        seconds = np.arange(math.floor(begin), math.ceil(end), dtype=np.float64)
        unseen.append((seconds, np.full(len(seconds), most)))
    if not unseen or most <= 0:
        return None
    return seconds_curve(
        np.concatenate([seconds for seconds, _ in unseen]),
        np.concatenate([amounts for _, amounts in unseen]),
    )


def _usual_rate(bursts: Sequence[BurstSeries]) -> float:
    """Return the rate of a burst if all its pairs send, in bytes/s. It is 0 without records."""
    rates = []
    for burst in bursts:
        received, seen = countable(burst.received_bytes), burst.coverage_ratio
        busy = (received > 0) & (seen > 0)
        if busy.any():
            rates.append(float(np.median(received[busy] / np.minimum(1.0, seen[busy]))))
    return float(np.median(rates)) if rates else 0.0


def _unrecorded(burst: BurstSeries, most: float) -> tuple[Floats, Floats] | None:
    """Return the seconds of a burst, and the bytes that unseen pairs may have sent in each.

    None if the burst is complete.
    """
    first = math.floor(burst.planned_start_s)
    seconds = np.arange(first, math.ceil(burst.planned_end_s))
    seen = np.zeros(len(seconds))
    place = seconds - burst.start_s
    inside = (place >= 0) & (place < len(burst.coverage_ratio))
    seen[inside] = np.nan_to_num(burst.coverage_ratio[place[inside]])
    if seen.mean() >= SEEN_RATIO:
        return None
    return seconds.astype(np.float64), most * np.clip(1 - seen, 0.0, 1.0)


def _span(
    burst: BurstSeries, step: BurstCurve, free: tuple[Floats, Floats] | None
) -> tuple[float, float]:
    """Return the start and end of the time in which a burst may have sent (epoch s).

    The time includes the plan and the records. With unseen pairs a margin is added.
    """
    margin = UNSEEN_MARGIN_S if free is not None else 0.0
    return (
        min(burst.planned_start_s, step.first_s) - margin,
        max(burst.planned_end_s, step.last_s) + margin,
    )


def sum_shares(parts: Sequence[BurstShare]) -> BurstShare:
    """Add the shares of all bursts. Rates are averaged."""
    complete: BurstShare = _added(parts)
    width_s = max(complete.width_s, 1e-9)
    return replace(
        complete,
        fleet_bytes_per_s=complete.fleet_bytes_per_s / len(parts),
        near_bytes_per_s=sum(part.near_bytes_per_s * part.width_s for part in parts) / width_s,
    )


def _added(parts: Sequence[Any]) -> Any:
    """Add values of the same type field by field. Arrays are concatenated."""
    kind: Any = type(parts[0])
    if kind is np.ndarray:
        return np.concatenate(parts)
    if kind is tuple:
        return tuple(map(_added, zip(*parts, strict=True)))
    if kind not in (BurstShare, MovedShare, BinSums):
        return sum(parts)
    names = [item.name for item in fields(kind)]
    return kind(**{name: _added([getattr(part, name) for part in parts]) for name in names})
