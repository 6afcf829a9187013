"""Goodness of fit: does the device counter move over time as the fleet's records predict?

Both cumulative curves of a burst are compared at the ends of the counter's bins, after both were
scaled to the same sum. A scale is the residual's matter, and a lag is the fit's: a shift that all
ends have in common costs nothing. Under independent noise of the bins the distance is a Brownian
bridge: certain at both ends of the burst, where a group of hosts that is early or late shows, and
least certain in the middle. So each end of a bin has a limit of its own, by the bridge's standard
deviation there, and the error rate is divided by the number of bins (Bonferroni).

A second statistic is the largest misfit of one bin, beside the largest that as many normal values
show. Bytes that a bin trades with a neighbour, as a late reading makes it, are no misfit. Each of
both has half of the error rate.

The lag is known within an interval. The statistic is that of the lag in it which fits best, so the
interval adds nothing to the limit.

Errors that are not noise of bins have bounds of their own, which are added: the placement of bytes
within readings and clocks move a curve in time; extra bytes and background that come and go
during the burst bend it.
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

ERROR_RATIO: Final = 0.001  # of bursts that fit: reported as not fitting
STATISTICS_COUNT: Final = 2  # that share the error rate
# A burst that begins inside a reading, whose bytes are spread evenly over it, is off by at most a
# quarter of the reading's bytes: x (1 - x) at a start x into it.
PLACED_RATIO: Final = 0.25
NORMAL_RARE: Final = 3.09  # standard deviations that a normal value exceeds with that rate
FIT_BINS_MIN: Final = 5  # differences of neighbouring bins whose noise is estimated
# Standard deviation of a bin where too few tell; see byte_comparison.NOISE_ASSUMED_RATIO
NOISE_ASSUMED_RATIO: Final = 0.01
HALF_FULL_RATIO: Final = 0.5  # of the busiest bin: the misfit of an edge bin is the lag's
MAD_SIGMAS: Final = 1.4826  # median absolute deviation to standard deviation, of a normal


@dataclass(frozen=True, slots=True, kw_only=True)
class FitBounds:
    """Errors that are no noise of bins.

    Attributes:
        flat_ratio: Bytes that may come at any time of the burst, as a share of all: sent again,
            lost, under way at the end, of unseen pairs.
        reading_s: Length of the receivers' readings.
        bend_ratio: How much more than another any part may hold, as a share of it:
            acknowledgements.
        idle_bytes: Standard deviation of the background's bytes over the burst.
    """

    flat_ratio: float = 0.0
    reading_s: float = 0.0
    bend_ratio: float = 0.0
    idle_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The largest distance of the two cumulative curves, as a share of the burst's bytes.

    Attributes:
        distance_ratio: The distance that is largest beside its limit.
        limit_ratio: What it is at most in all but :data:`ERROR_RATIO` of bursts that fit.
    """

    distance_ratio: float
    limit_ratio: float


def fit_burst(bins: BinSums, level: float, noise: float, bounds: FitBounds) -> Fit | None:
    """Compare the shape of a burst.

    Args:
        bins: The burst's bins in time order, background included.
        level: Bytes a second of the background.
        noise: Standard deviation of a bin, relative.
        bounds: Other errors.

    Returns:
        The largest distance with its limit; None where nothing was predicted or counted.
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
    """Compare the shape at one lag.

    Args:
        fleet: Payload that is predicted in each bin.
        counts: Bytes of each bin without the background.
        shifts: What clocks may move into each bin; shape (2, bins).
        flat: Bytes that may come at any time.
        noise: Standard deviation of a bin, relative.
        bounds: Other errors.
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
    """Return the distance that is largest beside its limit, with the limit."""
    place = int(np.argmax(distance / limit))
    return float(distance[place]), float(limit[place])


def _over(found: tuple[float, float]) -> float:
    return found[0] / found[1]


def _cumulative(
    misfit: Floats, shifts: Floats, sigma: Floats, bent: Floats, idle_bytes: float
) -> tuple[Floats, Floats]:
    """Return the cumulative misfits and their limits."""
    moved = np.abs(np.cumsum(shifts, axis=1)).max(axis=0)
    # A part that holds more of its prediction leaves the others less: the bridge's own form.
    part = np.cumsum(bent)
    bent_limit = part * (1 - part / max(float(part[-1]), 1e-9))
    variance, share = np.cumsum(sigma**2), np.cumsum(sigma) / max(float(sigma.sum()), 1e-9)
    bridge = variance * (1 - 2 * share) + share**2 * variance[-1]
    # What the bins on either side of an end trade with each other is in both of their deviations.
    edge = np.maximum(sigma, np.append(sigma[1:], 0.0)) / math.sqrt(2)
    noise = np.sqrt(np.maximum(bridge, 0.0) + edge**2 + idle_bytes**2)
    return np.abs(np.cumsum(misfit)), moved + bent_limit + _rare(len(misfit)) * noise


def _local(
    misfit: Floats, shifts: Floats, sigma: Floats, bent: Floats, idle_bytes: float
) -> tuple[Floats, Floats]:
    """Return single bins' misfits, less what they trade with a neighbour, and their limits."""
    count = len(misfit)
    padded = np.pad(misfit, 1)
    traded = np.minimum(np.abs(misfit + padded[:-2]), np.abs(misfit + padded[2:]))
    around = np.pad(np.abs(shifts).max(axis=0), 1)
    moved = np.maximum(around[1:-1], np.maximum(around[:-2], around[2:]))
    noise = _rare(count) * np.hypot(math.sqrt(2) * sigma, idle_bytes / math.sqrt(count))
    return np.minimum(np.abs(misfit), traded), moved + noise + bent


def _rare(count: int) -> float:
    """Return the standard deviations that one of ``count`` normal values exceeds, at either side,
    with a statistic's part of the error rate."""
    return NormalDist().inv_cdf(1 - ERROR_RATIO / (2 * STATISTICS_COUNT * count))


def relative_noise(bursts: Sequence[BinSums], level: float) -> float:
    """Return an upper bound of a busy bin's standard deviation, relative, over all bursts.

    It is the median of differences of neighbours, so steps of the misfit, which the test looks
    for, do not enter it. The relative standard error of that estimate is 1.16 / sqrt(count), as
    the median absolute deviation is 37 % efficient.
    """
    found = np.concatenate([_differences(each, level) for each in bursts])
    if len(found) < FIT_BINS_MIN:
        return NOISE_ASSUMED_RATIO
    middle = MAD_SIGMAS * float(np.median(np.abs(found))) / math.sqrt(2)
    return middle * math.exp(NORMAL_RARE * 1.16 / math.sqrt(len(found)))


def counters_noise(blocks: Sequence[tuple[Floats, Floats]]) -> float:
    """Return the standard deviation of a block by what the counter itself scatters, relative.

    Neighbouring blocks are compared, so their level costs nothing. The estimate is raised by the
    quantile of Student's t where few blocks give it: of their differences two in three are
    independent (J. von Neumann, Annals of Mathematical Statistics 12, 1941).

    Args:
        blocks: Counted bytes and payload of each burst's blocks, in time order.

    Returns:
        The ratio; NaN where there are too few blocks.
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
    """Return differences of neighbouring bins' ratios, counted to predicted, inside the burst."""
    rate = bins.fleet / np.maximum(bins.width, 1e-9)
    busy = rate > HALF_FULL_RATIO * float(rate.max(initial=0.0))
    inside = busy[1:-1] & busy[:-2] & busy[2:]
    counts = (bins.ledger - level * bins.width)[1:-1][inside]
    return np.asarray(np.diff(counts / bins.fleet[1:-1][inside]))
