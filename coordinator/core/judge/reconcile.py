"""Holds the firewall's ledger against the fleet's: lag, idle level, bytes, residual, and why.

The lag is fitted first (:mod:`broadside.coordinator.core.judge.lag`), then the level of others'
steady
traffic where no plan sends (:mod:`broadside.coordinator.core.judge.idle_level`). The level is
always taken
off, with its uncertainty. Then bytes are compared: over every bin that a burst may have touched,
the lag being as unsure as it is, or over the bins that lie wholly in the steady window where there
are three and they say it more surely. What remains is the residual, with a 95 % interval that
holds header overhead, the ledger's own scatter, idle level, lag, clocks and shared bins. An unknown
lag is an unknown residual, unless the ledger lacks most of the fleet's bytes at every lag.

Of a run that was to pass the device by (a reference) the ledger is expected to hold nothing: the
residual is then what it shows above its idle level, in parts of what the fleet sent.

A ledger is a device's, not a run's: what other runs are known to have sent through it at the time
is taken off before the rest is held against this run, and bins that hold what planned pairs may
have sent off the record are nobody's evidence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

import numpy as np

from broadside.coordinator.core.judge.idle_level import (
    QUIET_BINS_MIN,
    IdleLevel,
    from_fit,
    from_quiet,
    quiet_bins,
    unread_bins,
)
from broadside.coordinator.core.judge.lag import (
    LAG_MAX_S,
    LAG_MIN_S,
    Bins,
    Curve,
    Known,
    Lag,
    countable,
    estimate_lag,
    fleet_curve,
    readable,
    seconds_curve,
)
from broadside.coordinator.core.judge.residual_cause import (
    DOUBT_FACTOR,
    DOUBT_FACTOR_OF_MANY,
    Missing,
    causes,
)
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.headers import (
    MSS_ASSUMED_BYTES,
    OVERHEAD_KNOWN_RATIO,
    OVERHEAD_LESS_RATIO,
    OVERHEAD_LESS_WIRE_RATIO,
    OVERHEAD_MORE_RATIO,
    OVERHEAD_MORE_WIRE_RATIO,
    Headers,
)
from broadside.coordinator.core.measure.resolution import READINGS_A_PART
from broadside.coordinator.core.measure.series import BurstSeries
from broadside.coordinator.core.measure.steady import t95
from broadside.coordinator.core.summary import Reconciliation, figure
from broadside.exchange.messages import VXLAN_BYTES

FULL_BINS_MIN: Final = 3  # full bins whose mean is the firewall's rate
NOISE_BINS_MIN: Final = 5  # bins that tell their own scatter
HALF_FULL_RATIO: Final = 0.5  # of the busiest bin: bins at edges tell the lag's error, not scatter
SCATTER_BURSTS_MIN: Final = 3  # bursts that tell theirs
ODD_BURSTS_MIN: Final = 4  # and which of them is odd
FITTED_BURSTS_MIN: Final = 3  # bursts from which an unknown layer's overhead is fitted
NOISE_ASSUMED_RATIO: Final = 0.02  # 95 % half width of one bin where too few tell
NOISE_LEAST_RATIO: Final = 0.3  # of independent bins' scatter: what bins that trade bytes keep
ABSENT_RATIO: Final = 0.5  # so little at every lag needs no lag to be told
SURER_RATIO: Final = 0.7  # of the bytes' uncertainty: below it the rate of full bins speaks
MARGIN_S: Final = 2.0  # s round a burst, beyond the lag's uncertainty: queues, stray starts
UNSEEN_MARGIN_S: Final = 5.0  # and round a burst with pairs that nobody saw
FREE_FACTOR: Final = 1.5  # of a seen pair's rate: what an unseen one may have sent
SEEN_RATIO: Final = 0.995  # of a burst's pair-seconds: nothing to speak of is unseen
FREE_RATIO: Final = 0.1  # of a bin: what unseen pairs may add before it is no use
AFTER_BINS: Final = 2  # right after a burst: one alone may hold the burst's own last bytes
AFTER_LEAST_RATIO: Final = 0.005  # of the fleet's bytes: less is within what two counters differ by
BESIDE_RATIO: Final = 0.015  # uncertainty of what other runs put into the ledger
# Of a ledger that counts both ways: the other way's TCP acknowledgements. Measured in the lab: 0.1
# to 0.5 % of the payload, as receivers merge 7 to 40 segments before they answer; without that it
# would be one for two segments (RFC 5681, section 4.2), 1.8 %.
ACKNOWLEDGED_RATIO: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A burst of another run through the same device."""

    run_id: str
    burst_index: int
    start_s: int
    received_bytes: Floats  # of the flows that the ledger counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overhead:
    ratio: float
    less_ratio: float  # by which it may be off, 95 %
    more_ratio: float
    how: Literal["recorded", "assumed", "fitted"]
    between_ratio: float  # of its uncertainty: what bursts of one run may differ by
    layer_ratio: float = 0.0  # to either side of what a ledger of unknown layer may count: a
    # bound, which stands beside the interval and not in its root of squares


