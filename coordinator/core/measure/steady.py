"""Where a burst is steady, how sure its mean is, and whether it fell off a cliff."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.correlation import (
    BATCHES_MAX_COUNT,
    BURSTS,
    correlated_half_width,
)

MSER_BATCH: Final = 5  # s a batch, where the window is long enough for batches
MSER_BATCHED_FROM: Final = 60  # s of window from which batches are used; below, single seconds
RAMP_RATIO: Final = 0.01  # of the steady mean: a head that differs less is not a ramp
# How much of a head may be cut. TCP's slow start and a start's spread are over in seconds; a device
# that needs longer is slower for longer, and that is a finding, not a ramp.
RAMP_MAX_RATIO: Final = 0.2  # of the window
RAMP_LEAST_S: Final = 1  # s that may be cut of one that is too short for an interval
RAMP_MAX_S: Final = 30
HEAD_CREDIT_RATIO: Final = 0.1  # of the window: how long a head above the rest may be cut

# Under so many seconds a mean has no interval: from 7 on (6 degrees of freedom) the quantile of t
# is within a quarter of the normal's.
VALUES_MIN: Final = 7
WITHIN_FREEDOM: Final = 10  # taken for errors that come from within bursts
STRETCH_RATIO: Final = 0.2  # of the window: a part that lasts
STRETCH_LEAST_S: Final = 5
# Of a plateau: the least fall that is a cliff. Over a tenth of a window it makes the coefficient of
# variation 5 %, at which RFC 9411 (section 7, results validation) no longer calls a rate constant.
FALL_RATIO: Final = 0.05 / math.sqrt(0.1 * 0.9)

# Two-sided 95 % quantiles of Student's t by degrees of freedom 1..30; beyond, 1.96 + 2.5 / df is
# within 0.2 %.
_T95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

# One-sided 95 %, of two one-sided tests; beyond 30 degrees 1.645 + 1.55 / df is within 0.1 %.
_T90: Final = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
    1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725,
    1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip


def ramp_s(fleet: Floats) -> int:
    """How many leading seconds of a window to leave out as ramp.

    MSER (White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69, 1997) picks the cut that minimises the standard error of what stays, over the
    first half; MSER-5 (White, Cobb and Spratt, Winter Simulation Conference 2000) on batches of
    five where the window is 60 s or longer. Of what MSER cuts, seconds at its end that are like
    the rest (within 1 % or two standard deviations) are kept after all, and the overshoot behind a
    ramp where both together would be too long. A cut stands only if it removes a ramp, a head
    below the rest, or, within the first tenth, a head above it (a token bucket's credit): a fall
    after a plateau is never cut away. Nor is a head longer than :data:`RAMP_MAX_RATIO` of the
    window or :data:`RAMP_MAX_S`: that is no ramp, and all of it stays, but for what lies before
    its first second that is not below the rest.
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
    ways = [int(np.flatnonzero(off)[-1]) + 1 for off in (abs(above) > unlike, below) if off.any()]
    ways.append(int(np.argmin([*below, False])))
    for cut in ways:
        credit = cut <= HEAD_CREDIT_RATIO * len(fleet)
        if 0 < cut <= most and (credit or fleet[:cut].mean() < mean):
            return cut
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean with its standard error and the degrees of freedom behind it."""

    value: float
    error: float  # standard error; NaN: a single value has none
    freedom: float

    @property
    def half_width(self) -> float:
        """Half of the 95 % confidence interval; NaN when unknown."""
        return self.error * t95(self.freedom) if self.freedom >= 1 else math.nan


def t95(freedom: float) -> float:
    """Two-sided 95 % quantile of Student's t."""
    return _quantile(freedom, _T95, 1.96 + 2.5 / max(freedom, 1.0))


def t90(freedom: float) -> float:
    """Two-sided 90 % quantile, which is the one-sided 95 % one."""
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

    :mod:`~broadside.coordinator.core.measure.correlation` has the method. The standard error is the
    half width over the quantile of Student's t of as many degrees of freedom as there are batches
    but one. Under :data:`VALUES_MIN` values there is no interval.
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
    """Return the mean of a run's bursts; its error holds the scatter between them.

    The interval of several bursts is the widest of three: what their own intervals leave open, in
    quadrature; Student's over the bursts; and, as bursts may be correlated, that of
    :func:`~broadside.coordinator.core.measure.correlation.correlated_half_width`. It is
    conservative for bursts that are not, the more so the fewer they are: from three, correlation
    cannot be excluded.

    Args:
        values: Rates of the bursts, in time order.
        half_widths: Halves of their 95 % intervals; None: unknown.

    Returns:
        The mean; of a single burst with that burst's own interval.
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
    """The slowest part of a window that lasts."""

    at: int  # index of its first second
    length_s: int
    mean: float
    noise: float  # standard deviation of such a mean, by differences of neighbouring seconds


def stretch_s(window_s: int) -> int:
    """Return how long a part of a window lasts that is held against the limit."""
    return max(STRETCH_LEAST_S, math.ceil(STRETCH_RATIO * window_s))


def slowest_stretch(
    fleet: Floats, readings: Floats | None = None, reading_s: float = 1.0
) -> Stretch | None:
    """The lowest mean over any stretch of a fifth of the window, at least :data:`STRETCH_LEAST_S`;
    None: the window is shorter than two of them.

    Its noise is taken from the differences of neighbouring readings, which a fall touches once.

    Args:
        fleet: Seconds of the window.
        readings: Means of the readings that the seconds were made of; None: they are seconds.
        reading_s: Length of those.
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
    """A fall after a plateau that lasts to the end of the window."""

    at: int  # index of the first fallen second
    before: float
    after: float


def cliff(fleet: Floats) -> Cliff | None:
    """The one split into plateau and lower rest that explains most, if the rest is low enough.

    Least-squares change point (one binary segmentation step: Scott and Knott, Biometrics 30,
    1974). Both parts are at least 2 s and a tenth of the window, the fall is at least
    :data:`FALL_RATIO` of the plateau and four times its scatter.
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
    return Cliff(at=split, before=high, after=low)
