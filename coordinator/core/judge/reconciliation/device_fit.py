"""Goodness-of-fit test of counted against predicted bytes over time.

The cumulative curves of a burst are compared at the end of each bin. Both are first scaled to the
same sum. A wrong scale is part of the residual, and a common time shift is part of the lag.

If the noise in the bins is independent, the distance between the curves is a Brownian bridge. Its
standard deviation is largest in the middle of the burst. It is small at both ends, so hosts that
are early or late are detected there. The limit at the end of each bin is computed from this
standard deviation. The error rate is divided by the number of bins (Bonferroni).

The second statistic is the largest misfit of a single bin. It is compared with the largest of the
same number of normal values. Bytes that move to a neighbouring bin, for example because of a late
reading, are not a misfit. Each statistic has half of the error rate.

The lag is known only within an interval. The statistics use the lag in this interval that fits
best, so the interval does not increase the limits.

Errors that are not bin noise have bounds, which are added to the limits. Clock errors and the
placement of bytes within readings shift a curve in time. Extra bytes and background traffic that
change during the burst bend it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.reconciliation.counter_bins import BinSums
from broadside.coordinator.core.measure.formulas.steady import t95

# Share of correct bursts that are reported as not fitting.
ERROR_RATIO: Final = 0.001
# Number of statistics that share the error rate.
STATISTICS_COUNT: Final = 2
# The bytes of a reading are spread evenly over it. If a burst starts at a fraction x of the
# reading, x (1 - x) of these bytes are misplaced, at most a quarter.
PLACED_RATIO: Final = 0.25
# Standard deviations that a normal value exceeds with probability ERROR_RATIO.
NORMAL_RARE: Final = 3.09
# The noise is estimated from this number of differences between neighbouring bins or more.
FIT_BINS_MIN: Final = 5
# Standard deviation of a bin if there are too few to estimate it. See
# byte_comparison.NOISE_ASSUMED_RATIO.
NOISE_ASSUMED_RATIO: Final = 0.01
# Bins below this share of the busiest bin's rate are not used. They are at the edge of the burst,
# and their misfit is caused by the lag.
HALF_FULL_RATIO: Final = 0.5
# Factor from the median absolute deviation to the standard deviation of a normal distribution.
MAD_SIGMAS: Final = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class FitBounds:
    """Bounds for errors that are not bin noise.

    Attributes:
        flat_ratio: Share of the bytes that can be at any time in the burst. They were
            retransmitted, lost, in flight at the end, or sent by unseen pairs.
        reading_s: How long a reading of the receivers is.
        bend_ratio: Largest relative difference that acknowledgements can cause between two parts of
            the burst.
        idle_bytes: Standard deviation of the background bytes in the burst.
    """

    flat_ratio: float = 0.0
    reading_s: float = 0.0
    bend_ratio: float = 0.0
    idle_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Largest distance between the two curves, as a share of the bytes in the burst.

    Attributes:
        distance_ratio: Distance that is largest relative to its limit.
        limit_ratio: Limit for this distance. Of the bursts that fit, a share of :data:`ERROR_RATIO`
            exceeds it.
    """

    distance_ratio: float
    limit_ratio: float


