"""Estimation of the other traffic in the device counter while no planned burst sends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.reconciliation.counter_bins import Bins
from broadside.coordinator.core.measure.formulas.steady import t95

# If there are fewer quiet bins, the level will be fitted together with the fleet bytes.
QUIET_BINS_MIN: Final = 3
# The quiet bins are divided into at least this number of parts. A part is at most as long as a
# burst.
BATCHES_MIN: Final = 4
# Beyond this misfit the cost in Huber's function is linear instead of quadratic.
HUBER_SIGMAS: Final = 1.5
# A steady level cannot be above any bin. This factor allows for the noise of the bin
# (byte_comparison.NOISE_ASSUMED_RATIO).
HOLDS_RATIO: Final = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleLevel:
    """Level of other traffic, with the 95 % interval of its mean during a burst.

    Attributes:
        bytes_per_s: Level, in bytes/s.
        below: Distance to the lower end of the interval for one burst, in bytes/s.
        above: Distance to the upper end for one burst, in bytes/s.
        mean_below: Same as ``below``, but for all bursts of the run together.
        mean_above: Same as ``above``, but for all bursts of the run together.
        how: How the level was estimated.
        bin_sigma: Standard deviation of a quiet bin without outliers, in bytes/s.
        unplanned_bytes: Bytes above the level in an unplanned burst.
    """

    bytes_per_s: float
    below: float
    above: float
    mean_below: float
    mean_above: float
    how: Literal["quiet", "fitted", "bounded"]
    bin_sigma: float = 0.0
    unplanned_bytes: float = 0.0


def quiet_bins(
    start_s: Floats, end_s: Floats, spans: Sequence[tuple[float, float]]
) -> NDArray[np.bool_]:
    """Return a mask of the bins that do not overlap any interval.

    Args:
        start_s: Start of the bins in true time (epoch s).
        end_s: End of the bins in true time (epoch s).
        spans: Start and end of each interval (epoch s), in any order.

    Returns:
        Boolean array with the shape of ``start_s``. All true if there is no interval.
    """
    merged: list[list[float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    if not merged:
        return np.ones(len(start_s), np.bool_)
    edges = np.array(merged)
    place = np.searchsorted(edges[:, 1], start_s, side="right")
    following = np.append(edges[:, 0], np.inf)[place]
    return np.asarray(following >= end_s)


def unread_bins(counted_bytes: Floats, quiet: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the zeros at the end of the counter that may be missing data.

    A source can fill its bins late, and missing data must not be used as zero. The zeros are
    accepted if an earlier quiet bin is also zero.

    Args:
        counted_bytes: Bytes in each bin.
        quiet: Mask of the quiet bins.

    Returns:
        Boolean array with the shape of ``counted_bytes``.
    """
    counted = np.flatnonzero(counted_bytes)
    last = int(counted[-1]) if len(counted) else -1
    after = np.arange(len(counted_bytes)) > last
    before = counted_bytes[quiet & ~after]
    return after & bool(len(before) and before.min() > 0)


