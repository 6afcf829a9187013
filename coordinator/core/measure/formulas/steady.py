"""Ramp, mean with confidence interval, slowest part and collapse of a burst's rate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.correlation import (
    BATCHES_MAX_COUNT,
    BURSTS,
    correlated_half_width,
)

# Seconds per batch in MSER-5.
MSER_BATCH: Final = 5
# Seconds. A window needs to be this long to use batches. Until then, single seconds are used.
MSER_BATCHED_FROM: Final = 60
# Share of the steady mean. If the start of a window differs by less than this, it is not a ramp.
RAMP_RATIO: Final = 0.01
# How much can be cut. TCP's slow start and the spread of the starts only take a few seconds. If a
# device needs longer, it is slow, and this should be reported as a finding and not be cut as a
# ramp.
#
# As a share of the window.
RAMP_MAX_RATIO: Final = 0.2
# In seconds, to be used if the window is too short for an interval.
RAMP_LEAST_S: Final = 1
# In seconds, for any window.
RAMP_MAX_S: Final = 30
# Share of the window. If the start is above the rest, it can only be cut up to this length.
HEAD_CREDIT_RATIO: Final = 0.1

# Minimum number of values to compute an interval. From 7 values on (6 degrees of freedom), the
# quantile of t is within a quarter of the normal quantile.
VALUES_MIN: Final = 7
# Degrees of freedom to use for errors within bursts.
WITHIN_FREEDOM: Final = 10
# Share of the window. The check ``shape`` uses parts of this length.
STRETCH_RATIO: Final = 0.2
# Minimum length of such a part, in seconds.
STRETCH_LEAST_S: Final = 5
# Share of the plateau. If a fall is smaller, it is not a collapse. For a tenth of a window, such a
# fall will make the coefficient of variation 5 %. From this value on, RFC 9411 (section 7, results
# validation) does not call a rate constant.
FALL_RATIO: Final = 0.05 / math.sqrt(0.1 * 0.9)

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom. Above 30, the
# approximation 1.96 + 2.5 / df is within 0.2 %.
_T95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

# One-sided 95 % quantiles for two one-sided tests. Above 30 degrees of freedom, the approximation
# 1.645 + 1.55 / df is within 0.1 %.
_T90: Final = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
    1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725,
    1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip


def ramp_s(fleet: Floats) -> int:
    """Return how many seconds to cut from the start of a window.

    MSER (White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69, 1997) is used to find the cut in the first half for which the rest has the
    smallest standard error. If the window is 60 seconds or longer, MSER-5 (White, Cobb and Spratt,
    Winter Simulation Conference 2000) is used with batches of five seconds.

    The cut will then be made shorter, if needed:

    - If seconds at its end are like the rest (within 1 % or two standard deviations), they are not
      cut.
    - If the cut is too long, an overshoot after the ramp will not be cut.

    A cut should only remove seconds with a lower mean than the rest. In the first tenth of the
    window, it can also remove seconds with a higher mean, such as the credit from a token bucket.
    So if there is a fall after a plateau, it will never be cut. If the start is longer than
    :data:`RAMP_MAX_RATIO` of the window or :data:`RAMP_MAX_S`, it is not a ramp. In this case,
    seconds can only be cut until a second is not below the rest.
    """
    batch = MSER_BATCH if len(fleet) >= MSER_BATCHED_FROM else 1
    count = len(fleet) // batch
    if count < 4:
        return 0
    means = fleet[: count * batch].reshape(count, batch).mean(axis=1)
    tails = means[::-1]
    left = np.arange(1, count + 1)
    sums, squares = np.cumsum(tails), np.cumsum(tails**2)
    score = (np.maximum(squares - sums**2 / left, 0.0) / left**2)[::-1]
    cut: int = batch * int(np.argmin(score[: count // 2 + 1]))
    if cut == 0:
        return 0
    rest = fleet[cut:]
    mean = float(rest.mean())
    above = fleet[:cut] - mean
    unlike = max(RAMP_RATIO * mean, 2 * float(rest.std()))
    most = min(RAMP_MAX_S, max(RAMP_LEAST_S, RAMP_MAX_RATIO * len(fleet)))
    below = above < -unlike
    candidates = [
        int(np.flatnonzero(off)[-1]) + 1 for off in (abs(above) > unlike, below) if off.any()
    ]
    candidates.append(int(np.argmin([*below, False])))
    for cut in candidates:
        credit = cut <= HEAD_CREDIT_RATIO * len(fleet)
        if 0 < cut <= most and (credit or fleet[:cut].mean() < mean):
            return cut
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Mean with its standard error and degrees of freedom.

    Attributes:
        value: Mean, in the same unit as the values.
        error: Standard error in the same unit. It is NaN for a single value.
        freedom: Degrees of freedom to use with the error.
    """

    value: float
    error: float
    freedom: float

    @property
    def half_width(self) -> float:
        """Half the 95 % confidence interval, or NaN when it is unknown."""
        return self.error * t95(self.freedom) if self.freedom >= 1 else math.nan


