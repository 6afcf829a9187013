"""What a ledger shows of others' steady traffic: its level where no plan sends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.judge.counter_bins import Bins
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.steady import t95

QUIET_BINS_MIN: Final = 3  # under so many the level is fitted beside the fleet's own bytes
BATCHES_MIN: Final = 4  # stretches of quiet, each as long as a burst, that tell their own scatter
HUBER_SIGMAS: Final = 1.5  # beyond it a bin's misfit counts as it, not as its square
# A steady level is below every bin, but for the noise of a bin
# (byte_comparison.NOISE_ASSUMED_RATIO).
HOLDS_RATIO: Final = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleLevel:
    """Bytes a second of others, and how far below and above it a burst's mean may lie (95 %)."""

    bytes_per_s: float
    below: float  # for one burst
    above: float
    mean_below: float  # for all of the run's bursts together
    mean_above: float
    how: Literal["quiet", "fitted", "bounded"]
    bin_sigma: float = 0.0  # standard deviation of one quiet bin, without outliers
    unplanned_bytes: float = 0.0  # of a burst that no plan knows, over the level


def quiet_bins(
    start_s: Floats, end_s: Floats, spans: Sequence[tuple[float, float]]
) -> NDArray[np.bool_]:
    """Which bins of true time lie clear of every span."""
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
    """Zeros at a ledger's end where no quiet bin before them is zero: a source that fills its bins
    late has not counted there, and what is missing is never zero."""
    counted = np.flatnonzero(counted_bytes)
    last = int(counted[-1]) if len(counted) else -1
    after = np.arange(len(counted_bytes)) > last
    before = counted_bytes[quiet & ~after]
    return after & bool(len(before) and before.min() > 0)


def from_quiet(
    bins: Bins, quiet: NDArray[np.bool_], *, bins_a_burst: int, bursts_count: int
) -> IdleLevel:
    """Mean of the quiet bins; how far a burst's own mean may be from it, by the scatter of
    stretches of quiet as long as a burst (a prediction interval over batch means)."""
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
    """The level that is left where bins hold less of the fleet: least squares of the ledger on the
    fleet's bytes, the bins' widths and what a second of lag moves (``moved``), with Huber's weights
    (P. J. Huber, Annals of Mathematical Statistics 35, 1964).

    ``bins`` are the quiet ones too, which are too few to tell a scatter: a steady level is neither
    below zero nor above any bin. Where the fit of the others says no more than that, it is taken
    for none, and the bounds are the interval. What quiet bins hold lies in the interval too: there
    a level that is not steady was seen. None: there are no bins.
    """
    if not len(bins):
        return None
    rates = bins.bytes / bins.width_s
    seen = rates[quiet]
    most = float(rates.min()) * HOLDS_RATIO
    busy = fleet > 0
    found = _fitted(bins.pick(busy), fleet[busy], moved[busy], lag_uncertainty_s)
    level, half = found or (0.0, math.inf)
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
    """The level and half of its interval; None: too few bins."""
    freedom = len(bins) - 3
    if freedom < 1 or bins.bytes.max() <= 0:
        return None
    size = bins.bytes + 0.02 * bins.bytes.max()
    table = np.column_stack((fleet, bins.width_s, moved)) / size[:, None]
    scales = np.abs(table).max(axis=0)
    scales[scales == 0] = 1.0
    scaled, target = table / scales, bins.bytes / size
    weight, sigma = np.ones(len(bins)), 0.01
    found, covariance = np.zeros(3), np.zeros((3, 3))
    for _ in range(5):
        prior = np.zeros((3, 3))
        prior[2, 2] = (2 * sigma / max(lag_uncertainty_s, 1e-3) / scales[2]) ** 2
        normal = scaled.T @ (weight[:, None] * scaled) + prior + 1e-12 * np.eye(3)
        covariance = np.linalg.inv(normal)
        found = covariance @ (scaled.T @ (weight * target))
        off = target - scaled @ found
        sigma = float(np.sqrt((weight * off**2).sum() / freedom)) + 1e-9
        weight = np.minimum(1.0, HUBER_SIGMAS * sigma / np.maximum(np.abs(off), 1e-12))
    scale = float(scales[1])
    half = t95(freedom) * sigma * math.sqrt(float(covariance[1, 1])) / scale
    return float(found[1]) / scale, half