def from_quiet(
    bins: Bins, quiet: NDArray[np.bool_], *, bins_a_burst: int, bursts_count: int
) -> IdleLevel:
    """Estimate the level from the mean of the quiet bins.

    The interval is a prediction interval. It is computed from the scatter between parts that are
    about as long as a burst (batch means).

    Args:
        bins: Counter bins.
        quiet: Mask of the quiet bins, at least two.
        bins_a_burst: How many bins a burst covers.
        bursts_count: Number of bursts.

    Returns:
        Level in bytes/s with its prediction interval, for one burst and for the mean of all.
    """
    rates = bins.bytes[quiet] / bins.width_s[quiet]
    length = max(1, min(bins_a_burst, len(rates) // BATCHES_MIN))
    batches = len(rates) // length
    if batches < 2:
        length, batches = 1, len(rates)
    means = rates[: batches * length].reshape(batches, length).mean(axis=1)
    spread = float(means.std(ddof=1)) * t95(batches - 1)
    one = spread * float(np.sqrt(1 + 1 / batches))
    mean = spread * float(np.sqrt(1 / min(bursts_count, batches) + 1 / batches))
    return IdleLevel(
        bytes_per_s=float(rates.mean()),
        below=one,
        above=one,
        mean_below=mean,
        mean_above=mean,
        how="quiet",
        bin_sigma=1.4826 * float(np.median(np.abs(rates - np.median(rates)))),
    )


def from_fit(
    bins: Bins,
    quiet: NDArray[np.bool_],
    fleet: Floats,
    moved: Floats,
    lag_uncertainty_s: float,
) -> IdleLevel | None:
    """Estimate the level with a fit of the counted bytes.

    This is a least-squares fit with Huber's weights (P. J. Huber, Annals of Mathematical Statistics
    35, 1964). The variables are the fleet bytes, the bin length, and ``moved``.

    A steady level is not below zero and not above any bin. If the fit cannot exclude zero, the
    level is 0 and the interval starts at 0. The interval also contains the few quiet bins, because
    they may show that the level is not steady.

    Args:
        bins: Counter bins, including the quiet ones.
        quiet: Mask of the quiet bins. There are too few to estimate their scatter.
        fleet: Payload in each bin.
        moved: Bytes that each bin gains or loses if the lag changes by one second.
        lag_uncertainty_s: Half width of the lag interval.

    Returns:
        The level. None if there are no bins.
    """
    if not len(bins):
        return None
    rates = bins.bytes / bins.width_s
    seen = rates[quiet]
    most = float(rates.min()) * HOLDS_RATIO
    busy = fleet > 0
    result = _fitted(bins.pick(busy), fleet[busy], moved[busy], lag_uncertainty_s)
    level, half = result or (0.0, math.inf)
    low = min(max(0.0, level - half), most, float(seen.min(initial=most)))
    high = max(min(most, max(0.0, level + half)), float(seen.max(initial=0.0)))
    if low <= 0 or high <= low:
        low, level = 0.0, 0.0
    level = min(level, most)
    return IdleLevel(
        bytes_per_s=level,
        below=level - low,
        above=high - level,
        mean_below=level - low,
        mean_above=high - level,
        how="fitted" if level > 0 else "bounded",
    )


def _fitted(
    bins: Bins, fleet: Floats, moved: Floats, lag_uncertainty_s: float
) -> tuple[float, float] | None:
    """Return the level and the half width of its interval, or None if there are too few bins."""
    freedom = len(bins) - 3
    if freedom < 1 or bins.bytes.max() <= 0:
        return None
    size = bins.bytes + 0.02 * bins.bytes.max()
    table = np.column_stack((fleet, bins.width_s, moved)) / size[:, None]
    scales = np.abs(table).max(axis=0)
    scales[scales == 0] = 1.0
    scaled, target = table / scales, bins.bytes / size
    weight, sigma = np.ones(len(bins)), 0.01
    result, covariance = np.zeros(3), np.zeros((3, 3))
    for _ in range(5):
        prior = np.zeros((3, 3))
        prior[2, 2] = (2 * sigma / max(lag_uncertainty_s, 1e-3) / scales[2]) ** 2
        normal = scaled.T @ (weight[:, None] * scaled) + prior + 1e-12 * np.eye(3)
        covariance = np.linalg.inv(normal)
        result = covariance @ (scaled.T @ (weight * target))
        off = target - scaled @ result
        sigma = float(np.sqrt((weight * off**2).sum() / freedom)) + 1e-9
        weight = np.minimum(1.0, HUBER_SIGMAS * sigma / np.maximum(np.abs(off), 1e-12))
    scale = float(scales[1])
    half = t95(freedom) * sigma * math.sqrt(float(covariance[1, 1])) / scale
    return float(result[1]) / scale, half
