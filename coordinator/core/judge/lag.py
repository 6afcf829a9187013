"""Lag between a device counter's labels and the fleet's traffic.

The counter's bin labelled ``[s, e)`` holds the traffic of ``[s - lag, e - lag)``. At a trial lag a
bin is predicted as ``scale x fleet bytes in the shifted bin + idle level x width``, and up to what
planned pairs and bursts without a record may have sent costs nothing.

1. Search: every lag of the range by least absolute deviations. Given the lag this problem is
   convex, so only the lag needs a grid.
2. Refinement: Tukey's biweight (A. E. Beaton and J. W. Tukey, Technometrics 16, 1974), which does
   not average a bin that holds something else into the fit. A bin with too many bytes costs at
   most :data:`BIN_COST_MAX`.
3. Decision: lags within :data:`COST_LIMIT` of the best fit are the interval. If a lag farther than
   about one bin fits nearly as well (:func:`_rival_cost`), two lags fit, and the lag is unknown.

A lag that grows linearly over the run is claimed only if it explains :data:`EVIDENCE_COST`, of more
than one burst, that no single lag explains. Up to :data:`CLOCK_PPM_MAX` it is the device's clock;
more is a delay that changes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.judge.counter_bins import Bins, Curve
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.steady import t95

LAG_MIN_S: Final = -60.0
LAG_MAX_S: Final = 300.0
CELLS_MAX: Final = 150_000  # bins x trial lags of the search
ABSOLUTE_ROUNDS: Final = 12  # of reweighting
BOUNDED_ROUNDS: Final = 4
NEAR_ZERO_RATIO: Final = 1e-3  # of a mean bin: smaller misfits weigh alike
MINIMA_MAX: Final = 24  # minima of the search that are searched again
FINE_COUNT: Final = 17  # trial lags around a minimum
ZOOMS: Final = 3  # around a minimum, each eight times finer
WINDOW_COUNT: Final = 24  # trial lags to each side of the best one
# 95 % efficiency for normal noise (Holland and Welsch, Communications in Statistics A6, 1977).
BIWEIGHT_SIGMAS: Final = 4.685
# The biweight's largest value, in units of a log likelihood.
BIN_COST_MAX: Final = BIWEIGHT_SIGMAS**2 / 6
MAD_SIGMAS: Final = 1.4826  # of normal noise, in median absolute deviations
MAD_EFFICIENCY: Final = 0.37  # P. J. Huber, Robust Statistics, 1981, section 5.1
FITTED_COUNT: Final = 3  # lag, scale, idle level
COST_LIMIT: Final = 4.5  # three standard deviations of normal noise; more than one bin can cost
UNDER_WEIGHT: Final = 3.0  # of too few bytes: other traffic fills a bin, nothing empties it
JITTER_RATIO: Final = 0.01  # of a full bin: what an edge moves by itself
FEW_BINS_RATIO: Final = 0.027  # noise of a bin where too few show their own: the 280 s reference's
NOISE_BINS_MIN: Final = 8  # bins that show their own noise
# The record of a burst that begins at a share f of a second is even over the second: f (1 - f) of
# its bytes are too early. That is a sixth on average over f, and at most a quarter.
SECOND_ERROR_S: Final = 0.167
FLOOR_S: Final = 0.25
DIGITS: Final = 2  # of a second: the same from a packed record, which has rounded its bytes
EXPLAINED_RATIO: Final = 0.5  # of what the fleet's own ups and downs would explain, at least
LEVELS_COUNT: Final = 41  # levels of a counter without the fleet
SCALE_MIN: Final = 0.005  # of the fleet's bytes: less in the counter shows no lag
SCALE_RATIO: Final = 0.5  # of the best fit's scale: a lag that finds less of the fleet is none
NEAR_BINS: Final = 1.25  # lags no farther apart may be one plateau: a burst inside one bin
MARGIN_S: Final = 2.0
DRIFT_MAX_S: Final = 60.0  # over the run
DRIFT_BURSTS_MIN: Final = 3  # two bursts cannot show that a lag grows steadily
DRIFT_CELLS_MAX: Final = 300_000  # bins x trials of its search
EVIDENCE_COST: Final = 4 * BIN_COST_MAX  # 5e-7 by chance for one trial, 5e-5 for a hundred lags
RIVALS_RATIO: Final = 0.001  # of stated lags: another one may be the true lag
CLOCK_PPM_MAX: Final = 500.0  # MAXFREQ of Linux's adjtimex: no kernel clock is slewed faster


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lag of the counter's labels, and its interval."""

    lag_s: float
    uncertainty_s: float
    known: bool
    scale: float = 0.0  # the counter's bytes for a byte of payload, of the fit
    drift_at_s: Floats | None = None  # labels at which ``drift_lag_s`` was seen; None: no drift
    drift_lag_s: Floats | None = None

    def at(self, label_s: Floats) -> Floats:
        """Return the lag at each label."""
        if self.drift_at_s is None or self.drift_lag_s is None:
            return np.full(len(label_s), self.lag_s)
        return np.interp(label_s, self.drift_at_s, self.drift_lag_s)

    @property
    def drift_s(self) -> float:
        """Growth of the lag from the first burst to the last."""
        lags = self.drift_lag_s
        return 0.0 if lags is None else float(lags[-1] - lags[0])


