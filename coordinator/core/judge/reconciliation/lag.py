"""Estimation of the lag between a device counter's time stamps and the fleet's traffic.

A bin with the time stamps ``[s, e)`` contains the traffic of ``[s - lag, e - lag)``. For a trial
lag, a bin is predicted to have ``scale x fleet bytes in the shifted bin + idle level x width``.
Additional bytes have no cost if planned pairs or bursts without a record may have sent them.

1. Search: all lags on a grid are tried with least absolute deviations. For a given lag the problem
   is convex, so no other value needs a grid.
2. Refinement: Tukey's biweight (A. E. Beaton and J. W. Tukey, Technometrics 16, 1974). A few bins
   with other traffic then do not change the fit, because a bin with too many bytes costs at most
   :data:`BIN_COST_MAX`.
3. Decision: the interval contains the lags with a cost within :data:`COST_LIMIT` of the best fit. A
   rival is a lag that fits nearly as well (:func:`_rival_cost`) and is more than about one bin
   away. If there is a rival, the lag is unknown.

The lag may also grow linearly over the run. Growth is accepted only if it improves the fit by
:data:`EVIDENCE_COST`, and in more than one burst. An error of the device clock can cause growth up
to :data:`CLOCK_PPM_MAX`. If the growth is larger, the delay itself will change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.reconciliation.counter_bins import Bins, Curve
from broadside.coordinator.core.measure.formulas.steady import t95

LAG_MIN_S: Final = -60.0
LAG_MAX_S: Final = 300.0
# Limit for bins x trial lags in the search.
CELLS_MAX: Final = 150_000
# Rounds of reweighting.
ABSOLUTE_ROUNDS: Final = 12
BOUNDED_ROUNDS: Final = 4
# Misfits below this share of a mean bin all have the same weight.
NEAR_ZERO_RATIO: Final = 1e-3
# Number of minima to search again with a finer grid.
MINIMA_MAX: Final = 24
# Number of trial lags around a minimum.
FINE_COUNT: Final = 17
# How often the grid around a minimum is refined. Each grid is eight times finer.
ZOOMS: Final = 3
# Number of trial lags on each side of the best one.
WINDOW_COUNT: Final = 24
# With this limit the biweight has an efficiency of 95 % for normal noise (Holland and Welsch,
# Communications in Statistics A6, 1977).
BIWEIGHT_SIGMAS: Final = 4.685
# Largest value of the biweight, as a log likelihood.
BIN_COST_MAX: Final = BIWEIGHT_SIGMAS**2 / 6
# Standard deviation of normal noise, in median absolute deviations.
MAD_SIGMAS: Final = 1.4826
# Efficiency of the median absolute deviation (P. J. Huber, Robust Statistics, 1981, section 5.1).
MAD_EFFICIENCY: Final = 0.37
# Number of fitted values: lag, scale and idle level.
FITTED_COUNT: Final = 3
# Cost of three standard deviations of normal noise. It is higher than the cost of one bin.
COST_LIMIT: Final = 4.5
# Missing bytes have this weight, because other traffic can add bytes to a bin but cannot remove
# them.
UNDER_WEIGHT: Final = 3.0
# Share of a full bin that can move to its neighbour.
JITTER_RATIO: Final = 0.01
# Noise of a bin if there are too few bins to estimate it. It was measured in the original test,
# which had bins of 280 s.
FEW_BINS_RATIO: Final = 0.027
# The noise is estimated only from this number of bins or more.
NOISE_BINS_MIN: Final = 8
# Each second's bytes are spread evenly over it. If a burst starts at a fraction f of a second, a
# share of f (1 - f) of these bytes is placed too early. The mean over all f is 1/6, the maximum
# 1/4.
SECOND_ERROR_S: Final = 0.167
FLOOR_S: Final = 0.25
# The result is rounded to this number of decimal digits (s). Packed records have rounded bytes and
# must still give the same result.
DIGITS: Final = 2
# The lag is known only if the fleet explains at least this share of the changes that it predicts.
EXPLAINED_RATIO: Final = 0.5
# Number of constant levels to try for a model without the fleet.
LEVELS_COUNT: Final = 41
# If the counter has a smaller share of the fleet bytes, we cannot estimate the lag.
SCALE_MIN: Final = 0.005
# A lag with a lower scale, relative to the best fit, is not accepted.
SCALE_RATIO: Final = 0.5
# Lags within this number of bins can fit equally well, because a whole burst can be inside one bin.
NEAR_BINS: Final = 1.25
MARGIN_S: Final = 2.0
# Largest lag growth in the run.
DRIFT_MAX_S: Final = 60.0
# Growth is searched with this number of bursts or more. You cannot use two to see if a lag grows
# steadily.
DRIFT_BURSTS_MIN: Final = 3
# Limit for bins x trials in the search for growth.
DRIFT_CELLS_MAX: Final = 300_000
# By chance, one trial has this improvement with a probability of 5e-7, and a hundred lags with
# 5e-5.
EVIDENCE_COST: Final = 4 * BIN_COST_MAX
# Accepted probability that another lag is the true one.
RIVALS_RATIO: Final = 0.001
# A kernel clock cannot be adjusted faster (MAXFREQ in adjtimex of Linux).
CLOCK_PPM_MAX: Final = 500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lag of a counter's time stamps, with its interval.

    Attributes:
        lag_s: Lag in s. If the lag grows, it is the value in the middle of the run.
        uncertainty_s: Half width of the interval, in s.
        known: True if only one lag fits.
        scale: Counted bytes per payload byte in the fit.
        drift_at_s: Time stamps for ``drift_lag_s`` (epoch s). None if the lag does not grow.
        drift_lag_s: Lag at these time stamps, in s.
    """

    lag_s: float
    uncertainty_s: float
    known: bool
    scale: float = 0.0
    drift_at_s: Floats | None = None
    drift_lag_s: Floats | None = None

    def at(self, label_s: Floats) -> Floats:
        """Return the lag at each time stamp."""
        if self.drift_at_s is None or self.drift_lag_s is None:
            return np.full(len(label_s), self.lag_s)
        return np.interp(label_s, self.drift_at_s, self.drift_lag_s)

    @property
    def drift_s(self) -> float:
        """Lag growth from the first burst to the last."""
        lags = self.drift_lag_s
        return 0.0 if lags is None else float(lags[-1] - lags[0])


