"""How far a firewall's ledger runs behind the fleet: a robust fit of one against the other.

The ledger's bin labelled ``[s, e)`` speaks of ``[s - lag, e - lag)``. At a trial lag the ledger is
modelled as ``scale x fleet bytes in the shifted bin + idle level x width``, plus whatever the pairs
and bursts that were planned and are not on record may have sent: a bin that they reach may hold
anything up to that without cost. Scale and idle level are fitted by least absolute deviations
(iteratively reweighted: P. W. Holland and R. E. Welsch, Communications in Statistics A6, 1977), so
that traffic of others in a minority of bins bends nothing; the lag with the least absolute misfit
wins, every bin at a burst's edge with its full weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger

LAG_MIN_S: Final = -60.0
LAG_MAX_S: Final = 300.0
BITS_PER_SECOND_MAX: Final = 1e15  # no device carries more: a counter that wrapped
ROUNDS: Final = 6  # of reweighting
CELLS_MAX: Final = 150_000  # bins x trial lags of the first search
RIVAL_RATIO: Final = 0.25  # of a burst's bytes: a lag that explains so little less is a rival
BASIN_RATIO: Final = 0.02  # of a burst's bytes: a dip in the misfit that is no basin of its own
EXPLAINED_RATIO: Final = 0.5  # of what the fleet's own ups and downs would explain, at least
SCALE_MIN: Final = 0.005  # of the fleet's bytes: less in the ledger tells no lag
EXPLAINED_LEAST_RATIO: Final = 0.02  # and of a burst's bytes
JITTER_RATIO: Final = 0.01  # of a full bin: what an edge moves by itself
SIGMAS: Final = 3.0  # of the misfit's own noise: lags within it fit alike
FLOOR_S: Final = 0.1  # s; the fleet's seconds are even inside, its bursts are not
FLOOR_RATIO: Final = 0.03  # of the grain
NOISE_MAX_RATIO: Final = 0.1  # of a bin; more is no noise but a misfit
CHANGED_SIGMAS: Final = 0.1  # of a bin's noise: what a lag must move to be told apart by it
MINIMA_MAX: Final = 6  # of the first search that are searched again
FINE_COUNT: Final = 17  # trial lags round a minimum
PERIODIC_BURSTS_MIN: Final = 4  # bursts that may be taken for their neighbours
PERIODS_MAX: Final = 12  # periods off that are looked at
ALIKE_COUNT: Final = 41  # trial lags round the best
NEAR_BINS: Final = 1.25  # lags no farther apart may be one plateau: a burst inside one bin
SHARP_RATIO: Final = 0.05  # of a bin: lags so near that the best of them is meant
PLATEAU_S: Final = 2.0  # s to either side that fit alike: a plateau, on which a hint decides
MARGIN_S: Final = 2.0
DRIFT_RATIO: Final = 0.03  # of a burst's bytes: what its own lag must explain to show a drift
DRIFTING_RATIO: Final = 0.5  # of the bursts that must show it
DRIFT_STEP_S: Final = 60.0  # s by which neighbouring bursts' lags differ at most
DRIFT_COUNT: Final = 121  # trial lags of one burst
ALIAS_RATIO: Final = 0.45  # of the bursts' period: farther off, a burst is taken for the next
COVERED_RATIO: Final = 0.9  # of a burst's surroundings that the ledger must know


class Traffic(Protocol):
    """Payload second by second on the UTC grid, from ``start_s`` on (epoch s)."""

    @property
    def start_s(self) -> int: ...
    @property
    def received_bytes(self) -> Floats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Cumulative bytes over time: linear between knots, flat outside."""

    at_s: Floats  # epoch s, increasing
    total_bytes: Floats

    def between(self, start_s: Floats, end_s: Floats) -> Floats:
        """Bytes in each span."""
        return np.interp(end_s, self.at_s, self.total_bytes) - np.interp(
            start_s, self.at_s, self.total_bytes
        )


def fleet_curve(bursts: Sequence[Traffic]) -> Curve:
    """Sum bursts into one cumulative curve; bursts may overlap and come in any order."""
    seconds = np.concatenate(
        [burst.start_s + np.arange(len(burst.received_bytes)) for burst in bursts]
    )
    amounts = np.concatenate([countable(burst.received_bytes) for burst in bursts])
    return seconds_curve(seconds, amounts)