def t95(freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t.

    Args:
        freedom: Degrees of freedom. The result is NaN below 1.
    """
    return _quantile(freedom, _T95, 1.96 + 2.5 / max(freedom, 1.0))


def t90(freedom: float) -> float:
    """Return the two-sided 90 % quantile of Student's t.

    It is equal to the one-sided 95 % quantile.

    Args:
        freedom: Degrees of freedom. The result is NaN below 1.
    """
    return _quantile(freedom, _T90, 1.645 + 1.55 / max(freedom, 1.0))


def _quantile(freedom: float, table: Sequence[float], beyond: float) -> float:
    if freedom < 1:
        return math.nan
    if freedom > len(table):
        return beyond
    low = int(freedom)
    high = min(low + 1, len(table))
    return table[low - 1] + (freedom - low) * (table[high - 1] - table[low - 1])


def correlated_mean(values: Floats) -> Mean:
    """Return the mean of seconds that may be correlated, with its 95 % interval.

    See :mod:`~broadside.coordinator.core.measure.formulas.correlation` for the method. To get the
    standard error, the half width is divided by the quantile of Student's t. The degrees of freedom
    are set to the number of batches minus one. If there are fewer than :data:`VALUES_MIN` values,
    the error is NaN.

    Args:
        values: Seconds in time order, in any unit.
    """
    count = len(values)
    if count == 0:
        return Mean(value=math.nan, error=math.nan, freedom=0)
    value = float(values.mean())
    if count < VALUES_MIN:
        return Mean(value=value, error=math.nan, freedom=0)
    freedom = count // math.ceil(count / BATCHES_MAX_COUNT) - 1
    half = correlated_half_width(values)
    return Mean(value=value, error=half / t95(freedom), freedom=freedom)


def mean_of_bursts(values: Sequence[float], half_widths: Sequence[float | None]) -> Mean:
    """Return the mean for all bursts in a run, with an error that includes their scatter.

    If there are several bursts, the widest of these intervals will be used:

    - the bursts' own intervals, in quadrature
    - Student's interval for the bursts' rates
    - the interval from :func:`correlated_half_width`, because bursts may be correlated

    If bursts are not correlated, the interval will be wider than needed, and more so when there are
    only a few. With three bursts, we cannot exclude correlation.

    Args:
        values: The bursts' rates, in time order.
        half_widths: Half of each burst's 95 % interval, or ``None`` if unknown.

    Returns:
        The mean. For a single burst, it has the burst's own interval.
    """
    count = len(values)
    if count == 0:
        return Mean(value=math.nan, error=math.nan, freedom=0)
    array = np.array(values, dtype=np.float64)
    value = float(array.mean())
    known = [half for half in half_widths if half is not None and not math.isnan(half)]
    within = math.hypot(*known) / count if len(known) == count else math.nan
    if count == 1:
        return Mean(value=value, error=within / t95(WITHIN_FREEDOM), freedom=WITHIN_FREEDOM)
    freedom = count - 1
    student = float(array.std(ddof=1)) / math.sqrt(count) * t95(freedom)
    between = max(student, correlated_half_width(array, BURSTS))
    if within > between:
        return Mean(value=value, error=within / t95(WITHIN_FREEDOM), freedom=WITHIN_FREEDOM)
    return Mean(value=value, error=between / t95(freedom), freedom=freedom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Slowest part of a window, with the length used by the check ``shape``.

    Attributes:
        at: Index for its first second.
        length_s: Length in seconds.
        mean: Mean, in the same unit as the values.
        noise: Standard deviation for such a mean, using differences between neighbouring seconds.
    """

    at: int
    length_s: int
    mean: float
    noise: float


def stretch_s(window_s: int) -> int:
    """Return how long the parts are that will be compared to the limit, in seconds.

    Args:
        window_s: Length of the window in seconds.
    """
    return max(STRETCH_LEAST_S, math.ceil(STRETCH_RATIO * window_s))


def slowest_stretch(
    fleet: Floats, readings: Floats | None = None, reading_s: float = 1.0
) -> Stretch | None:
    """Find the part of a window that has the lowest mean.

    A part is a fifth of the window, and no shorter than :data:`STRETCH_LEAST_S`. Differences
    between neighbouring readings are used to estimate the noise, because a fall only changes a
    single difference.

    Args:
        fleet: A value for every second in the window.
        readings: Means from which the seconds were made, or ``None`` if the seconds are the
            readings.
        reading_s: Reading length in seconds.

    Returns:
        The slowest part, or ``None`` if the window is shorter than two parts.
    """
    length = stretch_s(len(fleet))
    if len(fleet) < 2 * length:
        return None
    sums = np.concatenate(([0.0], np.cumsum(fleet)))
    means = (sums[length:] - sums[:-length]) / length
    at = int(np.argmin(means))
    steps = np.abs(np.diff(fleet if readings is None else readings))
    noise = 0.0
    if len(steps):
        noise = 1.4826 * float(np.median(steps)) / math.sqrt(2 * length / max(1.0, reading_s))
    return Stretch(at=at, length_s=length, mean=float(means[at]), noise=noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cliff:
    """Fall after a plateau that lasts to the end of the window.

    Attributes:
        at: Index for the first second after the fall.
        before: Mean on the plateau.
        after: Mean after the fall.
    """

    at: int
    before: float
    after: float


def cliff(fleet: Floats) -> Cliff | None:
    """Split a window into a plateau and a lower rest.

    To find the split, a least-squares change point is used (a step of binary segmentation, Scott
    and Knott, Biometrics 30, 1974). Each part needs to have 2 seconds or more, and a tenth of the
    window or more. The fall must not be smaller than :data:`FALL_RATIO` of the plateau, or than
    four times its scatter. A device falls within a second, so the seconds on both sides of the
    split are not part of the two means.

    Args:
        fleet: A value for every second in the window.

    Returns:
        The fall, or ``None`` if it is too small or if the window is too short.
    """
    count = len(fleet)
    least = max(2, math.ceil(count / 10))
    if count < 2 * least:
        return None
    sums = np.cumsum(fleet)
    at = np.arange(least, count - least + 1)
    before = sums[at - 1] / at
    after = (sums[-1] - sums[at - 1]) / (count - at)
    gain = at * (count - at) / count * (before - after) ** 2
    gain[after >= before] = 0.0
    best = int(np.argmax(gain))
    if gain[best] <= 0:
        return None
    split, high, low = int(at[best]), float(before[best]), float(after[best])
    scatter = float(np.median(np.abs(fleet[:split] - np.median(fleet[:split])))) * 1.4826
    if high - low < max(FALL_RATIO * high, 4 * scatter):
        return None
    if min(split, count - split) > 2:
        high, low = float(fleet[: split - 1].mean()), float(fleet[split + 1 :].mean())
    return Cliff(at=split, before=high, after=low)
