"""Where the mean of a series steps from one level to another, how far, and how sure that is.

Levels are found by PELT (Killick, Fearnhead, Eckley: Optimal detection of changepoints with a
linear computational cost, JASA 107, 2012): the cut into segments that minimises the squared
distances from the segments' means plus a price for each segment. Seconds of traffic are not
independent, and how little is not known before their levels are: so it is done for a ladder of
variances, and of the cuts that come of them the one is taken under which a first-order
autoregression about the levels tells the values best, by an information criterion (Chakar,
Lebarbier, Levy-Leduc, Robin: A robust approach for estimating change-points in the mean of an AR(1)
process, Bernoulli 23, 2017). A step then stands out of the *long-run* variance about its levels.

TCP takes seconds from one level to the next, and of those a line of that autoregression tells as
much as a step: they count as arrived where cuts are compared, if the levels are far apart.

Least squares see a step in a dip of a second or two, so such values are set to the median of their
neighbours beforehand (the Hampel identifier; Davies, Gather: The identification of multiple
outliers, JASA 88, 1993). A short segment under both its neighbours, or over both, is an excursion
such as a stall: what carried as much before and after did not change. Its values are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from broadside.coordinator.core.measure.columns import Floats

SEGMENT_LEAST: Final = 5  # values a level lasts, at least: TCP settles within a few seconds
PRICE_LOGS: Final = 3.0  # of a segment, in logarithms of the count
STEP_LEAST_RATIO: Final = 0.02  # of the larger level: what is smaller is no step of a device
STEP_LEAST_ERRORS: Final = 4.0  # standard errors of its size, at the best of many places
NOISE_LEAST_RATIO: Final = 0.002  # of the median: the least noise that is believed
LADDER_COUNT: Final = 6  # variances, each four times the one before
ON_THE_WAY: Final = 3  # values on each side of a cut that TCP may need from level to level
RHO_MAX: Final = 0.95
RHO_VARIANCE_LEAST: Final = 0.05  # times the count: rho near one is not that sure
CAUTION: Final = 1.645  # standard errors added to it
TRIM_DEVIATIONS: Final = 4.0
OUTLIER_DEVIATIONS: Final = 6.0  # robust ones from the median of its neighbours
OUTLIER_REACH: Final = 3  # values on each side that the median of a value's neighbours takes
EXCURSION_MAX: Final = 15  # values: what lasts longer is a level of its own
_MAD: Final = 0.6745  # median of |x| of a standard normal
_Z95: Final = 1.96
_SURE: Final = 0.95  # probability of the interval of an instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step; indices are of the first value at the new level."""

    index: int
    index_low: int  # 95 % credible: uniform prior over the two levels' values
    index_high: int
    before: float
    after: float
    half_width: float  # of the size's 95 % interval

    @property
    def size(self) -> float:
        return self.after - self.before


def find_steps(values: Floats) -> tuple[Step, ...]:
    """The steps of a series whose values are all known, in order; none in a short one."""
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
    """The level of each value: the median of those between two steps."""
    parts = np.split(values, [step.index for step in steps])
    return np.concatenate([np.full(len(part), np.median(part)) for part in parts])


def _without_outliers(values: Floats) -> Floats:
    """The values, those far from the median of their neighbours set to it."""
    padded = np.pad(values, OUTLIER_REACH, mode="reflect")
    usual = np.median(sliding_window_view(padded, 2 * OUTLIER_REACH + 1), axis=1)
    off = np.abs(values - usual)
    deviation = float(np.median(off)) / _MAD
    least = math.sqrt(_least_variance(values))
    return np.where(off > OUTLIER_DEVIATIONS * max(deviation, least), usual, values)


def _levels(values: Floats) -> tuple[list[int], float]:
    """Where levels begin that stand out of the long-run variance about them, and that."""
    cuts = _cuts(values)
    while True:
        noise = long_run_variance(values, cuts)
        kept = _merged(values, cuts, noise)
        if kept == cuts:
            return cuts, noise
        cuts = kept


def _excursions(values: Floats, edges: Sequence[int]) -> list[slice]:
    """Short segments that go to one side of their neighbours and come back; of two in a row the
    shorter."""
    means = [float(values[a:b].mean()) for a, b in pairwise(edges)]
    lengths = np.diff(edges)
    found: list[int] = []
    for at in sorted(range(1, len(means) - 1), key=lambda at: int(lengths[at])):
        beyond = (means[at] - means[at - 1]) * (means[at] - means[at + 1]) > 0
        if beyond and lengths[at] <= EXCURSION_MAX and not {at - 1, at + 1} & set(found):
            found.append(at)
    return [slice(edges[at], edges[at + 1]) for at in found]