def _overhead(ledger: FirewallLedger, headers: Headers, seen_ratios: Sequence[float]) -> _Overhead:
    """The ledger's bytes for a byte of payload; ``seen_ratios`` are what bursts show.

    A ledger of unknown layer counts something between payload and frames: with three bursts or
    more their median stands for it, and bursts are told apart more surely than the whole.
    """
    less = more = headers.doubt_ratio
    if headers.assumed and ledger.layer == "ip":
        less, more = OVERHEAD_LESS_RATIO, OVERHEAD_MORE_RATIO
    elif headers.assumed:
        less, more = OVERHEAD_LESS_WIRE_RATIO, OVERHEAD_MORE_WIRE_RATIO
    if len(ledger.flows) > 1:
        less, more = (math.hypot(each, ACKNOWLEDGED_RATIO) for each in (less, more))
    how: Literal["recorded", "assumed", "fitted"] = "assumed" if headers.assumed else "recorded"
    between, layer = more, 0.0
    wire = headers.wire_ratio + (VXLAN_BYTES / MSS_ASSUMED_BYTES if ledger.vxlan else 0.0)
    match ledger.layer:
        case "payload":
            ratio, how, less, more = 1.0, "recorded", OVERHEAD_KNOWN_RATIO, OVERHEAD_KNOWN_RATIO
        case "ip":
            ratio = headers.ip_ratio
        case "wire":
            ratio = wire
        case "unknown":
            ratio = float(np.median(seen_ratios)) if seen_ratios else 0.0
            if len(seen_ratios) >= FITTED_BURSTS_MIN and 1.0 <= ratio <= wire:
                how, between = "fitted", OVERHEAD_KNOWN_RATIO
            else:
                ratio = (1 + wire) / 2
            layer = max(ratio - 1, wire - ratio) / ratio
    return _Overhead(
        ratio=ratio,
        less_ratio=less,
        more_ratio=more,
        how=how,
        between_ratio=between,
        layer_ratio=layer,
    )