def is_clock(drift_s: float, over_s: float) -> bool:
    """Return True if a clock error can explain the growth of the lag.

    Otherwise the delay itself will change.

    Args:
        drift_s: Lag growth.
        over_s: Time in which the lag grows.
    """
    return abs(drift_s) <= CLOCK_PPM_MAX * 1e-6 * over_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Known and possible traffic through the device.

    Attributes:
        fleet: Fleet payload.
        bursts: First second, last second and payload (bytes) of each burst.
        unrecorded: Bytes that planned pairs may have sent without a record, at most.
        beside: Bytes of other runs at the counter layer.
    """

    fleet: Curve
    bursts: Sequence[tuple[float, float, float]]
    unrecorded: Curve | None = None
    beside: Curve | None = None


def estimate_lag(bins: Bins, known: Known, *, grain_s: float, hint_s: float | None = None) -> Lag:
    """Estimate the lag between :data:`LAG_MIN_S` and :data:`LAG_MAX_S`, and its growth.

    Args:
        bins: Readable counter bins.
        known: Known and possible traffic through the device.
        grain_s: Nominal bin length.
        hint_s: Lag that the operator configured. It is used only to choose between lags that fit
            equally well. None if it configured none.

    Returns:
        The lag with an interval of three standard deviations. ``known`` is false if the fleet
        explains less than half of the changes that it predicts. It is also false if two lags that
        are more than about one bin apart fit equally well.
    """
    bins = _within_reach(bins, known, grain_s)
    unknown = Lag(lag_s=hint_s or 0.0, uncertainty_s=LAG_MAX_S - LAG_MIN_S, known=False)
    if len(bins) < 3 or bins.bytes.max() <= 0 or known.fleet.total_bytes[-1] <= 0:
        return unknown
    step_s = _step_s(known, grain_s)
    few = _View(_merged(bins, step_s), known)
    full = _View(bins, known)
    matched = _search(few, step_s, np.zeros(1))
    drift, doubtful_s = _drift(few, matched, step_s)
    if drift is not None:
        matched = _search(few, step_s, drift.drift_s)
    best = matched.pick([matched.best])
    scale = float(best.scale[0])
    if scale <= SCALE_MIN or not _explains(few, best):
        return unknown
    near_s = NEAR_BINS * grain_s + MARGIN_S
    gap = _rivals_are_distinct(few, matched, near_s) and _rivals_are_distinct(full, matched, near_s)
    interval = None if gap else _interval(full, best, near_s)
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
    """Return the bins that the bursts or earlier runs can touch at any lag.

    Earlier runs are included because they can look the same as this run. If they were left out,
    this run could be matched with the traffic of an earlier one.
    """
    curve, beside = known.fleet, known.beside
    first_s = curve.at_s[0] if beside is None else min(curve.at_s[0], beside.at_s[0])
    return bins.pick(
        (bins.end_s > first_s + LAG_MIN_S - grain_s)
        & (bins.start_s < curve.at_s[-1] + LAG_MAX_S + grain_s)
    )


def _search(view: "_View", step_s: float, drift_s: Floats) -> "_Trials":
    """Try all lags in the range, then search around each minimum.

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
        result = view.least_absolute(trials, np.repeat(drift_s, len(trials)))
        rows = result.cost.reshape(len(places), FINE_COUNT).argmin(axis=1)
        places = trials[rows + FINE_COUNT * np.arange(len(places))]
    # The second round uses the noise from the bounded fit of the first.
    for _ in range(2):
        sigma, least = view.sigma(result), SCALE_RATIO * float(result.scale[result.best])
        result = view.bounded(result, sigma, least)
    return result