def countable(amounts: Floats) -> Floats:
    """Bytes that can have been sent: what is unknown, negative or infinite is none."""
    return np.maximum(0.0, np.nan_to_num(amounts, nan=0.0, posinf=0.0, neginf=0.0))


def seconds_curve(seconds: Floats, amounts: Floats) -> Curve:
    """The cumulative curve of ``amounts`` in whole seconds, which may repeat."""
    unique, place = np.unique(seconds, return_inverse=True)
    summed = np.bincount(place, weights=amounts, minlength=len(unique))
    knots = np.empty(2 * len(unique))
    knots[0::2], knots[1::2] = unique, unique + 1
    totals = np.zeros(2 * len(unique))
    totals[1::2] = np.cumsum(summed)
    totals[2::2] = totals[1:-1:2]
    return Curve(at_s=knots, total_bytes=totals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """What of a ledger can be read: known bytes, in time order, none over another."""

    start_s: Floats
    end_s: Floats
    bytes: Floats
    rejected_count: int = 0  # bins that no device can have counted: negative, infinite, reversed

    @property
    def width_s(self) -> Floats:
        return self.end_s - self.start_s

    def __len__(self) -> int:
        return len(self.start_s)

    def pick(self, chosen: NDArray[np.bool_]) -> "Bins":
        return Bins(
            start_s=self.start_s[chosen], end_s=self.end_s[chosen], bytes=self.bytes[chosen]
        )


def readable(ledger: FirewallLedger) -> Bins:
    """The bins that a ledger knows; unknown ones are left out, impossible ones also counted."""
    start, end, seen = ledger.start_s, ledger.end_s, ledger.bytes
    order = np.argsort(start, kind="stable")
    start, end, seen = start[order], end[order], seen[order]
    with np.errstate(invalid="ignore"):
        placed = np.isfinite(start) & np.isfinite(end) & (end > start)
        possible = (seen >= 0) & (seen * 8 <= BITS_PER_SECOND_MAX * (end - start))
        reached = np.fmax.accumulate(np.where(placed, end, -np.inf))
        apart = np.ones(len(start), np.bool_)
        apart[1:] = start[1:] >= reached[:-1] - 1e-6
    known = placed & possible & apart
    rejected = int((~np.isnan(seen) & ~known).sum())
    return Bins(start_s=start[known], end_s=end[known], bytes=seen[known], rejected_count=rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far the ledger's labels run behind, and how sure that is."""

    lag_s: float
    uncertainty_s: float
    known: bool
    scale: float = 0.0  # ledger's bytes for a byte of payload, of the fit
    drift_at_s: Floats | None = None  # labels at which ``drift_lag_s`` was seen; None: no drift
    drift_lag_s: Floats | None = None

    def at(self, label_s: Floats) -> Floats:
        """The lag at each label."""
        if self.drift_at_s is None or self.drift_lag_s is None:
            return np.full(len(label_s), self.lag_s)
        return np.interp(label_s, self.drift_at_s, self.drift_lag_s)

    @property
    def drift_s(self) -> float:
        """From the first burst to the last."""
        lags = self.drift_lag_s
        return 0.0 if lags is None else float(lags[-1] - lags[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known to have gone through the device, and what may have."""

    fleet: Curve  # payload
    bursts: Sequence[tuple[float, float, float]]  # first and last second, payload bytes of each
    unrecorded: Curve | None = None  # the most that planned pairs may have sent off the record
    beside: Curve | None = None  # of other runs, in the ledger's bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    loss: Floats  # absolute misfit a lag
    scale: Floats
    idle: Floats  # bytes a second


def estimate_lag(bins: Bins, known: Known, *, grain_s: float, hint_s: float | None = None) -> Lag:
    """Fit the lag over :data:`LAG_MIN_S` .. :data:`LAG_MAX_S`, and its drift over the bursts.

    It is *known* when the fleet's ups and downs explain at least half of what they would, when no
    lag elsewhere explains nearly as much, and when those that fit alike span no more than two
    bins. A burst that lies inside one bin fits wherever the bin holds it: the middle, or the hint.
    """
    fallback = 0.0 if hint_s is None else hint_s
    nothing = Lag(lag_s=fallback, uncertainty_s=LAG_MAX_S - LAG_MIN_S, known=False)
    curve = known.fleet
    # Of alike runs in a row each could be the one before it, and this one beyond the ledger's end,
    # were it not for the first of them.
    first_s = curve.at_s[0] if known.beside is None else min(curve.at_s[0], known.beside.at_s[0])
    reach = (bins.end_s > first_s + LAG_MIN_S - grain_s) & (
        bins.start_s < curve.at_s[-1] + LAG_MAX_S + grain_s
    )
    bins = bins.pick(reach)
    if len(bins) < 3 or bins.bytes.max() <= 0 or curve.total_bytes[-1] <= 0:
        return nothing
    found, rivals = _search(bins, known, grain_s)
    again = _fit(np.array([found.lag_s]), bins, known)
    scale = float(again.scale[0])
    drifted = _drift(bins, known, found, grain_s)
    if drifted is not None:
        return drifted
    if scale <= SCALE_MIN or not _explains(bins, known, found.lag_s, again):
        return nothing
    low_s, high_s, wide = _alike(bins, known, found, grain_s)
    middle_s, half_s = (low_s + high_s) / 2, (high_s - low_s) / 2
    if half_s <= max(FLOOR_S, SHARP_RATIO * grain_s):
        middle_s = _sharpened(bins, known, found, middle_s, max(half_s, 0.2))
    if half_s > PLATEAU_S and hint_s is not None and low_s <= hint_s <= high_s:
        middle_s, half_s = hint_s, max(hint_s - low_s, high_s - hint_s)
    if rivals or wide:
        chosen = fallback if hint_s is not None else middle_s
        return Lag(lag_s=chosen, uncertainty_s=LAG_MAX_S - LAG_MIN_S, known=False, scale=scale)
    return Lag(
        lag_s=middle_s,
        uncertainty_s=half_s + max(FLOOR_S, FLOOR_RATIO * grain_s),
        known=True,
        scale=scale,
    )


def _sharpened(bins: Bins, known: Known, found: "_Trial", lag_s: float, reach_s: float) -> float:
    """The best of the lags so near, to a hundredth of a second or of their span."""
    trial = np.linspace(lag_s - reach_s, lag_s + reach_s, ALIKE_COUNT)
    moves = np.ptp(_at_lags(known.fleet, trial[[0, -1]], bins), axis=0) > 0
    loss = _edge_loss(trial, bins.pick(moves), known, found)
    return float(trial[int(np.argmin(loss))])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    lag_s: float
    loss: float
    scale: float
    idle: float


def _search(bins: Bins, known: Known, grain_s: float) -> tuple[_Trial, bool]:
    """The best lag, and whether a rival elsewhere explains nearly as much.

    Trial lags are coarse at first; the best few minima are searched again, finely.
    """
    step = _step_s(known, grain_s)
    coarse = np.arange(LAG_MIN_S, LAG_MAX_S + step / 2, step)
    few = _merged(bins, len(coarse), step)
    loss = _fit(coarse, few, known).loss
    before, after = np.append(np.inf, loss[:-1]), np.append(loss[1:], np.inf)
    minima = np.flatnonzero((loss <= before) & (loss <= after))
    # Between its neighbours a misfit falls and rises like a V: as deep as the steeper side says.
    side = np.stack((before, after))[:, minima]
    side[~np.isfinite(side)] = np.nan
    depth = (loss[minima] + np.nanmin(side, axis=0) - (np.nanmax(side, axis=0) - loss[minima])) / 2
    minima = minima[np.argsort(depth, kind="stable")][:MINIMA_MAX]
    found = _refined(coarse[minima].astype(np.float64), step, few, known)
    best = min(found, key=lambda trial: trial.loss)
    # Of many bursts a first search sees little but how well their period fits.
    every_s = _period_s(known)
    if every_s:
        places = best.lag_s + every_s * np.arange(-PERIODS_MAX, PERIODS_MAX + 1, dtype=np.float64)
        places = places[(places >= LAG_MIN_S) & (places <= LAG_MAX_S)]
        found += _refined(places, step / 4, few, known)
    best = min(found, key=lambda trial: trial.loss)
    if best.scale <= 0:
        return best, False
    fleet = _at_lag(known.fleet, best.lag_s, few)
    tells = best.scale * min(_typical(known), _spread(fleet, few.width_s, None))
    noise = _noise(few, best, known, best.lag_s)
    rival = False
    for trial in found:
        if abs(trial.lag_s - best.lag_s) <= NEAR_BINS * grain_s + 2 * MARGIN_S:
            continue
        between = (coarse > min(trial.lag_s, best.lag_s)) & (coarse < max(trial.lag_s, best.lag_s))
        ridge = float(loss[between].max(initial=0.0)) - trial.loss
        apart = np.abs(_at_lag(known.fleet, trial.lag_s, few) - fleet)
        changed = apart * best.scale > noise
        blur = SIGMAS * float(np.sqrt((noise[changed] ** 2).sum()))
        if ridge >= BASIN_RATIO * tells and trial.loss - best.loss <= max(
            RIVAL_RATIO * tells, blur
        ):
            rival = True
    return best, rival


def _refined(places: Floats, reach_s: float, bins: Bins, known: Known) -> list[_Trial]:
    """The best lag round each place."""
    trials = places[:, None] + np.linspace(-reach_s, reach_s, FINE_COUNT)
    fit = _fit(trials.ravel(), bins, known)
    best = fit.loss.reshape(trials.shape).argmin(axis=1) + np.arange(len(places)) * FINE_COUNT
    return [
        _Trial(
            lag_s=float(trials.ravel()[place]),
            loss=float(fit.loss[place]),
            scale=float(fit.scale[place]),
            idle=float(fit.idle[place]),
        )
        for place in best
    ]


def _period_s(known: Known) -> float:
    """How far bursts are apart; 0: too few, or too far for one to be taken for the next."""
    starts = np.sort([first for first, _, payload in known.bursts if payload > 0])
    if len(starts) < PERIODIC_BURSTS_MIN:
        return 0.0
    every_s = float(np.median(np.diff(starts)))
    return every_s if 0 < every_s < LAG_MAX_S - LAG_MIN_S else 0.0


def _noise(bins: Bins, trial: _Trial, known: Known, lag_s: float) -> Floats:
    """Standard deviation of each bin's bytes: relative, by the middling misfit of busy bins.

    Of other runs at the trial's own lag, of the rest at ``lag_s``.
    """
    fleet = _at_lag(known.fleet, lag_s, bins)
    model = trial.scale * fleet + trial.idle * bins.width_s
    off = bins.bytes - _at_lag(known.beside, trial.lag_s, bins) - model
    if known.unrecorded is not None:
        off = off - np.clip(off, 0.0, _at_lag(known.unrecorded, lag_s, bins))
    busy = (fleet > 0) & (model > 0)
    ratio = 1.4826 * float(np.median(np.abs(off[busy]) / model[busy])) if busy.any() else 0.0
    full = trial.scale * float(fleet.max(initial=0.0))
    return np.hypot(min(NOISE_MAX_RATIO, ratio) * bins.bytes, JITTER_RATIO * full)


def _alike(bins: Bins, known: Known, found: _Trial, grain_s: float) -> tuple[float, float, bool]:
    """First and last of the lags round the best that fit alike, and whether there is no end of
    them within a bin or so."""
    lag_s = found.lag_s
    for reach_s in (PLATEAU_S, NEAR_BINS * grain_s + MARGIN_S):
        trial = np.linspace(lag_s - reach_s, lag_s + reach_s, ALIKE_COUNT)
        moves = np.ptp(_at_lags(known.fleet, trial[[0, ALIKE_COUNT // 2, -1]], bins), axis=0) > 0
        if not moves.any():
            continue
        if len(bins) * ALIKE_COUNT <= CELLS_MAX:
            loss = _fit(trial, bins, known).loss
        else:
            loss = _edge_loss(trial, bins.pick(moves), known, found)
        fleet = _at_lags(known.fleet, trial, bins.pick(moves))
        best = int(np.argmin(loss))
        noise = _noise(bins, found, known, float(trial[best]))[moves]
        changed = np.abs(fleet - fleet[best]) * found.scale > CHANGED_SIGMAS * noise
        blur = np.hypot(np.sqrt((changed * noise**2).sum(axis=1)), float(noise.min()))
        near = loss - loss[best] <= SIGMAS * blur
        low, high = _run(near, best)
        if low > 0 and high < len(trial) - 1:
            return float(trial[low]), float(trial[high]), False
    return lag_s - reach_s, lag_s + reach_s, True


def _typical(known: Known) -> float:
    """Payload of a middling burst."""
    return float(np.median([payload for *_, payload in known.bursts if payload > 0]))


def _step_s(known: Known, grain_s: float) -> float:
    """Trial lags are a third of the shortest burst or gap apart, at most ten seconds."""
    spans = sorted((first, last) for first, last, payload in known.bursts if payload > 0)
    lengths = [last - first for first, last in spans]
    gaps = [b[0] - a[1] for a, b in pairwise(spans) if b[0] > a[1]]
    shortest = min([*lengths, *gaps])
    return float(np.clip(max(shortest / 3, grain_s / 6), 1.0, 10.0))


def _merged(bins: Bins, lags_count: int, step_s: float) -> Bins:
    """Neighbouring bins added up where there are more than a first search can take."""
    count = min(
        int(np.ceil(len(bins) * lags_count / CELLS_MAX)),
        max(1, int(step_s / float(np.median(bins.width_s)))),
    )
    if count <= 1:
        return bins
    gaps = np.flatnonzero(np.abs(bins.start_s[1:] - bins.end_s[:-1]) > 1e-6) + 1
    firsts = np.concatenate(
        [
            np.arange(begin, end, count)
            for begin, end in zip([0, *gaps], [*gaps, len(bins)], strict=True)
        ]
    )
    lasts = np.append(firsts[1:], len(bins)) - 1
    return Bins(
        start_s=bins.start_s[firsts],
        end_s=bins.end_s[lasts],
        bytes=np.add.reduceat(bins.bytes, firsts),
    )


def _at_lags(curve: Curve | None, lags: Floats, bins: Bins) -> Floats:
    """Bytes in each shifted bin; shape (lags, bins)."""
    if curve is None:
        return np.zeros((1, len(bins)))
    begin, stop = bins.start_s - lags[:, None], bins.end_s - lags[:, None]
    return curve.between(begin.ravel(), stop.ravel()).reshape(begin.shape)


def _at_lag(curve: Curve | None, lag_s: float, bins: Bins) -> Floats:
    """Bytes in each bin, shifted by one lag."""
    return np.asarray(_at_lags(curve, np.array([lag_s]), bins)[0])


def _fit(lags: Floats, bins: Bins, known: Known) -> _Fit:
    """Scale and idle level of least absolute misfit at each lag, neither below zero."""
    width = bins.width_s
    fleet = _at_lags(known.fleet, lags, bins)
    free = None if known.unrecorded is None else _at_lags(known.unrecorded, lags, bins)
    seen = bins.bytes - _at_lags(known.beside, lags, bins)
    near_zero = 1e-3 * float(np.abs(bins.bytes).mean()) + 1e-9
    target, weight = seen, np.ones_like(fleet)
    fw, ww_w = fleet * width, width * width
    ff = fleet * fleet
    scale = idle = np.zeros(len(lags))
    off, part = np.empty_like(fleet), np.empty_like(fleet)
    for _ in range(ROUNDS):
        s_ff, s_fw = _dot(weight, ff), _dot(weight, fw)
        s_ww = weight @ ww_w
        weighted = np.multiply(weight, target, out=part)
        s_fy, s_wy = _dot(weighted, fleet), weighted @ width
        det = s_ff * s_ww - s_fw**2
        sound = det > 1e-9 * s_ff * s_ww
        scale = np.divide(s_fy * s_ww - s_wy * s_fw, det, out=np.zeros(len(lags)), where=sound)
        idle = np.divide(s_wy * s_ff - s_fy * s_fw, det, out=np.zeros(len(lags)), where=sound)
        alone = np.divide(s_fy, s_ff, out=np.zeros(len(lags)), where=s_ff > 0)
        scale = np.where((idle < 0) | ~sound, alone, scale)
        idle = np.where((idle < 0) | ~sound, 0.0, idle)
        idle = np.where(scale <= 0, np.maximum(0.0, s_wy / s_ww), idle)
        scale = np.maximum(0.0, scale)
        np.subtract(seen, np.multiply(scale[:, None], fleet, out=part), out=off)
        off -= np.multiply(idle[:, None], width, out=part)
        if free is not None:
            held = np.minimum(np.maximum(off, 0.0, out=part), free, out=part)
            off -= held
            target = seen - held
        np.divide(1, np.maximum(np.abs(off, out=weight), near_zero, out=weight), out=weight)
    return _Fit(loss=np.abs(off).sum(axis=1), scale=scale, idle=idle)


def _dot(one: Floats, other: Floats) -> Floats:
    """Row by row."""
    return np.asarray(np.einsum("ij,ij->i", one, other))


def _explains(bins: Bins, known: Known, lag_s: float, fit: _Fit) -> bool:
    """Whether the fleet's ups and downs are in the ledger at all."""
    fleet = _at_lag(known.fleet, lag_s, bins)
    seen = bins.bytes - _at_lag(known.beside, lag_s, bins)
    free = None if known.unrecorded is None else _at_lag(known.unrecorded, lag_s, bins)
    could = float(fit.scale[0]) * _spread(fleet, bins.width_s, None)
    does = _spread(seen, bins.width_s, free) - float(fit.loss[0])
    least = EXPLAINED_LEAST_RATIO * float(fit.scale[0]) * _typical(known)
    return does >= max(least, EXPLAINED_RATIO * could)


def _spread(amounts: Floats, width: Floats, free: Floats | None) -> float:
    """Absolute misfit of the best even level."""
    rate = amounts / width
    if free is None:
        order = np.argsort(rate)
        below = np.cumsum(width[order])
        middle = rate[order][int(np.searchsorted(below, below[-1] / 2))]
        return float(np.abs(amounts - middle * width).sum())
    levels = np.quantile(rate, np.linspace(0, 1, 41))[:, None]
    off = amounts - levels * width
    return float(np.abs(off - np.clip(off, 0.0, free)).sum(axis=1).min())


def _edge_loss(lags: Floats, bins: Bins, known: Known, found: _Trial) -> Floats:
    """Misfit at each lag, at the scale and idle level that another lag gave."""
    off = (
        bins.bytes
        - _at_lags(known.beside, lags, bins)
        - found.scale * _at_lags(known.fleet, lags, bins)
        - found.idle * bins.width_s
    )
    if known.unrecorded is not None:
        off = off - np.clip(off, 0.0, _at_lags(known.unrecorded, lags, bins))
    return np.asarray(np.abs(off).sum(axis=1))


def _run(near: NDArray[np.bool_], centre: int) -> tuple[int, int]:
    """First and last of the run of true values around a place."""
    low = high = centre
    while low > 0 and near[low - 1]:
        low -= 1
    while high < len(near) - 1 and near[high + 1]:
        high += 1
    return low, high


def _drift(bins: Bins, known: Known, common: _Trial, grain_s: float) -> Lag | None:
    """Lags of single bursts, one after the other, where they fit much better than one lag for all
    and no burst's lag is far from its neighbour's; else None."""
    spans = sorted(burst for burst in known.bursts if burst[2] > 0)
    if len(spans) < 2 or common.scale <= SCALE_MIN:
        return None
    found: list[tuple[float, float, float]] = []  # label, lag, half of those that fit alike
    gains_count = 0
    expected_s = common.lag_s
    every_s = min(b[0] - a[0] for a, b in pairwise(spans))
    for first, last, payload in spans:
        reach_s = min(DRIFT_STEP_S, max(2 * grain_s, last - first), ALIAS_RATIO * every_s)
        trial = np.linspace(expected_s - reach_s, expected_s + reach_s, DRIFT_COUNT)
        inside = (bins.end_s > first + trial[0] - grain_s) & (
            bins.start_s < last + trial[-1] + grain_s
        )
        mine = bins.pick(inside)
        if float(mine.width_s.sum()) < COVERED_RATIO * (last - first + 2 * reach_s):
            continue
        loss = _edge_loss(np.append(trial, common.lag_s), mine, known, common)
        least = float(loss.min())
        blur = JITTER_RATIO * common.scale * payload * min(1.0, grain_s / (last - first))
        near = np.flatnonzero(loss[:-1] - least <= blur)
        if not len(near):
            continue
        own_s = float((trial[near[0]] + trial[near[-1]]) / 2)
        gains_count += loss[-1] - least > DRIFT_RATIO * common.scale * payload
        found.append(((first + last) / 2 + own_s, own_s, float(np.ptp(trial[near])) / 2))
        expected_s = own_s
    if len(found) < 2 or gains_count < DRIFTING_RATIO * len(found):
        return None
    at, lags, halves = (np.array(column) for column in zip(*found, strict=True))
    if np.ptp(lags) <= max(1.0, grain_s / 10):
        return None
    return Lag(
        lag_s=float(np.median(lags)),
        uncertainty_s=float(halves.max()) + max(FLOOR_S, FLOOR_RATIO * grain_s),
        known=True,
        scale=common.scale,
        drift_at_s=at,
        drift_lag_s=lags,
    )
