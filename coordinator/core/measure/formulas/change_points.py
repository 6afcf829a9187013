"""Detection of steps in the mean of a series, with their size and confidence interval.

Levels are found by PELT (Killick, Fearnhead, Eckley: Optimal detection of changepoints with a
linear computational cost, JASA 107, 2012). PELT divides the series into segments, so that the
squared distances from the segment means plus a price per segment are as small as possible.

Seconds of traffic are not independent, and we need to know the levels to compute their variance. So
we run PELT for a ladder of variances. Then we use the cuts for which a first-order autoregression
about the levels has the best fit to the values, by an information criterion (Chakar, Lebarbier,
Levy-Leduc, Robin: A robust approach for estimating change-points in the mean of an AR(1) process,
Bernoulli 23, 2017). To be reported, a step should also be significant when it is compared to the
*long-run* variance about its levels.

TCP needs some seconds to get from one level to the next. The autoregression can fit such a ramp as
well as a step. So when cuts are compared and the levels are far apart, values on a ramp are set to
the level on their side of the cut.

With least squares, a dip of a second or two would be a step. So such values are first set to the
median of their neighbours (the Hampel identifier; Davies, Gather: The identification of multiple
outliers, JASA 88, 1993). If a short segment is below or above both neighbours, it is an excursion,
such as a stall. As there is the same traffic before and after it, its values will be removed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from broadside.coordinator.core.arrays import Floats

# Minimum number of values in a level. TCP needs a few seconds to settle.
SEGMENT_LEAST: Final = 5
# Price for a segment. It is multiplied by the logarithm of the number of values.
PRICE_LOGS: Final = 3.0
# Minimum step size, as a share of the larger level. A smaller step is not caused by a device.
STEP_LEAST_RATIO: Final = 0.02
# Minimum step size in standard errors. It is large because we use the best of many places.
STEP_LEAST_ERRORS: Final = 4.0
# Minimum noise, as a share of the median. Smaller noise is not plausible.
NOISE_LEAST_RATIO: Final = 0.002
# Number of variances. Each is four times the previous.
LADDER_COUNT: Final = 6
# How many values TCP may need on each side of a cut to get from level to level.
ON_THE_WAY: Final = 3
RHO_MAX: Final = 0.95
# Minimum for the variance of rho, multiplied by the number of values. If rho is near one, it is not
# as precise as 1 - rho**2 would make it look.
RHO_VARIANCE_LEAST: Final = 0.05
# Standard errors to add to rho.
CAUTION: Final = 1.645
TRIM_DEVIATIONS: Final = 4.0
# Robust standard deviations from the neighbours' median.
OUTLIER_DEVIATIONS: Final = 6.0
# How many values to use on each side for the neighbours' median.
OUTLIER_REACH: Final = 3
# Maximum number of values in an excursion. A longer segment will be treated as a level.
EXCURSION_MAX: Final = 15
# Median of |x| for a standard normal distribution.
_MAD: Final = 0.6745
_Z95: Final = 1.96
# Probability for the interval in which a step lies.
_SURE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Step of the mean. An index is that of the first value at the new level.

    Attributes:
        index: Most likely index.
        index_low: Lower bound of the 95 % credible interval, using a uniform prior for the values
            in both levels.
        index_high: Upper bound of the same interval.
        before: Mean before the step.
        after: Mean after the step.
        half_width: Half the 95 % interval for the size.
    """

    index: int
    index_low: int
    index_high: int
    before: float
    after: float
    half_width: float

    @property
    def size(self) -> float:
        return self.after - self.before


def find_steps(values: Floats) -> tuple[Step, ...]:
    """Find the steps in a series, in time order.

    There must not be any unknown values. If the series is shorter than two levels, there are no
    steps.
    """
    places = np.arange(len(values))
    while len(places) >= 2 * SEGMENT_LEAST:
        seen = _without_outliers(values[places])
        cuts, noise = _levels(seen)
        edges = [0, *cuts, len(seen)]
        excursions = _excursions(seen, edges)
        if not excursions:
            steps = (_step(seen, noise, *edges[at : at + 3]) for at in range(len(cuts)))
            return tuple(
                replace(
                    step,
                    index=int(places[step.index]),
                    index_low=int(places[step.index_low]),
                    index_high=int(places[step.index_high]),
                )
                for step in steps
            )
        places = np.delete(places, np.r_[*excursions])
    return ()