def _rivals_are_distinct(view: "_View", best_trials: "_Trials", near_s: float) -> bool:
    """Return True if lags that are more than about one bin apart fit equally well.

    A lag that moves most of the fleet bytes outside the bins is not counted, because it explains
    nothing.
    """
    limit = _rival_cost(near_s)
    alive = best_trials.pick(best_trials.cost < best_trials.cost.min() + limit)
    best = alive.pick([alive.best])
    fits = view.bounded(alive, view.sigma(best), SCALE_RATIO * float(best.scale[0]))
    result_bytes = fits.scale * view.parts(fits.lag_s, fits.drift_s)[0].sum(axis=1)
    near = fits.cost < fits.cost.min() + limit
    rivals = fits.lag_s[near & (result_bytes >= SCALE_RATIO * result_bytes[fits.best])]
    return float(np.ptp(rivals)) > near_s + MARGIN_S


def _rival_cost(near_s: float) -> float:
    """Return the difference in cost above which a lag is no longer a rival.

    A cost is a negative log likelihood. Before the counter is read, all lags in the range are
    equally probable, so ``range / near_s`` lags compete. If each of them fits worse by this
    difference, their total probability is at most :data:`RIVALS_RATIO` (Bayes' theorem).
    """
    return math.log((LAG_MAX_S - LAG_MIN_S) / near_s / RIVALS_RATIO)


def _interval(view: "_View", best: "_Trials", reach_s: float) -> tuple[float, float, float] | None:
    """Return the first, middle and last lag that fit nearly as well as the best one, in s.

    None if an end of the interval is not within ``reach_s``.
    """
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
    """Return the step between trial lags, in s.

    It is a third of the shortest burst or gap, but at most ten seconds.
    """
    spans = sorted((first, last) for first, last, payload in known.bursts if payload > 0)
    lengths = [last - first for first, last in spans]
    gaps = [b[0] - a[1] for a, b in pairwise(spans) if b[0] > a[1]]
    shortest = min([*lengths, *gaps])
    return float(np.clip(max(shortest / 3, grain_s / 6), 1.0, 10.0))


def _merged(bins: Bins, step_s: float) -> Bins:
    """Merge neighbouring bins that are shorter than the search step."""
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
    """Return True if changes in the fleet's traffic are visible in the counter.

    The fleet needs to explain half of the changes that it predicts, or more than chance can explain
    for all trial lags. The second condition is needed for long bursts. A long burst explains its
    edges well, but only little of the total noise.
    """
    sigma, scale = view.sigma(best), float(best.scale[0])
    fleet, seen, free = (part[0] for part in view.parts(best.lag_s, best.drift_s))
    even_loss, even_cost = view.even_level(seen, free, sigma)
    could, _ = view.even_level(scale * fleet, np.zeros_like(free), sigma)
    explained = even_loss - float(_absolute(view.misfit(best))[0])
    gain = even_cost - float(best.cost[0])
    half = explained >= EXPLAINED_RATIO * could and gain >= BIN_COST_MAX / 2
    return half or gain >= EVIDENCE_COST