def long_run_variance(values: Floats, cuts: Sequence[int] = ()) -> float:
    """n times the variance of the mean of n values about their levels, for large n.

    The autocorrelation is taken at the upper end of its one-sided 95 % interval: an autoregression
    of few values that is thought to be less than it is passes for steps.
    """
    rest, rho = _about_levels(values, cuts)
    variance = float((rest**2).sum()) / max(1, len(rest) - len(cuts) - 1)
    rho += CAUTION * math.sqrt(max(1 - rho**2, RHO_VARIANCE_LEAST) / len(rest))
    rho = _bounded(rho)
    return max(variance * (1 + rho) / (1 - rho), _least_variance(values))


def _about_levels(values: Floats, cuts: Sequence[int]) -> tuple[Floats, float]:
    """Values less their levels, and the autocorrelation of what is left."""
    parts = np.split(values, list(cuts))
    rest = np.concatenate([part - part.mean() for part in parts])
    all_of_it = float((rest**2).sum())
    rho = float((rest[1:] * rest[:-1]).sum()) / all_of_it if all_of_it > 0 else 0.0
    # Each mean that was taken off lowers it by (1 + 3 rho) / n (Kendall: Note on bias in the
    # estimation of autocorrelation, Biometrika 41, 1954)
    return rest, rho + len(parts) * (1 + 3 * max(0.0, rho)) / len(rest)


def _bounded(rho: float) -> float:
    return min(RHO_MAX, max(0.0, rho))


def _least_variance(values: Floats) -> float:
    least = (NOISE_LEAST_RATIO * float(np.median(np.abs(values)))) ** 2
    return float(max(least, np.finfo(float).tiny))


def _cuts(values: Floats) -> list[int]:
    """Of the cuts at a ladder of variances, the one that tells most for its price."""
    price = PRICE_LOGS * math.log(len(values))
    # Differences over four robust deviations are steps
    apart = np.abs(np.diff(values))
    near = apart[apart <= TRIM_DEVIATIONS * float(np.median(apart)) / _MAD]
    first = max(float((near**2).mean()) / 2, _least_variance(values))
    tried = [_partition(values, first * 4**rung, price) for rung in range(LADDER_COUNT)]
    return min([*tried, []], key=lambda cuts: _untold(values, cuts) + price * len(cuts))


def _untold(values: Floats, cuts: Sequence[int]) -> float:
    """Twice the logarithm of how unlikely the values are, but for a constant."""
    rest, rho = _about_levels(_arrived(values, cuts), cuts)
    news = rest[1:] - _bounded(rho) * rest[:-1]
    return len(values) * math.log(max(float((news**2).mean()), _least_variance(values)))


def _arrived(values: Floats, cuts: Sequence[int]) -> Floats:
    """The values, those beside a cut that are on their way between levels far apart set to the
    level on their side of it."""
    parts = np.split(values, list(cuts))
    levels = [float(np.median(part)) for part in parts]
    off = np.concatenate([part - level for part, level in zip(parts, levels, strict=True)])
    far = TRIM_DEVIATIONS * float(np.median(np.abs(off))) / _MAD
    arrived = values.copy()
    for cut, before, after in zip(cuts, levels, levels[1:], strict=False):
        for start, own in ((cut - ON_THE_WAY, before), (cut, after)):
            part = arrived[start : start + ON_THE_WAY]
            between = (part - before) * (part - after) < 0
            part[between & (abs(after - before) > far)] = own
    return arrived


def _partition(values: Floats, noise: float, price: float) -> list[int]:
    """PELT: first indices of all segments but the first."""
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
        kept = starts[costs <= best[end]]
        starts = np.append(kept, end - SEGMENT_LEAST + 1)
        starts = starts[np.isfinite(best[starts])]
    cuts: list[int] = []
    place = int(last[count])
    while place > 0:
        cuts.append(place)
        place = int(last[place])
    return cuts[::-1]


def _merged(values: Floats, cuts: Sequence[int], noise: float) -> list[int]:
    """The cuts without those between levels that hardly differ, the least first."""
    kept = list(cuts)
    while kept:
        edges = [0, *kept, len(values)]
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
        del kept[least]
    return kept


def _step(values: Floats, noise: float, first: int, cut: int, stop: int) -> Step:
    before, after = float(values[first:cut].mean()), float(values[cut:stop].mean())
    # The likelihood of each place for the cut between the two levels, as a uniform prior has it
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