def levels_of(steps: Sequence[Step], values: Floats) -> Floats:
    """Return a level for every value.

    Args:
        steps: Steps in the series, in time order.
        values: The series.

    Returns:
        An array with the same length as ``values``. A level is the median of the values between two
        steps.
    """
    parts = np.split(values, [step.index for step in steps])
    return np.concatenate([np.full(len(part), np.median(part)) for part in parts])


def _without_outliers(values: Floats) -> Floats:
    """Return a copy where outliers are set to their neighbours' median."""
    padded = np.pad(values, OUTLIER_REACH, mode="reflect")
    usual = np.median(sliding_window_view(padded, 2 * OUTLIER_REACH + 1), axis=1)
    off = np.abs(values - usual)
    deviation = float(np.median(off)) / _MAD
    least = math.sqrt(_least_variance(values))
    return np.where(off > OUTLIER_DEVIATIONS * max(deviation, least), usual, values)


def _levels(values: Floats) -> tuple[list[int], float]:
    """Return significant cuts, and the long-run variance about their levels."""
    cuts = _cuts(values)
    while True:
        noise = long_run_variance(values, cuts)
        selected = _merged(values, cuts, noise)
        if selected == cuts:
            return cuts, noise
        cuts = selected


def _excursions(values: Floats, edges: Sequence[int]) -> list[slice]:
    """Return short segments that are below or above both neighbours.

    If there are two in a row, only the shorter will be returned.
    """
    means = [float(values[a:b].mean()) for a, b in pairwise(edges)]
    lengths = np.diff(edges)
    results: list[int] = []
    for at in sorted(range(1, len(means) - 1), key=lambda at: int(lengths[at])):
        beyond = (means[at] - means[at - 1]) * (means[at] - means[at + 1]) > 0
        if beyond and lengths[at] <= EXCURSION_MAX and not {at - 1, at + 1} & set(results):
            results.append(at)
    return [slice(edges[at], edges[at + 1]) for at in results]


def long_run_variance(values: Floats, cuts: Sequence[int] = ()) -> float:
    """Return the long-run variance about the levels, n times the variance of a mean for large n.

    To be safe, we use the upper bound of the one-sided 95 % interval for the autocorrelation. If it
    is set too low for a short series, noise will be reported as steps.

    Args:
        values: The series.
        cuts: Indexes where a new level starts.
    """
    rest, rho = _about_levels(values, cuts)
    variance = float((rest**2).sum()) / max(1, len(rest) - len(cuts) - 1)
    rho += CAUTION * math.sqrt(max(1 - rho**2, RHO_VARIANCE_LEAST) / len(rest))
    rho = _bounded(rho)
    return max(variance * (1 + rho) / (1 - rho), _least_variance(values))


def _about_levels(values: Floats, cuts: Sequence[int]) -> tuple[Floats, float]:
    """Return the values minus their levels, and the autocorrelation of this difference."""
    parts = np.split(values, list(cuts))
    rest = np.concatenate([part - part.mean() for part in parts])
    all_of_it = float((rest**2).sum())
    rho = float((rest[1:] * rest[:-1]).sum()) / all_of_it if all_of_it > 0 else 0.0
    # Each subtracted mean reduces it by (1 + 3 rho) / n (Kendall: Note on bias in the estimation of
    # autocorrelation, Biometrika 41, 1954).
    return rest, rho + len(parts) * (1 + 3 * max(0.0, rho)) / len(rest)


def _bounded(rho: float) -> float:
    return min(RHO_MAX, max(0.0, rho))


def _least_variance(values: Floats) -> float:
    least = (NOISE_LEAST_RATIO * float(np.median(np.abs(values)))) ** 2
    return float(max(least, np.finfo(float).tiny))


def _cuts(values: Floats) -> list[int]:
    """Return the best cuts by information criterion, using a ladder of variances."""
    price = PRICE_LOGS * math.log(len(values))
    # If a difference is above four robust deviations, it is a step.
    distances = np.abs(np.diff(values))
    near = distances[distances <= TRIM_DEVIATIONS * float(np.median(distances)) / _MAD]
    first = max(float((near**2).mean()) / 2, _least_variance(values))
    tried = [_partition(values, first * 4**rung, price) for rung in range(LADDER_COUNT)]
    return min([*tried, []], key=lambda cuts: _misfit(values, cuts) + price * len(cuts))