def _drift(view: "_View", best_trials: "_Trials", step_s: float) -> tuple["_Trials | None", float]:
    """Search for a lag that grows linearly over the run.

    It needs to fit better than any constant lag by :data:`EVIDENCE_COST`, even without the burst
    that gains most. So a single burst with other traffic or a wrong record is not taken for a
    growing lag.

    Returns:
        The fit, or None if the growth is not certain. The second value is the possible error at
        each end of the run in s, in case the lag grows although this is not certain.
    """
    starts = np.sort([first for first, _, payload in view.known.bursts if payload > 0])
    if len(starts) < DRIFT_BURSTS_MIN or best_trials.scale[best_trials.best] <= SCALE_MIN:
        return None, 0.0
    grown = _search_drift(view, best_trials.pick([best_trials.best]), step_s)
    sigma = view.sigma(grown)
    least = SCALE_RATIO * float(grown.scale[0])
    single = view.bounded(best_trials, sigma, least)
    single, grown = single.pick([single.best]), view.bounded(grown, sigma, least)
    gain = _bin_cost(view.misfit(single)[0], sigma) - _bin_cost(view.misfit(grown)[0], sigma)
    burst = np.searchsorted(starts[1:], view.bins.start_s - float(grown.lag_s[0]), side="right")
    by_burst = np.bincount(burst, weights=gain)
    if float(by_burst.sum() - by_burst.max()) >= EVIDENCE_COST:
        return grown, 0.0
    doubtful = float(by_burst.sum()) > COST_LIMIT
    return None, abs(float(grown.drift_s[0])) / 2 if doubtful else 0.0