def reconcile(
    bursts: Sequence[BurstSeries],
    ledger: FirewallLedger,
    headers: Headers,
    missing: Sequence[Missing],
    *,
    clock_bound_s: float = 0.0,
    neighbours: Sequence[Neighbour] = (),
    absent: Sequence[tuple[float, float]] = (),
    bypassed: bool = False,
    parts_s: Sequence[int | None] = (),
) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    """Reconcile a run: the whole, and each burst in the order given, under one lag.

    ``missing`` has one element a burst; ``absent`` are the spans (epoch s) of planned bursts that
    are not in ``bursts``; ``bypassed`` runs were not to cross the device. ``parts_s`` has, for each
    burst, the length of the parts of its window of which the slowest is asked for, or None. A bin
    that two bursts
    share is split by what each is expected to have in it; what ``neighbours`` put into it is taken
    off first.
    """
    bins = readable(ledger)
    device = _Device(bursts, ledger, headers, bins, neighbours, absent)
    lag = device.lag
    if not lag.known:
        lag = device.crossing_lag()
    shares = [device.share(k, lag) for k in range(len(bursts))]
    bins_a_burst = [share.bins_count for share in shares if share.bins_count]
    idle = device.idle(lag, round(np.median(bins_a_burst)) if bins_a_burst else 1)
    level = 0.0 if idle is None else idle.bytes_per_s
    ratios = [
        (share.ledger_bytes - level * share.width_s) / share.fleet_bytes
        for share in shares
        if share.fleet_bytes > 0
    ]
    held = _Held(
        ledger=ledger,
        lag=lag,
        overhead=_overhead(ledger, headers, ratios),
        idle=idle,
        rejected_count=bins.rejected_count,
        clock_bound_s=clock_bound_s,
        neighbours=tuple(sorted({each.run_id for each in neighbours if each.received_bytes.any()})),
        bypassed=bypassed,
        busy_bytes=device.busy_bytes(lag),
        sent_bytes=sum(share.total_bytes for share in shares),
    )
    gone = Missing(
        pairs_count=sum(part.pairs_count for part in missing),
        share_ratio=_weighted([m.share_ratio for m in missing], [s.fleet_bytes for s in shares]),
        planned_pairs_count=sum(part.planned_pairs_count for part in missing),
    )
    of_mean, of_one = _scatter(ratios)
    one = len(shares) == 1
    doubt = DOUBT_FACTOR if one else DOUBT_FACTOR_OF_MANY
    return (
        _account(held, _sum(shares), gone, DOUBT_FACTOR, whole=True, scatter_ratio=of_mean),
        tuple(
            _account(held, share, part, doubt, whole=one, scatter_ratio=of_one).model_copy(
                update=_slowest(held, share, part_s)
            )
            for share, part, part_s in zip(
                shares, missing, parts_s or [None] * len(shares), strict=True
            )
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What all bursts of a reconciliation have in common."""

    ledger: FirewallLedger
    lag: Lag
    overhead: _Overhead
    idle: IdleLevel | None
    rejected_count: int
    clock_bound_s: float
    neighbours: tuple[str, ...]
    bypassed: bool
    busy_bytes: float  # of the whole ledger, over its usual level
    sent_bytes: float  # payload of all bursts


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 0.0


def _scatter(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % half widths, relative, of the bursts' mean ratio and of one burst's; NaN: too few.

    One burst's, from four on, by the median absolute deviation, so that an odd one stands out
    instead of hiding itself.
    """
    count = len(ratios)
    if count < SCATTER_BURSTS_MIN:
        return math.nan, math.nan
    array = np.array(ratios)
    # Of a device that was bypassed the mean says nothing; a byte of payload is at least a byte.
    size = max(1.0, abs(float(array.mean()))) / t95(count - 1)
    spread = float(array.std(ddof=1))
    if count >= ODD_BURSTS_MIN:
        spread = 1.4826 * float(np.median(np.abs(array - np.median(array))))
    return (
        float(array.std(ddof=1)) / math.sqrt(count) / size,
        spread / size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Bin by bin, in order."""

    ledger: Floats  # bytes
    fleet: Floats
    width: Floats  # s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One burst's part in the ledger, the idle level still in it: over every bin that it may have
    touched, and over those that lie wholly in its steady window."""

    total_bytes: float  # fleet payload of the burst, wherever it falls
    fleet_bytes: float  # of it, in bins that count
    ledger_bytes: float  # the ledger's in those bins; a shared bin's by expected share
    beside_bytes: float  # neighbours' that were taken off those bins
    width_s: float
    bins_count: int  # that hold any of the burst
    moved: tuple["_Moved", "_Moved"]  # the same at either end of the lag's interval
    unseen_bytes: float  # what other bursts' unseen pairs may have added, at most
    tail_bytes: float  # sent and never counted by a receiver: on the way when the test ended
    after_bytes: float  # the ledger's, had it run on over the bins as in quiet right after them
    parts: _Parts  # of the bins that count
    full: _Parts  # of those in the steady window
    fleet_bytes_per_s: float  # in the steady window

    def unsure_ratio(self, level: float) -> float:
        """How far the residual moves over the lag's interval, beside an idle level."""
        net = self.ledger_bytes - level * self.width_s
        if net <= 0 or self.fleet_bytes <= 0:
            return 0.0
        ends = [each for each in self.moved if each.fleet_bytes > 0]
        return max(
            (
                abs(
                    (each.ledger_bytes - level * each.width_s)
                    / each.fleet_bytes
                    * self.fleet_bytes
                    / net
                    - 1
                )
                for each in ends
            ),
            default=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """A burst's part in the ledger, were the lag another."""

    ledger_bytes: float
    fleet_bytes: float
    width_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """One burst's payload over its own seconds."""

    curve: Curve
    first_s: float  # that hold any
    last_s: float

    @classmethod
    def of(cls, burst: BurstSeries) -> "_Steps":
        received = countable(burst.received_bytes)
        total = np.concatenate(([0.0], np.cumsum(received)))
        busy = np.flatnonzero(received > 0)
        planned = (burst.planned_start_s, burst.planned_start_s + burst.duration_s)
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


class _Device:
    """Everything that is known to have gone through the device, and its ledger."""

    def __init__(
        self,
        bursts: Sequence[BurstSeries],
        ledger: FirewallLedger,
        headers: Headers,
        bins: Bins,
        neighbours: Sequence[Neighbour],
        absent: Sequence[tuple[float, float]],
    ) -> None:
        self.bursts, self.bins, self.hint_s = bursts, bins, ledger.lag_hint_s
        self.grain_s = ledger.grain_s
        self.fleet = fleet_curve(bursts)
        self.steps = [_Steps.of(burst) for burst in bursts]
        self.beside: Curve | None = None
        if neighbours:
            ratio = _overhead(ledger, headers, []).ratio
            curve = fleet_curve(neighbours)
            self.beside = replace(curve, total_bytes=curve.total_bytes * ratio)
        rate = _usual_rate(bursts)
        self.free = [_unrecorded(burst, rate) for burst in bursts]
        unseen = [free for free in self.free if free is not None]
        for begin, end in absent:
            seconds = np.arange(math.floor(begin), math.ceil(end), dtype=np.float64)
            unseen.append((seconds, np.full(len(seconds), FREE_FACTOR * rate)))
        self.unrecorded: Curve | None = None
        if unseen and rate > 0:
            self.unrecorded = seconds_curve(
                np.concatenate([seconds for seconds, _ in unseen]),
                np.concatenate([amounts for _, amounts in unseen]),
            )
        self.spans = [
            *(
                _span(burst, step, free)
                for burst, step, free in zip(bursts, self.steps, self.free, strict=True)
            ),
            *((n.start_s, n.start_s + len(n.received_bytes)) for n in neighbours),
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
        """When each bin's traffic passed."""
        return (
            self.bins.start_s - lag.at(self.bins.start_s),
            self.bins.end_s - lag.at(self.bins.end_s),
        )

    def busy_bytes(self, lag: Lag) -> float:
        """All that the ledger holds over its usual level, without what is known of other runs."""
        net = self.bins.bytes - self._beside(*self.true_bins(lag))
        usual = np.median(net / self.bins.width_s) if len(net) else 0.0
        return float(np.maximum(0.0, net - usual * self.bins.width_s).sum())

    def crossing_lag(self) -> Lag:
        """Of a run that shows in no bin: of the lags at which what is known of other runs fits,
        the one at which it would show most."""
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
        """The level of others' steady traffic."""
        if not lag.known and not len(self.bins):
            return None
        start, end = self.true_bins(lag)
        margin = min(lag.uncertainty_s, LAG_MAX_S) + MARGIN_S
        net = replace(self.bins, bytes=np.maximum(0.0, self.bins.bytes - self._beside(start, end)))
        quiet = quiet_bins(start - margin, end + margin, self.spans)
        unread = unread_bins(net.bytes, quiet)
        quiet &= ~unread
        count = sum(step.sent_bytes > 0 for step in self.steps)
        if quiet.sum() >= QUIET_BINS_MIN:
            return from_quiet(net, quiet, bins_a_burst=bins_a_burst, bursts_count=max(1, count))
        fleet = self.fleet.between(start, end)
        sound = ~unread
        if self.unrecorded is not None:
            # Unseen pairs that are few in every burst are a part of the scale.
            sound &= self.unrecorded.between(start, end) <= FREE_RATIO * fleet
        moved = self.fleet.between(start - 0.5, end - 0.5) - self.fleet.between(
            start + 0.5, end + 0.5
        )
        return from_fit(
            net.pick(sound), quiet[sound], fleet[sound], moved[sound], lag.uncertainty_s
        )

    def share(self, number: int, lag: Lag) -> _Share:
        """What the ledger shows of a burst at a lag."""
        burst, step = self.bursts[number], self.steps[number]
        total = step.sent_bytes
        start, end = self.true_bins(lag)
        unsure = lag.uncertainty_s if lag.known else 0.0
        margin = unsure + MARGIN_S
        low = int(np.searchsorted(end, step.first_s - margin, side="right"))
        high = int(np.searchsorted(start, step.last_s + margin, side="left"))
        mine_bins = slice(low, max(low, high))
        start, end = start[mine_bins], end[mine_bins]
        seen = self.bins.bytes[mine_bins]
        width = self.bins.width_s[mine_bins]
        beside = self._beside(start, end)
        mine, part = self._split(number, start, end)
        free = self._others_free(number, start - unsure, end + unsure)
        use = (free <= FREE_RATIO * mine + 1e-9 * max(1.0, total)) & (part > 0) & (total > 0)
        fleet = mine[use]
        ledger = part[use] * (seen - beside)[use]
        got, held = float(fleet.sum()), float(ledger.sum())
        moved = []
        for by_s in (-unsure, unsure):
            other, others_part = self._split(number, start + by_s, end + by_s)
            theirs = self._beside(start + by_s, end + by_s)
            moved.append(
                _Moved(
                    ledger_bytes=float((others_part * (seen - theirs))[use].sum()),
                    fleet_bytes=float(other[use].sum()),
                    width_s=float((others_part * width)[use].sum()),
                )
            )
        received = countable(burst.received_bytes)
        full = np.zeros(len(seen), np.bool_)
        steady = received
        if burst.window is not None:
            first, stop = burst.start_s + burst.window[0], burst.start_s + burst.window[1]
            full = use & (start >= first + unsure - 1e-6) & (end <= stop - unsure + 1e-6)
            full &= mine > 0
            steady = received[burst.window[0] : burst.window[1]]
        sent = float(np.nansum([flow.sent_bytes for flow in burst.flows]))
        return _Share(
            total_bytes=total,
            fleet_bytes=got,
            ledger_bytes=held,
            beside_bytes=float(beside[use].sum()),
            width_s=float((part[use] * width[use]).sum()),
            bins_count=int((fleet > 0).sum()),
            moved=(moved[0], moved[1]),
            unseen_bytes=float(free[use].sum()) / FREE_FACTOR,
            tail_bytes=max(0.0, sent - total),
            after_bytes=self._rate_after(step.last_s, lag) * float((part[use] * width[use]).sum()),
            parts=_Parts(ledger=ledger, fleet=fleet, width=part[use] * width[use]),
            full=_Parts(ledger=(seen - beside)[full], fleet=mine[full], width=width[full]),
            fleet_bytes_per_s=float(steady.mean()) if len(steady) else 0.0,
        )

    def _rate_after(self, end_s: float, lag: Lag) -> float:
        """Bytes a second in the quiet bins right after a burst; 0: there are none.

        Others' traffic that began with the burst and has not ended shows there and nowhere else.
        """
        start, end = self.true_bins(lag)
        margin = min(lag.uncertainty_s, LAG_MAX_S) + MARGIN_S
        quiet = quiet_bins(start - margin, end + margin, self.spans)
        quiet &= ~unread_bins(self.bins.bytes, quiet)
        near = quiet & (start >= end_s) & (start < end_s + margin + AFTER_BINS * self.grain_s)
        after = np.flatnonzero(near)[:AFTER_BINS]
        if len(after) < AFTER_BINS:
            return 0.0
        net = self.bins.bytes[after] - self._beside(start[after], end[after])
        return float((net / self.bins.width_s[after]).min())

    def _beside(self, start: Floats, end: Floats) -> Floats:
        """The ledger's bytes of other runs in each bin."""
        if self.beside is None:
            return np.zeros(len(start))
        return self.beside.between(start, end)

    def _others_free(self, number: int, start: Floats, end: Floats) -> Floats:
        """The most that other bursts' unseen pairs may have sent in each bin."""
        if self.unrecorded is None:
            return np.zeros(len(start))
        free = self.unrecorded.between(start, end)
        own = self.free[number]
        if own is not None:
            free = free - seconds_curve(*own).between(start, end)
        return np.maximum(0.0, free)

    def _split(self, number: int, start: Floats, end: Floats) -> tuple[Floats, Floats]:
        """A burst's payload in each bin, and its part of the bin: by payload where the fleet has
        any in it, all where only its margin reaches."""
        step = self.steps[number]
        mine = step.curve.between(start, end)
        mine[mine < 1e-9 * max(1.0, step.sent_bytes)] = 0.0
        fleet = self.fleet.between(start, end)
        return mine, np.divide(mine, fleet, out=np.ones(len(mine)), where=fleet > 0)


def _usual_rate(bursts: Sequence[BurstSeries]) -> float:
    """Bytes a second of a burst all of whose pairs are on record; 0: nobody is."""
    rates = []
    for burst in bursts:
        received, seen = countable(burst.received_bytes), burst.coverage_ratio
        busy = (received > 0) & (seen > 0)
        if busy.any():
            rates.append(float(np.median(received[busy] / np.minimum(1.0, seen[busy]))))
    return float(np.median(rates)) if rates else 0.0


def _unrecorded(burst: BurstSeries, rate: float) -> tuple[Floats, Floats] | None:
    """Seconds of a planned burst, and the most that its unseen pairs may have sent in each."""
    first = math.floor(burst.planned_start_s)
    seconds = np.arange(first, math.ceil(burst.planned_start_s + burst.duration_s))
    seen = np.zeros(len(seconds))
    place = seconds - burst.start_s
    inside = (place >= 0) & (place < len(burst.coverage_ratio))
    seen[inside] = np.nan_to_num(burst.coverage_ratio[place[inside]])
    if seen.mean() >= SEEN_RATIO:
        return None
    return seconds.astype(np.float64), FREE_FACTOR * rate * np.clip(1 - seen, 0.0, 1.0)


def _span(
    burst: BurstSeries, step: _Steps, free: tuple[Floats, Floats] | None
) -> tuple[float, float]:
    """When a burst may have sent: as planned, as seen, and a little round it."""
    margin = UNSEEN_MARGIN_S if free is not None else 0.0
    end_s = burst.planned_start_s + burst.duration_s
    return (
        min(burst.planned_start_s, step.first_s) - margin,
        max(end_s, step.last_s) + margin,
    )


def _sum(parts: Sequence[_Share]) -> _Share:
    """All bursts as one; its rate is their mean."""
    whole: _Share = _added(parts)
    return replace(whole, fleet_bytes_per_s=whole.fleet_bytes_per_s / len(parts))


def _added(parts: Sequence[Any]) -> Any:
    """Values of one type as one, field by field: numbers added up, bins one after the other."""
    kind: Any = type(parts[0])
    if kind is np.ndarray:
        return np.concatenate(parts)
    if kind is tuple:
        return tuple(map(_added, zip(*parts, strict=True)))
    if kind not in (_Share, _Moved, _Parts):
        return sum(parts)
    names = [item.name for item in fields(kind)]
    return kind(**{name: _added([getattr(part, name) for part in parts]) for name in names})


def _bins_noise(net: Floats, fleet: Floats, width: Floats, *, trades: bool) -> float:
    """95 % half width of the sum of bins by their own scatter, relative; NaN: too few bins.

    Over the bins that are at least half as busy as the busiest. Bins that trade bytes with their
    neighbours at a shared edge lose nothing in the sum: where all of a burst's bins are summed,
    those beside a bin that is not busy tell only what they do not give back, while there are
    enough without them, and the first autocovariance is taken off, down to
    :data:`NOISE_LEAST_RATIO` of what independent bins would show.
    """
    busy = fleet > HALF_FULL_RATIO * width * float((fleet / width).max(initial=0.0))
    edges = np.zeros(len(net), np.bool_)
    if trades:
        walled = np.concatenate(([False], busy, [False]))
        inside = busy & walled[:-2] & walled[2:]
        if inside.sum() >= NOISE_BINS_MIN:
            busy, edges = inside, ~inside
    count = int(busy.sum())
    if count < NOISE_BINS_MIN:
        return math.nan
    scale = float(net[busy].sum() / fleet[busy].sum())
    off = net[busy] / fleet[busy] - scale
    alone = float((off**2).sum()) * count / (count - 1)
    traded = 2 * float((off[1:] * off[:-1]).sum()) if trades else 0.0
    error = math.sqrt(max(alone + traded, NOISE_LEAST_RATIO**2 * alone)) / count
    kept = float((net - scale * fleet)[edges].sum() / fleet.sum())
    return math.hypot(error * t95(count - 1), kept) / max(1.0, scale)


def _account(
    held: _Held,
    share: _Share,
    missing: Missing,
    doubt_factor: float,
    *,
    whole: bool,
    scatter_ratio: float,
) -> Reconciliation:
    ledger, lag, overhead, idle = held.ledger, held.lag, held.overhead, held.idle
    unknown = 1 - share.fleet_bytes / share.total_bytes if share.total_bytes > 0 else 0.0
    full = len(share.full.ledger)
    level = 0.0 if idle is None else idle.bytes_per_s
    base = {
        "source": ledger.source,
        "layer": ledger.layer,
        "grain_s": ledger.grain_s,
        "lag_s": figure(round(lag.lag_s, 2) + 0.0) if lag.known else None,
        "lag_uncertainty_s": figure(lag.uncertainty_s) if lag.known else None,
        "lag_drift_s": figure(lag.drift_s) or 0.0,
        "overhead_ratio": figure(overhead.ratio),
        "overhead_how": overhead.how,
        "layer_ratio": figure(overhead.layer_ratio),
        "unknown_ratio": figure(max(0.0, unknown)) or 0.0,
        "baseline_bits_per_second": None if idle is None else figure(level * 8),
        "baseline_uncertainty_bits_per_second": (
            None if idle is None else figure(max(idle.below, idle.above) * 8)
        ),
        "baseline_how": None if idle is None else idle.how,
        "full_bins_count": full,
        "rejected_bins_count": held.rejected_count,
        "neighbours": held.neighbours,
        "bypassed": held.bypassed,
        "basis": "bytes",
    }
    if share.fleet_bytes <= 0 or share.bins_count == 0 or idle is None:
        return Reconciliation.model_validate(base)
    below, above = (idle.mean_below, idle.mean_above) if whole else (idle.below, idle.above)
    found, *surer = _comparisons(held, share, level, (below, above), scatter_ratio)
    for other in surer:
        apart = abs(other.residual_ratio - found.residual_ratio)
        if apart > other.uncertainty_ratio + found.unheard_ratio:
            continue
        if other.uncertainty_ratio < SURER_RATIO * found.uncertainty_ratio:
            found = other
    absent = (
        found.residual_ratio + found.uncertainty_ratio < -ABSENT_RATIO
        and held.busy_bytes < ABSENT_RATIO * held.sent_bytes  # not anywhere else either
        and unknown < ABSENT_RATIO
    )
    if not (lag.known or held.bypassed or absent):
        return Reconciliation.model_validate(base)
    expected = share.fleet_bytes * overhead.ratio
    if full >= FULL_BINS_MIN:
        rates = share.full.ledger * 8 / share.full.width
        rate = float(share.full.ledger.sum()) * 8 / float(share.full.width.sum())
    else:
        # The fleet's own rate, corrected by how the bytes compare.
        rates = np.zeros(0)
        net = (share.ledger_bytes - level * share.width_s) / share.fleet_bytes
        rate = share.fleet_bytes_per_s * 8 * net + level * 8
    between = found.uncertainty_ratio if whole else found.between_ratio
    return Reconciliation.model_validate(
        base
        | {
            "basis": found.basis,
            "firewall_bits_per_second": figure(rate),
            "crossed_bits_per_second": figure(rate - level * 8),
            "firewall_bytes": figure(found.ledger_bytes),
            "expected_bytes": figure(found.fleet_bytes * overhead.ratio),
            "residual_ratio": figure(found.residual_ratio),
            "residual_uncertainty_ratio": figure(found.uncertainty_ratio),
            "residual_low_ratio": figure(found.residual_ratio - found.below_ratio),
            "residual_high_ratio": figure(found.residual_ratio + found.above_ratio),
            "ledger_cov_ratio": (
                figure(float(rates.std(ddof=1) / rates.mean()))
                if full >= FULL_BINS_MIN and rates.mean() > 0
                else None
            ),
            "causes": ()
            if held.bypassed
            else causes(
                found.residual_ratio,
                between,
                missing=missing,
                foreign_ratio=_foreign_ratio(idle, below, share.width_s / expected),
                foreign_bits_per_second=level * 8,
                unknown_ratio=max(0.0, unknown),
                doubt_factor=doubt_factor,
            ),
        }
    )


def _slowest(held: _Held, share: _Share, part_s: int | None) -> dict[str, float | int | None]:
    """Fields of the slowest part of a burst's window by the device's own bins.

    It is the most that the fleet may have sent through the device in it: of others' traffic only
    what surely ran is taken off, of the headers the least that there may be.
    """
    overhead, idle, grain_s = held.overhead, held.idle, held.ledger.grain_s
    if part_s is None or not held.lag.known or READINGS_A_PART * grain_s > part_s:
        return {}
    count = math.ceil(part_s / grain_s)
    full = share.full
    if len(full.ledger) < 2 * count or held.bypassed:
        return {}
    level = 0.0 if idle is None else max(0.0, idle.bytes_per_s - idle.below)
    least = overhead.ratio * (1 - overhead.less_ratio - overhead.layer_ratio)
    payload = (full.ledger - level * full.width) * 8 / least
    sums = np.concatenate(([0.0], np.cumsum(payload)))
    widths = np.concatenate(([0.0], np.cumsum(full.width)))
    rates = (sums[count:] - sums[:-count]) / (widths[count:] - widths[:-count])
    steps = np.abs(np.diff(payload / full.width))
    return {
        "slowest_bits_per_second": figure(float(rates.min())),
        "slowest_noise_bits_per_second": figure(
            1.4826 * float(np.median(steps)) / math.sqrt(2 * count)
        ),
        "slowest_s": part_s,
    }


def _foreign_ratio(idle: IdleLevel, below: float, s_per_byte: float) -> float | None:
    """Others' steady traffic in parts of the expected bytes; None: it may be none."""
    sure = idle.how != "bounded" and idle.bytes_per_s > below
    return idle.bytes_per_s * s_per_byte if sure else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    basis: Literal["rate", "bytes"]
    ledger_bytes: float  # without the idle level
    fleet_bytes: float
    residual_ratio: float
    below_ratio: float  # from it to the ends of its 95 % interval
    above_ratio: float
    between_ratio: float  # without what all bursts of the run share
    unheard_ratio: float  # of its bytes, what no receiver may have counted

    @property
    def uncertainty_ratio(self) -> float:
        return max(self.below_ratio, self.above_ratio)


def _comparisons(
    held: _Held,
    share: _Share,
    level: float,
    idle_ends: tuple[float, float],
    scatter_ratio: float,
) -> list[_Comparison]:
    """The ways to hold the bytes together.

    Over every bin that the fleet may have touched, what was under way when receivers stopped
    counting is in the ledger and in nobody's seconds; it may be up to what was sent and not
    received, and half of that is allowed for. Over full bins nothing is under way, but there are
    fewer of them, and a lag that drifts inside a burst stretches them all: they count where all
    bytes agree, but for what no receiver heard. Of a run that was to pass the device by, what is
    unsure of bytes that crossed shrinks with them; the idle level's and the neighbours'
    uncertainty stays.
    """
    overhead = held.overhead
    half_tail = share.tail_bytes / share.total_bytes / 2
    found: list[_Comparison] = []
    for rate, parts in ((False, share.parts), (True, share.full)):
        if rate and len(parts.fleet) < NOISE_BINS_MIN:
            continue
        width = float(parts.width.sum())
        fleet = float(parts.fleet.sum()) * (1 if rate else 1 + half_tail)
        expected = fleet * overhead.ratio
        net = parts.ledger - level * parts.width
        crossed = float(net.sum()) / expected
        noise = _bins_noise(net, parts.fleet, parts.width, trades=not rate)
        if not (rate or math.isnan(scatter_ratio)):
            noise = scatter_ratio
        if math.isnan(noise):
            noise = NOISE_ASSUMED_RATIO / math.sqrt(max(1, share.bins_count))
        unheard = 0.0 if rate else math.hypot(share.unseen_bytes / share.fleet_bytes, half_tail)
        unsure = math.hypot(
            noise,
            held.clock_bound_s / max(1.0, width),
            0.0 if rate else share.unsure_ratio(level),
            unheard,
        )
        shrinks = min(1.0, abs(crossed)) if held.bypassed else 1.0
        beside = BESIDE_RATIO * share.beside_bytes / share.fleet_bytes
        below, above = (
            math.hypot(unsure, each) * shrinks
            for each in (overhead.more_ratio, overhead.less_ratio)
        )
        layer = overhead.layer_ratio * shrinks
        idle_below, idle_above = (each * width / expected for each in idle_ends)
        # What the bins right after show above the level's interval may have run during the burst.
        lasting = share.after_bytes / max(share.width_s, 1e-9) * width / expected
        lasting = max(0.0, lasting - level * width / expected - idle_above)
        if lasting < AFTER_LEAST_RATIO or held.bypassed:
            lasting = 0.0
        shared = held.idle is not None and held.idle.how != "quiet"
        found.append(
            _Comparison(
                basis="rate" if rate else "bytes",
                ledger_bytes=float(net.sum()),
                fleet_bytes=fleet,
                residual_ratio=crossed if held.bypassed else crossed - 1,
                below_ratio=math.hypot(below, idle_above, beside) + layer + lasting,
                above_ratio=math.hypot(above, idle_below, beside) + layer,
                between_ratio=math.hypot(
                    unsure,
                    overhead.between_ratio,
                    0.0 if shared else max(idle_below, idle_above),
                    beside,
                ),
                unheard_ratio=unheard,
            )
        )
    return found