def _misfit(values: Floats, cuts: Sequence[int]) -> float:
    """Return twice the negative log likelihood for the values, without a constant."""
    rest, rho = _about_levels(_arrived(values, cuts), cuts)
    news = rest[1:] - _bounded(rho) * rest[:-1]
    return len(values) * math.log(max(float((news**2).mean()), _least_variance(values)))


def _arrived(values: Floats, cuts: Sequence[int]) -> Floats:
    """Return a copy where values on a ramp are set to the level on their side of the cut.

    This is only done if the levels are far apart.
    """
    parts = np.split(values, list(cuts))
    levels = [float(np.median(part)) for part in parts]
    off = np.concatenate([part - level for part, level in zip(parts, levels, strict=True)])
    far = TRIM_DEVIATIONS * float(np.median(np.abs(off))) / _MAD
    arrived = values.copy()
    for cut, before, after in zip(cuts, levels, levels[1:], strict=False):
        for start, current in ((cut - ON_THE_WAY, before), (cut, after)):
            part = arrived[start : start + ON_THE_WAY]
            between = (part - before) * (part - after) < 0
            part[between & (abs(after - before) > far)] = current
    return arrived


def _partition(values: Floats, noise: float, price: float) -> list[int]:
    """Run PELT, and return where new segments start."""
    count = len(values)
    sums = np.concatenate(([0.0], np.cumsum(values - values.mean())))
    squares = np.concatenate(([0.0], np.cumsum((values - values.mean()) ** 2)))
    best = np.full(count + 1, np.inf)
    best[0] = -price
    last = np.zeros(count + 1, np.intp)
    starts = np.zeros(1, np.intp)
    for end in range(SEGMENT_LEAST, count + 1):
        length = end - starts
        spread = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / length
        costs = best[starts] + spread / noise
        chosen = int(costs.argmin())
        best[end] = costs[chosen] + price
        last[end] = starts[chosen]
        selected = starts[costs <= best[end]]
        starts = np.append(selected, end - SEGMENT_LEAST + 1)
        starts = starts[np.isfinite(best[starts])]
    cuts: list[int] = []
    place = int(last[count])
    while place > 0:
        cuts.append(place)
        place = int(last[place])
    return cuts[::-1]


def _merged(values: Floats, cuts: Sequence[int], noise: float) -> list[int]:
    """Remove cuts between similar levels, starting with the least significant."""
    selected = list(cuts)
    while selected:
        edges = [0, *selected, len(values)]
        means = [float(values[a:b].mean()) for a, b in pairwise(edges)]
        lengths = np.diff(edges)
        shares = [
            abs(after - before)
            / max(
                STEP_LEAST_RATIO * max(abs(before), abs(after)),
                STEP_LEAST_ERRORS * math.sqrt(noise * (1 / a + 1 / b)),
            )
            for before, after, a, b in zip(means, means[1:], lengths, lengths[1:], strict=False)
        ]
        least = int(np.argmin(shares))
        if shares[least] >= 1:
            break
        del selected[least]
    return selected


def _step(values: Floats, noise: float, first: int, cut: int, stop: int) -> Step:
    before, after = float(values[first:cut].mean()), float(values[cut:stop].mean())
    # Likelihood for the cut to be at each place between the two levels, using a uniform prior.
    places = np.arange(first + 1, stop)
    heads = np.cumsum((values[first : stop - 1] - before) ** 2)
    tails = np.cumsum(((values[first + 1 : stop] - after) ** 2)[::-1])[::-1]
    lost = (heads + tails) / (2 * noise)
    weights = np.exp(lost.min() - lost)
    shares = np.cumsum(weights) / weights.sum()
    low, high = np.searchsorted(shares, [(1 - _SURE) / 2, (1 + _SURE) / 2])
    return Step(
        index=cut,
        index_low=min(cut, int(places[low])),
        index_high=max(cut, int(places[min(int(high), len(places) - 1)])),
        before=before,
        after=after,
        half_width=_Z95 * math.sqrt(noise * (1 / (cut - first) + 1 / (stop - cut))),
    )
