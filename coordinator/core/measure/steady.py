"""Where a burst is steady, how sure its mean is, and whether it fell off a cliff."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from coordinator.core.measure.evidence import Floats

MSER_BATCH: Final = 5  # s a batch, where the window is long enough for batches
MSER_BATCHED_FROM: Final = 60  # s of window from which batches are used; below, single seconds
RAMP_RATIO: Final = 0.01  # of the steady mean: a head that differs less is not a ramp
HEAD_CREDIT_RATIO: Final = 0.1  # of the window: how long a head above the rest may be cut

# Two-sided 95 % quantiles of Student's t by degrees of freedom 1..30; beyond, 1.96 + 2.5 / df is
# within 0.2 %.
_T95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def ramp_s(fleet: Floats) -> int:
    """How many leading seconds of a window to leave out as ramp.

    MSER (White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69, 1997) picks the cut that minimises the standard error of what stays, over the
    first half; MSER-5 (White, Cobb and Spratt, Winter Simulation Conference 2000) on batches of
    five where the window is 60 s or longer. Of what MSER cuts, seconds at its end that are like
    the rest (within 1 % or two standard deviations) are kept after all. A cut stands only if it
    removes a ramp, a head below the rest, or, within the first tenth, a head above it (a token
    bucket's credit): a fall after a plateau is never cut away.
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
    off = np.abs(fleet[:cut] - mean) > max(RAMP_RATIO * mean, 2 * float(rest.std()))
    if not off.any():
        return 0
    cut = int(np.flatnonzero(off)[-1]) + 1
    head = float(fleet[:cut].mean())
    if head < mean or cut <= HEAD_CREDIT_RATIO * len(fleet):
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
    if freedom < 1:
        return math.nan
    if freedom <= len(_T95):
        low = int(freedom)
        high = min(low + 1, len(_T95))
        return _T95[low - 1] + (freedom - low) * (_T95[high - 1] - _T95[low - 1])
    return 1.96 + 2.5 / freedom


def batch_length(count: int) -> int:
    """Values a batch: the cube root of the count, rounded up.

    The rate at which block methods' error is smallest for a variance (Künsch, Annals of
    Statistics 17, 1989).
    """
    return max(1, math.ceil(round(math.cbrt(count), 9)))


def batch_mean(values: Floats) -> Mean:
    """Mean of a correlated series by non-overlapping batch means.

    Batches of :func:`batch_length` values; a short last batch is left out of the error, not of
    the mean. (Law, *Simulation Modeling and Analysis*, chapter 9: method of batch means.)
    """
    count = len(values)
    if count == 0:
        return Mean(value=math.nan, error=math.nan, freedom=0)
    value = float(values.mean())
    size = batch_length(count)
    batches = count // size
    if batches < 2:
        return Mean(value=value, error=math.nan, freedom=0)
    means = values[: batches * size].reshape(batches, size).mean(axis=1)
    return Mean(
        value=value,
        error=float(means.std(ddof=1)) / math.sqrt(batches),
        freedom=batches - 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cliff:
    """A fall after a plateau that lasts to the end of the window."""

    at: int  # index of the first fallen second
    before: float
    after: float


def cliff(fleet: Floats, *, drop_ratio: float = 0.15) -> Cliff | None:
    """The one split into plateau and lower rest that explains most, if the rest is low enough.

    Least-squares change point (one binary segmentation step: Scott and Knott, Biometrics 30,
    1974). Both parts are at least 2 s and a tenth of the window, the fall is at least
    ``drop_ratio`` of the plateau and four times its scatter.
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
    if high - low < max(drop_ratio * high, 4 * scatter):
        return None
    return Cliff(at=split, before=high, after=low)