def _search_drift(view: "_View", common: "_Trials", step_s: float) -> "_Trials":
    """Search for lag and growth around the best constant lag, with least absolute deviations."""
    cells = DRIFT_CELLS_MAX / len(view.bins)
    spacing_s = max(step_s, DRIFT_MAX_S * float(np.sqrt(2 / cells)))
    reach_s = np.array([DRIFT_MAX_S / 2, DRIFT_MAX_S])
    centre = np.array([common.lag_s[0], 0.0])
    axes = [
        np.linspace(-reach_, reach_, 2 * math.ceil(reach_ / spacing_s) + 1) for reach_ in reach_s
    ]
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
    """Return the lag with its growth, and add the growth's uncertainty to the interval."""
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
    """Trial lags with their fits. All arrays have one element per trial.

    Attributes:
        lag_s: Lag in the middle of the bursts.
        drift_s: Lag growth from the first burst to the last.
        scale: Counted bytes per payload byte.
        idle: Idle level, in bytes/s.
        cost: Cost of the fit.
    """

    lag_s: Floats
    drift_s: Floats
    scale: Floats
    idle: Floats
    cost: Floats

    def pick(self, chosen: Any) -> "_Trials":
        return _Trials(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    @property
    def best(self) -> int:
        return int(np.argmin(self.cost))


class _View:
    """Counter bins and known traffic, to be shifted by trial lags."""

    def __init__(self, bins: Bins, known: Known) -> None:
        self.bins, self.known, self.width = bins, known, bins.width_s
        self.first_s = float(min(first for first, *_ in known.bursts))
        self.last_s = float(max(last for _, last, _ in known.bursts))

    def growth(self, label_s: Floats) -> Floats:
        """Return which part of the growth applies at each time stamp, from -0.5 to 0.5."""
        return np.interp(label_s, [self.first_s, self.last_s], [-0.5, 0.5])

    def shifted(self, curve: Curve | None, lag_s: Floats, drift_s: Floats) -> Floats:
        """Return how many bytes of a curve are in each shifted bin, shape (trials, bins)."""
        if curve is None:
            return np.zeros((1, len(self.bins)))
        begin, stop = (
            edge - lag_s[:, None] - drift_s[:, None] * self.growth(edge)
            for edge in (self.bins.start_s, self.bins.end_s)
        )
        return curve.between(begin.ravel(), stop.ravel()).reshape(begin.shape)

    def parts(self, lag_s: Floats, drift_s: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the fleet payload, counted bytes and largest unrecorded bytes of each bin.

        The counted bytes do not include other runs. All arrays have the shape (trials, bins).
        """
        known = self.known
        seen = self.bins.bytes - self.shifted(known.beside, lag_s, drift_s)
        free = self.shifted(known.unrecorded, lag_s, drift_s)
        fleet = self.shifted(known.fleet, lag_s, drift_s)
        return fleet, np.broadcast_to(seen, fleet.shape), np.broadcast_to(free, fleet.shape)

    def misfit(self, trials: _Trials) -> Floats:
        """Return the bytes that the fit does not explain, shape (trials, bins)."""
        fleet, seen, free = self.parts(trials.lag_s, trials.drift_s)
        off = seen - trials.scale[:, None] * fleet - trials.idle[:, None] * self.width
        return off - np.clip(off, 0.0, free)

    def least_absolute(self, lag_s: Floats, drift_s: Floats) -> _Trials:
        """Fit scale and idle level at each lag with least absolute deviations.

        If a bin may include unrecorded bytes, every value from the fit up to the fit plus these
        bytes is free of cost. This cost is the sum of the distances to both ends minus a constant,
        so it is also convex.
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
        """Refine each trial with Tukey's biweight, starting from its scale and idle level."""
        fleet, seen, free = self.parts(trials.lag_s, trials.drift_s)
        scale, idle = np.maximum(trials.scale, least_scale), trials.idle
        least = np.full(len(scale), least_scale)
        for _ in range(BOUNDED_ROUNDS):
            off = seen - scale[:, None] * fleet - idle[:, None] * self.width
            stored = np.clip(off, 0.0, free)
            weight = (_inside(off - stored, sigma) ** 2 + 1e-12) / sigma**2
            scale, idle = self._solve(weight, seen - stored, fleet, least)
        fitted = replace(trials, scale=scale, idle=idle)
        return replace(fitted, cost=_biweight(self.misfit(fitted), sigma))

    def even_level(self, seen: Floats, free: Floats, sigma: Floats) -> tuple[float, float]:
        """Return the absolute misfit and the bounded cost of the best constant rate.

        The model does not include the fleet.
        """
        levels = np.quantile(seen / self.width, np.linspace(0, 1, LEVELS_COUNT))[:, None]
        off = seen - levels * self.width
        off -= np.clip(off, 0.0, free)
        return float(_absolute(off).min()), float(_biweight(off, sigma).min())

    def _solve(
        self, weight: Floats, target: Floats, fleet: Floats, least: Floats
    ) -> tuple[Floats, Floats]:
        """Solve weighted least squares for each row.

        The scale is not below ``least`` and the idle level is not below zero.
        """
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
        """Return the standard deviation of the bytes in each bin at the best fit.

        It is estimated from the median misfit of bins with fleet traffic. The scatter between
        neighbouring bins without fleet traffic is used if it is larger, because other traffic has
        the same scatter during bursts.
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
    """Estimate a standard deviation from the sizes of errors.

    The estimate is increased if there are few values (Student's t).
    """
    if not len(sizes):
        return 0.0
    freedom = max(2.0, MAD_EFFICIENCY * (len(sizes) - FITTED_COUNT))
    return MAD_SIGMAS * float(np.median(sizes)) * t95(freedom) / t95(math.inf)


def _absolute(off: Floats) -> Floats:
    """Return the weighted sum of absolute misfits in each row."""
    return np.asarray(np.maximum(off, -UNDER_WEIGHT * off).sum(axis=-1))


def _inside(off: Floats, sigma: Floats) -> Floats:
    """Return the square root of the biweight's weights.

    It is 1 at the fit and 0 beyond :data:`BIWEIGHT_SIGMAS` (farther for missing bytes).
    """
    return np.maximum(
        0.0, 1 - (off / (BIWEIGHT_SIGMAS * sigma)) ** 2 / np.where(off < 0, UNDER_WEIGHT, 1.0)
    )


def _bin_cost(off: Floats, sigma: Floats) -> Floats:
    """Return the cost of each bin's misfit by Tukey's biweight, as a negative log likelihood."""
    return BIN_COST_MAX * np.where(off < 0, UNDER_WEIGHT, 1.0) * (1 - _inside(off, sigma) ** 3)


def _biweight(off: Floats, sigma: Floats) -> Floats:
    """Return the total cost of each row."""
    return np.asarray(_bin_cost(off, sigma).sum(axis=-1))