def is_clock(drift_s: float, over_s: float) -> bool:
    """Return whether a device's clock can be off by a growing lag; else its delay changes."""
    return abs(drift_s) <= CLOCK_PPM_MAX * 1e-6 * over_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known to have gone through the device, and what may have."""

    fleet: Curve  # payload
    bursts: Sequence[tuple[float, float, float]]  # first and last second, payload bytes of each
    unrecorded: Curve | None = None  # the most that planned pairs may have sent off the record
    beside: Curve | None = None  # of other runs, in the ledger's bytes


def estimate_lag(bins: Bins, known: Known, *, grain_s: float, hint_s: float | None = None) -> Lag:
    """Estimate the lag within :data:`LAG_MIN_S` .. :data:`LAG_MAX_S`, and its growth over the run.

    Args:
        bins: The counter's readable bins.
        known: What crossed the device, and what may have.
        grain_s: Nominal length of a bin.
        hint_s: The lag that the operator stated. It decides only between lags that fit alike.

    Returns:
        The lag with an interval of three standard deviations. It is not *known* if the fleet's ups
        and downs explain less than half of what they would, or if lags that are more than about a
        bin apart fit alike.
    """
    bins = _within_reach(bins, known, grain_s)
    unknown = Lag(lag_s=hint_s or 0.0, uncertainty_s=LAG_MAX_S - LAG_MIN_S, known=False)
    if len(bins) < 3 or bins.bytes.max() <= 0 or known.fleet.total_bytes[-1] <= 0:
        return unknown
    step_s = _step_s(known, grain_s)
    few = _View(_merged(bins, step_s), known)
    full = _View(bins, known)
    found = _search(few, step_s, np.zeros(1))
    drift, doubtful_s = _drift(few, found, step_s)
    if drift is not None:
        found = _search(few, step_s, drift.drift_s)
    best = found.pick([found.best])
    scale = float(best.scale[0])
    if scale <= SCALE_MIN or not _explains(few, best):
        return unknown
    near_s = NEAR_BINS * grain_s + MARGIN_S
    apart = _rivals_apart(few, found, near_s) and _rivals_apart(full, found, near_s)
    interval = None if apart else _interval(full, best, near_s)
    if interval is None:
        lag_s = float(best.lag_s[0]) if hint_s is None else hint_s
        return replace(unknown, lag_s=lag_s, scale=scale)
    low_s, lag_s, high_s = interval
    if hint_s is not None and high_s - low_s > 2 * MARGIN_S and low_s <= hint_s <= high_s:
        lag_s = hint_s
    result = Lag(
        lag_s=round(lag_s, DIGITS),
        uncertainty_s=round(
            math.hypot(max(high_s - lag_s, lag_s - low_s), FLOOR_S) + doubtful_s, DIGITS
        ),
        known=True,
        scale=scale,
    )
    return result if drift is None else _drifting(result, full, best)


def _within_reach(bins: Bins, known: Known, grain_s: float) -> Bins:
    """Bins that a burst touches at some lag of the range, and other runs before it.

    Of alike runs in a row each could be the one before it, and this one beyond the counter's end,
    if the first of them were not looked at.
    """
    curve, beside = known.fleet, known.beside
    first_s = curve.at_s[0] if beside is None else min(curve.at_s[0], beside.at_s[0])
    return bins.pick(
        (bins.end_s > first_s + LAG_MIN_S - grain_s)
        & (bins.start_s < curve.at_s[-1] + LAG_MAX_S + grain_s)
    )


def _search(view: "_View", step_s: float, drift_s: Floats) -> "_Trials":
    """Fit lags of the whole range, then around every minimum.

    Returns:
        The finest trials around every minimum, with their bounded cost.
    """
    lags = np.arange(LAG_MIN_S, LAG_MAX_S + step_s / 2, step_s)
    cost = view.least_absolute(lags, np.repeat(drift_s, len(lags))).cost
    before, after = np.append(np.inf, cost[:-1]), np.append(cost[1:], np.inf)
    minima = np.flatnonzero((cost <= before) & (cost <= after))
    count = int(np.clip(CELLS_MAX // (FINE_COUNT * len(view.bins)), 4, MINIMA_MAX))
    places = lags[minima[np.argsort(cost[minima], kind="stable")][:count]]
    for zoom in range(ZOOMS):
        reach_s = step_s / 8**zoom
        trials = (places[:, None] + np.linspace(-reach_s, reach_s, FINE_COUNT)).ravel()
        found = view.least_absolute(trials, np.repeat(drift_s, len(trials)))
        rows = found.cost.reshape(len(places), FINE_COUNT).argmin(axis=1)
        places = trials[rows + FINE_COUNT * np.arange(len(places))]
    for _ in range(2):  # the second time with the noise of the bounded fit
        sigma, least = view.sigma(found), SCALE_RATIO * float(found.scale[found.best])
        found = view.bounded(found, sigma, least)
    return found


def _rivals_apart(view: "_View", found: "_Trials", near_s: float) -> bool:
    """Whether lags farther apart than about one bin fit alike.

    Lags at which most of the fleet is outside of the counter's bins explain nothing. They do not
    count.
    """
    limit = _rival_cost(near_s)
    alive = found.pick(found.cost < found.cost.min() + limit)
    best = alive.pick([alive.best])
    fits = view.bounded(alive, view.sigma(best), SCALE_RATIO * float(best.scale[0]))
    found_bytes = fits.scale * view.parts(fits.lag_s, fits.drift_s)[0].sum(axis=1)
    near = fits.cost < fits.cost.min() + limit
    rivals = fits.lag_s[near & (found_bytes >= SCALE_RATIO * found_bytes[fits.best])]
    return float(np.ptp(rivals)) > near_s + MARGIN_S


def _rival_cost(near_s: float) -> float:
    """Return by how much a lag must fit worse than the best one to be no rival.

    Costs are log likelihoods. Before the counter is read, each lag of the range is as probable as
    another, so ``range / near_s`` lags compete. Together they have at most the probability
    :data:`RIVALS_RATIO` if each fits worse by this (Bayes' theorem).
    """
    return math.log((LAG_MAX_S - LAG_MIN_S) / near_s / RIVALS_RATIO)


def _interval(view: "_View", best: "_Trials", reach_s: float) -> tuple[float, float, float] | None:
    """First, middle and last of the lags around the best that fit alike; None: no end in reach."""
    sigma, least = view.sigma(best), SCALE_RATIO * float(best.scale[0])

    def above(lag_s: Floats) -> Floats:
        start = best.pick(np.zeros(len(lag_s), np.intp))
        return view.bounded(replace(start, lag_s=lag_s), sigma, least).cost

    side = reach_s * np.geomspace(1e-3, 1.0, WINDOW_COUNT)
    offsets = np.concatenate((-side[::-1], [0.0], side))
    lag_s = best.lag_s + offsets
    lag_s = lag_s[above(lag_s).argmin()] + offsets
    cost = above(lag_s)
    limit = float(cost.min()) + COST_LIMIT
    near, centre = np.flatnonzero(cost <= limit), np.flatnonzero(cost <= cost.min() + 0.5)
    low, high = int(near[0]), int(near[-1])
    if low == 0 or high == len(lag_s) - 1:
        return None
    ends = [np.linspace(lag_s[at], lag_s[at + by], FINE_COUNT) for at, by in ((low, -1), (high, 1))]
    first_s, last_s = (float(end[np.flatnonzero(above(end) <= limit)[-1]]) for end in ends)
    return first_s, float(lag_s[centre[[0, -1]]].mean()), last_s


def _step_s(known: Known, grain_s: float) -> float:
    """Trial lags are a third of the shortest burst or gap apart, at most ten seconds."""
    spans = sorted((first, last) for first, last, payload in known.bursts if payload > 0)
    lengths = [last - first for first, last in spans]
    gaps = [b[0] - a[1] for a, b in pairwise(spans) if b[0] > a[1]]
    shortest = min([*lengths, *gaps])
    return float(np.clip(max(shortest / 3, grain_s / 6), 1.0, 10.0))


def _merged(bins: Bins, step_s: float) -> Bins:
    """Add up neighbouring bins that are finer than the search."""
    count = max(1, int(step_s / float(np.median(bins.width_s))))
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


def _explains(view: "_View", best: "_Trials") -> bool:
    """Whether the fleet's ups and downs are in the counter at all.

    Either they explain half of what they would, or more than chance does over all trial lags: long
    bursts explain little of the sum of all bins' noise, but every edge of theirs.
    """
    sigma, scale = view.sigma(best), float(best.scale[0])
    fleet, seen, free = (part[0] for part in view.parts(best.lag_s, best.drift_s))
    even_loss, even_cost = view.even_level(seen, free, sigma)
    could, _ = view.even_level(scale * fleet, np.zeros_like(free), sigma)
    explained = even_loss - float(_absolute(view.misfit(best))[0])
    gain = even_cost - float(best.cost[0])
    half = explained >= EXPLAINED_RATIO * could and gain >= BIN_COST_MAX / 2
    return half or gain >= EVIDENCE_COST


def _drift(view: "_View", found: "_Trials", step_s: float) -> tuple["_Trials | None", float]:
    """Search a lag that grows linearly over the run.

    It must explain :data:`EVIDENCE_COST` more than any single lag does, and not by one burst alone:
    a burst whose bins hold something else, or whose record is wrong, is no drift.

    Returns:
        The fit, or None where no growth is beyond doubt; and by how much a lag that may grow all
        the same is off at either end, in s.
    """
    starts = np.sort([first for first, _, payload in view.known.bursts if payload > 0])
    if len(starts) < DRIFT_BURSTS_MIN or found.scale[found.best] <= SCALE_MIN:
        return None, 0.0
    grown = _search_drift(view, found.pick([found.best]), step_s)
    sigma = view.sigma(grown)
    least = SCALE_RATIO * float(grown.scale[0])
    single = view.bounded(found, sigma, least)
    single, grown = single.pick([single.best]), view.bounded(grown, sigma, least)
    gain = _bin_cost(view.misfit(single)[0], sigma) - _bin_cost(view.misfit(grown)[0], sigma)
    burst = np.searchsorted(starts[1:], view.bins.start_s - float(grown.lag_s[0]), side="right")
    by_burst = np.bincount(burst, weights=gain)
    if float(by_burst.sum() - by_burst.max()) >= EVIDENCE_COST:
        return grown, 0.0
    doubtful = float(by_burst.sum()) > COST_LIMIT
    return None, abs(float(grown.drift_s[0])) / 2 if doubtful else 0.0


def _search_drift(view: "_View", common: "_Trials", step_s: float) -> "_Trials":
    """Least absolute misfit over lag and growth, around the best single lag."""
    cells = DRIFT_CELLS_MAX / len(view.bins)
    spacing_s = max(step_s, DRIFT_MAX_S * float(np.sqrt(2 / cells)))
    reach_s = np.array([DRIFT_MAX_S / 2, DRIFT_MAX_S])
    centre = np.array([common.lag_s[0], 0.0])
    axes = [np.linspace(-each, each, 2 * math.ceil(each / spacing_s) + 1) for each in reach_s]
    lag_s, drift_s = (axis.ravel() for axis in np.meshgrid(*axes))
    coarse = common.pick(np.zeros(len(lag_s), np.intp))
    coarse = replace(coarse, lag_s=centre[0] + lag_s, drift_s=drift_s)
    place = int(np.abs(view.misfit(coarse)).sum(axis=1).argmin())
    best = coarse.pick([place])
    offsets = np.linspace(-1.0, 1.0, 9)
    for zoom in range(4):
        by_s = spacing_s / 4**zoom
        lag_s, drift_s = (axis.ravel() for axis in np.meshgrid(offsets * by_s, 2 * offsets * by_s))
        tried = view.least_absolute(best.lag_s + lag_s, best.drift_s + drift_s)
        best = tried.pick([tried.best])
    return best


def _drifting(lag: Lag, view: "_View", drift: "_Trials") -> Lag:
    """The lag with its growth, whose own interval widens that of the lag."""
    sigma = view.sigma(drift)
    least = SCALE_RATIO * float(drift.scale[0])
    side = DRIFT_MAX_S * np.geomspace(1e-3, 1.0, WINDOW_COUNT)
    offsets = np.concatenate((-side[::-1], [0.0], side))
    start = drift.pick(np.zeros(len(offsets), np.intp))
    tried = view.bounded(
        replace(start, lag_s=np.full(len(offsets), lag.lag_s), drift_s=start.drift_s + offsets),
        sigma,
        least,
    )
    near = tried.drift_s[tried.cost <= tried.cost.min() + COST_LIMIT]
    grown_s = round(float(near[0] + near[-1]) / 2, DIGITS)
    return replace(
        lag,
        uncertainty_s=round(lag.uncertainty_s + float(np.ptp(near)) / 4, DIGITS),
        drift_at_s=np.array([view.first_s, view.last_s]),
        drift_lag_s=lag.lag_s + grown_s * np.array([-0.5, 0.5]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trials:
    """Trial lags, with the fit that each allows; all arrays have one element a trial."""

    lag_s: Floats  # at the middle of the bursts
    drift_s: Floats  # growth of the lag from the first burst to the last
    scale: Floats  # the counter's bytes for a byte of payload
    idle: Floats  # bytes a second
    cost: Floats

    def pick(self, chosen: Any) -> "_Trials":
        return _Trials(**{each.name: getattr(self, each.name)[chosen] for each in fields(self)})

    @property
    def best(self) -> int:
        return int(np.argmin(self.cost))


class _View:
    """Bins and what is known to have crossed the device, shifted by any trial lag."""

    def __init__(self, bins: Bins, known: Known) -> None:
        self.bins, self.known, self.width = bins, known, bins.width_s
        self.first_s = float(min(first for first, *_ in known.bursts))
        self.last_s = float(max(last for _, last, _ in known.bursts))

    def growth(self, label_s: Floats) -> Floats:
        """Share of the drift at each label: -0.5 at the first burst, 0.5 at the last one's end."""
        return np.interp(label_s, [self.first_s, self.last_s], [-0.5, 0.5])

    def shifted(self, curve: Curve | None, lag_s: Floats, drift_s: Floats) -> Floats:
        """Bytes of a curve in each bin; shape (trials, bins)."""
        if curve is None:
            return np.zeros((1, len(self.bins)))
        begin, stop = (
            edge - lag_s[:, None] - drift_s[:, None] * self.growth(edge)
            for edge in (self.bins.start_s, self.bins.end_s)
        )
        return curve.between(begin.ravel(), stop.ravel()).reshape(begin.shape)

    def parts(self, lag_s: Floats, drift_s: Floats) -> tuple[Floats, Floats, Floats]:
        """Fleet's payload, counted bytes without other runs', and unrecorded bytes at most."""
        known = self.known
        seen = self.bins.bytes - self.shifted(known.beside, lag_s, drift_s)
        free = self.shifted(known.unrecorded, lag_s, drift_s)
        fleet = self.shifted(known.fleet, lag_s, drift_s)
        return fleet, np.broadcast_to(seen, fleet.shape), np.broadcast_to(free, fleet.shape)

    def misfit(self, trials: _Trials) -> Floats:
        """Bytes by which each bin is outside of what the fit allows; shape (trials, bins)."""
        fleet, seen, free = self.parts(trials.lag_s, trials.drift_s)
        off = seen - trials.scale[:, None] * fleet - trials.idle[:, None] * self.width
        return off - np.clip(off, 0.0, free)

    def least_absolute(self, lag_s: Floats, drift_s: Floats) -> _Trials:
        """Fit scale and idle level by least absolute deviations at each lag.

        A bin that unrecorded bytes reach costs nothing between the fit and the fit plus these
        bytes: distances from both ends, less a constant, which is convex too.
        """
        fleet, seen, free = self.parts(lag_s, drift_s)
        floor = NEAR_ZERO_RATIO * float(np.abs(self.bins.bytes).mean()) + 1e-9
        weight, target = np.ones_like(fleet), seen - free / 2
        scale = idle = np.zeros(len(lag_s))
        for _ in range(ABSOLUTE_ROUNDS):
            scale, idle = self._solve(weight, target, fleet, np.zeros(len(lag_s)))
            off = seen - scale[:, None] * fleet - idle[:, None] * self.width
            low = np.where(off < 0, UNDER_WEIGHT - 0.5, 0.5) / np.maximum(np.abs(off), floor)
            high = 0.5 / np.maximum(np.abs(off - free), floor)
            weight = low + high
            target = seen - free * high / weight
        cost = _absolute(off - np.clip(off, 0.0, free))
        return _Trials(lag_s=lag_s, drift_s=drift_s, scale=scale, idle=idle, cost=cost)

    def bounded(self, trials: _Trials, sigma: Floats, least_scale: float) -> _Trials:
        """Refit each trial under Tukey's biweight, from its own scale and idle level."""
        fleet, seen, free = self.parts(trials.lag_s, trials.drift_s)
        scale, idle = np.maximum(trials.scale, least_scale), trials.idle
        least = np.full(len(scale), least_scale)
        for _ in range(BOUNDED_ROUNDS):
            off = seen - scale[:, None] * fleet - idle[:, None] * self.width
            held = np.clip(off, 0.0, free)
            weight = (_inside(off - held, sigma) ** 2 + 1e-12) / sigma**2
            scale, idle = self._solve(weight, seen - held, fleet, least)
        fitted = replace(trials, scale=scale, idle=idle)
        return replace(fitted, cost=_biweight(self.misfit(fitted), sigma))

    def even_level(self, seen: Floats, free: Floats, sigma: Floats) -> tuple[float, float]:
        """Absolute misfit and bounded cost of the best constant rate without the fleet."""
        levels = np.quantile(seen / self.width, np.linspace(0, 1, LEVELS_COUNT))[:, None]
        off = seen - levels * self.width
        off -= np.clip(off, 0.0, free)
        return float(_absolute(off).min()), float(_biweight(off, sigma).min())

    def _solve(
        self, weight: Floats, target: Floats, fleet: Floats, least: Floats
    ) -> tuple[Floats, Floats]:
        """Weighted least squares, row by row: scale not below ``least``, idle not below zero."""
        width = self.width
        weighted = weight * fleet
        s_ff, s_fw = (weighted * fleet).sum(axis=1), weighted @ width
        s_fy, s_wy, s_ww = (
            (weighted * target).sum(axis=1),
            (weight * target) @ width,
            weight @ width**2,
        )
        det = s_ff * s_ww - s_fw**2
        sound = det > 1e-9 * s_ff * s_ww
        none = np.zeros(len(s_ff))
        scale = np.divide(s_fy * s_ww - s_wy * s_fw, det, out=none.copy(), where=sound)
        idle = np.divide(s_wy * s_ff - s_fy * s_fw, det, out=none.copy(), where=sound)
        alone = np.divide(s_fy, s_ff, out=none, where=s_ff > 0)
        scale = np.maximum(np.where((idle < 0) | ~sound, alone, scale), least)
        idle = np.where(scale <= least, (s_wy - scale * s_fw) / s_ww, idle)
        return scale, np.where(sound, np.maximum(0.0, idle), 0.0)

    def sigma(self, trials: _Trials) -> Floats:
        """Standard deviation of each bin's bytes at the best fit.

        It is the median misfit of the bins with traffic, or the scatter of those without from one
        to the next: other traffic scatters during the bursts as it does beside them.
        """
        one = trials.pick([trials.best])
        fleet, seen, free = (part[0] for part in self.parts(one.lag_s, one.drift_s))
        full = float(one.scale[0]) * float((fleet / self.width).max(initial=0.0))
        alone = free <= 0
        busy = (np.abs(self.misfit(one)[0]) / self.width)[alone & (fleet > 0)]
        quiet = np.abs(np.diff((seen / self.width)[alone & (fleet <= 0)])) / math.sqrt(2)
        least = JITTER_RATIO if len(busy) >= NOISE_BINS_MIN else FEW_BINS_RATIO
        even = max(_scatter(busy), _scatter(quiet), least * full, 1e-9) * self.width
        return np.hypot(even, SECOND_ERROR_S * full)


def _scatter(sizes: Floats) -> float:
    """Standard deviation from the sizes of errors; larger where few tell it (Student's t)."""
    if not len(sizes):
        return 0.0
    freedom = max(2.0, MAD_EFFICIENCY * (len(sizes) - FITTED_COUNT))
    return MAD_SIGMAS * float(np.median(sizes)) * t95(freedom) / t95(math.inf)


def _absolute(off: Floats) -> Floats:
    """Sum of the absolute misfits, row by row."""
    return np.asarray(np.maximum(off, -UNDER_WEIGHT * off).sum(axis=-1))


def _inside(off: Floats, sigma: Floats) -> Floats:
    """Root of the biweight's weights: 1 at the fit, 0 from :data:`BIWEIGHT_SIGMAS` on."""
    return np.maximum(
        0.0, 1 - (off / (BIWEIGHT_SIGMAS * sigma)) ** 2 / np.where(off < 0, UNDER_WEIGHT, 1.0)
    )


def _bin_cost(off: Floats, sigma: Floats) -> Floats:
    """Tukey's biweight of each bin's misfit, in units of a log likelihood."""
    return BIN_COST_MAX * np.where(off < 0, UNDER_WEIGHT, 1.0) * (1 - _inside(off, sigma) ** 3)


def _biweight(off: Floats, sigma: Floats) -> Floats:
    """Sum over the bins, row by row."""
    return np.asarray(_bin_cost(off, sigma).sum(axis=-1))
