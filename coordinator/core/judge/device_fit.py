"""Goodness of fit between counted and predicted bytes over time.

The cumulative curves of a burst are compared at the end of each bin. Both are scaled to the same
sum first. Errors in the scale are part of the residual, and a common time shift is part of the lag.

With independent noise in the bins the distance is a Brownian bridge. Its standard deviation is
small at both ends of the burst, so hosts that are early or late are detected there. It is largest
in the middle. Each end of a bin has its own limit from this standard deviation. The error rate is
divided by the number of bins (Bonferroni).

A second statistic is the largest misfit of a single bin. It is compared with the largest of as many
normal values. Bytes that move to a neighbouring bin, for example by a late reading, are not a
misfit. Each statistic has half of the error rate.

The lag is known within an interval. The statistic is for the lag with the best fit in this
interval, so the interval does not increase the limit.

Other errors are not bin noise. Their bounds are added to the limit. Clocks, and the
placement of bytes within readings, shift a curve in time. Extra bytes and background traffic that
change during the burst bend it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from broadside.coordinator.core.judge.burst_share import BinSums
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.steady import t95

# Share of good bursts that are reported as not fitting.
ERROR_RATIO: Final = 0.001
# Number of statistics that share the error rate.
STATISTICS_COUNT: Final = 2
# The bytes of a reading are spread evenly over it. If the burst starts at a share x of the reading,
# the error is x (1 - x) of its bytes, at most a quarter.
PLACED_RATIO: Final = 0.25
# Standard deviations that a normal value exceeds with probability ERROR_RATIO.
NORMAL_RARE: Final = 3.09
# The noise is estimated from this number of differences between neighbouring bins or more.
FIT_BINS_MIN: Final = 5
# Standard deviation of a bin if there are too few to estimate it. See
# byte_comparison.NOISE_ASSUMED_RATIO.
NOISE_ASSUMED_RATIO: Final = 0.01
# Bins with a lower rate, relative to the busiest bin, are not used. The lag causes the misfit of
# bins at the edge.
HALF_FULL_RATIO: Final = 0.5
# Factor from the median absolute deviation to the standard deviation of a normal distribution.
MAD_SIGMAS: Final = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class FitBounds:
    """Bounds for errors that are not bin noise.

    Attributes:
        flat_ratio: Bytes that can be at any time in the burst, as a share of all bytes. They were
            retransmitted, lost, in flight at the end, or sent by unseen pairs.
        reading_s: Length of the receivers' readings.
        bend_ratio: Largest relative difference between two parts of the burst, caused by
            acknowledgements.
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
        distance_ratio: Distance that is largest in relation to its limit.
        limit_ratio: Limit for this distance. It is exceeded by :data:`ERROR_RATIO` of the bursts
            that fit.
    """

    distance_ratio: float
    limit_ratio: float


def fit_burst(bins: BinSums, level: float, noise: float, bounds: FitBounds) -> Fit | None:
    """Compare counted and predicted bytes over the time of a burst.

    Args:
        bins: Burst bins in time order, with background traffic.
        level: Background traffic, in bytes/s.
        noise: Relative standard deviation of a bin.
        bounds: Bounds for other errors.

    Returns:
        The largest distance with its limit. None if no bytes were predicted or counted, or if there
        is only one bin.
    """
    counts = bins.ledger - level * bins.width
    expected, counted = float(bins.fleet.sum()), float(counts.sum())
    if expected <= 0 or counted <= 0 or len(counts) < 2:
        return None
    scale = counted / expected
    shifts = scale * (np.stack((bins.earlier, bins.later)) - bins.fleet)
    peak = float((bins.fleet / np.maximum(bins.width, 1e-9)).max())
    flat = bounds.flat_ratio * counted + PLACED_RATIO * bounds.reading_s * scale * peak
    fits = (
        _fit_at(fleet, counts, shifts, flat, noise, bounds)
        for fleet in bins.placed.T
        if fleet.sum() > 0
    )
    return min(fits, key=lambda fit: fit.distance_ratio / fit.limit_ratio, default=None)


def _fit_at(
    fleet: Floats, counts: Floats, shifts: Floats, flat: float, noise: float, bounds: FitBounds
) -> Fit:
    """Compare the curves at one lag.

    Args:
        fleet: Predicted payload in each bin.
        counts: Counted bytes in each bin, without background traffic.
        shifts: Bytes that clock errors can move into each bin. Shape (2, bins).
        flat: Bytes that can be at any time in the burst.
        noise: Relative standard deviation of a bin.
        bounds: Bounds for other errors.
    """
    counted = float(counts.sum())
    predicted = counted / float(fleet.sum()) * fleet
    misfit, bent, sigma = counts - predicted, bounds.bend_ratio * predicted, noise * predicted
    found = (
        _cumulative(misfit, shifts, sigma, bent, bounds.idle_bytes),
        _local(misfit, shifts, sigma, bent, bounds.idle_bytes),
    )
    worst = max((_worst(each, limit + flat + 1e-9 * counted) for each, limit in found), key=_over)
    return Fit(distance_ratio=worst[0] / counted, limit_ratio=worst[1] / counted)


def _worst(distance: Floats, limit: Floats) -> tuple[float, float]:
    """Return the distance that is largest in relation to its limit, and the limit."""
    place = int(np.argmax(distance / limit))
    return float(distance[place]), float(limit[place])


def _over(found: tuple[float, float]) -> float:
    return found[0] / found[1]


def _cumulative(
    misfit: Floats, shifts: Floats, sigma: Floats, bent: Floats, idle_bytes: float
) -> tuple[Floats, Floats]:
    """Return the cumulative misfits and their limits."""
    moved = np.abs(np.cumsum(shifts, axis=1)).max(axis=0)
    # If one part has more bytes than predicted, the other parts have less. This has the form of the
    # bridge.
    part = np.cumsum(bent)
    bent_limit = part * (1 - part / max(float(part[-1]), 1e-9))
    variance, share = np.cumsum(sigma**2), np.cumsum(sigma) / max(float(sigma.sum()), 1e-9)
    bridge = variance * (1 - 2 * share) + share**2 * variance[-1]
    # Bytes that move between the two bins at an end are in the deviations of both.
    edge = np.maximum(sigma, np.append(sigma[1:], 0.0)) / math.sqrt(2)
    noise = np.sqrt(np.maximum(bridge, 0.0) + edge**2 + idle_bytes**2)
    return np.abs(np.cumsum(misfit)), moved + bent_limit + _rare(len(misfit)) * noise


def _local(
    misfit: Floats, shifts: Floats, sigma: Floats, bent: Floats, idle_bytes: float
) -> tuple[Floats, Floats]:
    """Return the misfits of single bins, without bytes that moved to a neighbour, and limits."""
    count = len(misfit)
    padded = np.pad(misfit, 1)
    traded = np.minimum(np.abs(misfit + padded[:-2]), np.abs(misfit + padded[2:]))
    around = np.pad(np.abs(shifts).max(axis=0), 1)
    moved = np.maximum(around[1:-1], np.maximum(around[:-2], around[2:]))
    noise = _rare(count) * np.hypot(math.sqrt(2) * sigma, idle_bytes / math.sqrt(count))
    return np.minimum(np.abs(misfit), traded), moved + noise + bent


def _rare(count: int) -> float:
    """Return the limit for ``count`` normal values, in standard deviations.

    One of the values exceeds it, on either side, with the error rate of one statistic.
    """
    return NormalDist().inv_cdf(1 - ERROR_RATIO / (2 * STATISTICS_COUNT * count))


def relative_noise(bursts: Sequence[BinSums], level: float) -> float:
    """Return an upper bound for the relative standard deviation of a busy bin.

    It is from the median difference between neighbouring bins in all bursts. Steps in the misfit,
    which the test must detect, do not change this median. The relative standard error of the
    estimate is 1.16 / sqrt(count), because the median absolute deviation has an efficiency of 37 %.

    Args:
        bursts: Bins of each burst.
        level: Background traffic, in bytes/s.
    """
    found = np.concatenate([_differences(each, level) for each in bursts])
    if len(found) < FIT_BINS_MIN:
        return NOISE_ASSUMED_RATIO
    middle = MAD_SIGMAS * float(np.median(np.abs(found))) / math.sqrt(2)
    return middle * math.exp(NORMAL_RARE * 1.16 / math.sqrt(len(found)))


def counters_noise(blocks: Sequence[tuple[Floats, Floats]]) -> float:
    """Return the relative standard deviation of a block from the counter noise.

    Neighbouring blocks are compared, so their level has no effect. With few blocks the estimate is
    increased by the quantile of Student's t. Two of three differences are independent (J. von
    Neumann, Annals of Mathematical Statistics 12, 1941).

    Args:
        blocks: Counted bytes and payload for the blocks of each burst, in time order.

    Returns:
        The ratio. NaN if there are too few blocks.
    """
    found = np.concatenate(
        [
            np.zeros(0),
            *(
                np.diff(counted / fleet) * fleet.sum() / counted.sum()
                for counted, fleet in blocks
                if counted.sum() > 0
            ),
        ]
    )
    if len(found) < FIT_BINS_MIN:
        return math.nan
    even = math.sqrt(float((found**2).mean()) / 2)
    return even * t95(2 / 3 * len(found)) / t95(math.inf)


def _differences(bins: BinSums, level: float) -> Floats:
    """Return differences between neighbouring bins inside a burst.

    They are differences of the ratio of counted to predicted bytes.
    """
    rate = bins.fleet / np.maximum(bins.width, 1e-9)
    busy = rate > HALF_FULL_RATIO * float(rate.max(initial=0.0))
    inside = busy[1:-1] & busy[:-2] & busy[2:]
    counts = (bins.ledger - level * bins.width)[1:-1][inside]
    return np.asarray(np.diff(counts / bins.fleet[1:-1][inside]))