def fit_burst(bins: BinSums, level: float, noise: float, bounds: FitBounds) -> Fit | None:
    """Compare how counted and predicted bytes change during a burst.

    Args:
        bins: Bins of the burst in time order, including background traffic.
        level: Background traffic, in bytes/s.
        noise: Relative standard deviation of a bin.
        bounds: Bounds for other errors.

    Returns:
        The largest distance with its limit. None if no bytes were predicted or counted, or if there
        are fewer than two bins.
    """
    counts = bins.device_counter - level * bins.width
    expected, counted = float(bins.fleet.sum()), float(counts.sum())
    if expected <= 0 or counted <= 0 or len(counts) < 2:
        return None
    scale = counted / expected
    shifts = scale * (np.stack((bins.earlier, bins.later)) - bins.fleet)
    peak = float((bins.fleet / np.maximum(bins.width, 1e-9)).max())
    flat = bounds.flat_ratio * counted + PLACED_RATIO * bounds.reading_s * scale * peak
    allowed = _Allowed(shifts=shifts, flat_bytes=flat, noise_ratio=noise, bounds=bounds)
    fits = (_fit_at(fleet, counts, allowed) for fleet in bins.placed.T if fleet.sum() > 0)
    return min(fits, key=lambda fit: fit.distance_ratio / fit.limit_ratio, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowed:
    """Differences between the curves that known errors can explain.

    Attributes:
        shifts: Bytes that clock errors can move into each bin, shape (2, bins).
        flat_bytes: Bytes that can be at any time in the burst.
        noise_ratio: Relative standard deviation of a bin.
        bounds: Bounds for other errors.
    """

    shifts: Floats
    flat_bytes: float
    noise_ratio: float
    bounds: FitBounds


def _fit_at(fleet: Floats, counts: Floats, allowed: _Allowed) -> Fit:
    """Compare the curves at one lag.

    Args:
        fleet: Predicted payload in each bin.
        counts: Counted bytes in each bin, without background traffic.
        allowed: Differences that are not a misfit.
    """
    shifts, bounds = allowed.shifts, allowed.bounds
    counted = float(counts.sum())
    predicted = counted / float(fleet.sum()) * fleet
    misfit, bent = counts - predicted, bounds.bend_ratio * predicted
    sigma = allowed.noise_ratio * predicted
    result = (
        _cumulative(misfit, shifts, sigma, bent, bounds.idle_bytes),
        _local(misfit, shifts, sigma, bent, bounds.idle_bytes),
    )
    worst = max(
        (_worst(item, limit + allowed.flat_bytes + 1e-9 * counted) for item, limit in result),
        key=_over,
    )
    return Fit(distance_ratio=worst[0] / counted, limit_ratio=worst[1] / counted)


def _worst(distance: Floats, limit: Floats) -> tuple[float, float]:
    """Return the distance that is largest relative to its limit, and this limit."""
    place = int(np.argmax(distance / limit))
    return float(distance[place]), float(limit[place])


def _over(distance: tuple[float, float]) -> float:
    return distance[0] / distance[1]


def _cumulative(
    misfit: Floats, shifts: Floats, sigma: Floats, bent: Floats, idle_bytes: float
) -> tuple[Floats, Floats]:
    """Return the cumulative misfits and their limits."""
    moved = np.abs(np.cumsum(shifts, axis=1)).max(axis=0)
    # If one part has more bytes than predicted, the other parts have fewer. The limit for this has
    # the same form as the bridge.
    part = np.cumsum(bent)
    bent_limit = part * (1 - part / max(float(part[-1]), 1e-9))
    variance, share = np.cumsum(sigma**2), np.cumsum(sigma) / max(float(sigma.sum()), 1e-9)
    bridge = variance * (1 - 2 * share) + share**2 * variance[-1]
    # Bytes that move between two neighbouring bins contribute to the deviations of both.
    edge = np.maximum(sigma, np.append(sigma[1:], 0.0)) / math.sqrt(2)
    noise = np.sqrt(np.maximum(bridge, 0.0) + edge**2 + idle_bytes**2)
    return np.abs(np.cumsum(misfit)), moved + bent_limit + _rare(len(misfit)) * noise


def _local(
    misfit: Floats, shifts: Floats, sigma: Floats, bent: Floats, idle_bytes: float
) -> tuple[Floats, Floats]:
    """Return the misfits of single bins and their limits.

    Bytes that moved to a neighbouring bin are not included.
    """
    count = len(misfit)
    padded = np.pad(misfit, 1)
    traded = np.minimum(np.abs(misfit + padded[:-2]), np.abs(misfit + padded[2:]))
    around = np.pad(np.abs(shifts).max(axis=0), 1)
    moved = np.maximum(around[1:-1], np.maximum(around[:-2], around[2:]))
    noise = _rare(count) * np.hypot(math.sqrt(2) * sigma, idle_bytes / math.sqrt(count))
    return np.minimum(np.abs(misfit), traded), moved + noise + bent


def _rare(count: int) -> float:
    """Return the limit for ``count`` normal values, in standard deviations.

    The probability that any of them exceeds it, on either side, is the error rate of one statistic.
    """
    return NormalDist().inv_cdf(1 - ERROR_RATIO / (2 * STATISTICS_COUNT * count))


def relative_noise(bursts: Sequence[BinSums], level: float) -> float:
    """Return an upper bound for the relative standard deviation of a busy bin.

    It is computed from the median difference between neighbouring bins in all bursts. The test
    needs to detect steps in the misfit, and these do not change the median. The relative standard
    error of the estimate is 1.16 / sqrt(count), because the median absolute deviation has an
    efficiency of 37 %.

    Args:
        bursts: Bins of each burst.
        level: Background traffic, in bytes/s.
    """
    result = np.concatenate([_differences(burst, level) for burst in bursts])
    if len(result) < FIT_BINS_MIN:
        return NOISE_ASSUMED_RATIO
    middle = MAD_SIGMAS * float(np.median(np.abs(result))) / math.sqrt(2)
    return middle * math.exp(NORMAL_RARE * 1.16 / math.sqrt(len(result)))


def counters_noise(blocks: Sequence[tuple[Floats, Floats]]) -> float:
    """Return the relative standard deviation that counter noise adds to a block.

    Neighbouring blocks are compared, so changes of the level have little effect. If there are few
    blocks, the quantile of Student's t increases the estimate. Two thirds of the differences count
    as independent (J. von Neumann, Annals of Mathematical Statistics 12, 1941).

    Args:
        blocks: Counted bytes and payload of the blocks, for each burst in time order.

    Returns:
        The ratio. NaN if there are too few blocks.
    """
    result = np.concatenate(
        [
            np.zeros(0),
            *(
                np.diff(counted / fleet) * fleet.sum() / counted.sum()
                for counted, fleet in blocks
                if counted.sum() > 0
            ),
        ]
    )
    if len(result) < FIT_BINS_MIN:
        return math.nan
    even = math.sqrt(float((result**2).mean()) / 2)
    return even * t95(2 / 3 * len(result)) / t95(math.inf)


def _differences(bins: BinSums, level: float) -> Floats:
    """Return how much the ratio of counted to predicted bytes changes between neighbouring bins.

    Only busy bins inside the burst are used.
    """
    rate = bins.fleet / np.maximum(bins.width, 1e-9)
    busy = rate > HALF_FULL_RATIO * float(rate.max(initial=0.0))
    inside = busy[1:-1] & busy[:-2] & busy[2:]
    counts = (bins.device_counter - level * bins.width)[1:-1][inside]
    return np.asarray(np.diff(counts / bins.fleet[1:-1][inside]))
