"""Confidence intervals for the mean of a series, when its values may be correlated.

For a short series, we cannot get a good estimate of the correlation. So we use an average for all
correlations that are plausible for the series. To weight them, their restricted likelihood is used
(REML; D. A. Harville, Biometrika 61, 1974), with equal prior weights. For averaging and not using a
single value, see G. Box and G. Tiao, *Bayesian Inference in Statistical Analysis*, 1973, chapter 2.

There are two types of memory:

- Short memory is an AR(1) process (G. E. P. Box and G. M. Jenkins, *Time Series Analysis*).
- Long memory is fractional noise (C. W. J. Granger and R. Joyeux, Journal of Time Series Analysis
  1, 1980; J. R. M. Hosking, Biometrika 68, 1981).

If a series is longer than :data:`BATCHES_MAX_COUNT`, batch means are used (A. M. Law, *Simulation
Modeling and Analysis*, chapter 9). This does not change the error of the mean.

To see the coverage in simulations, go to docs/validation.md, "How often the intervals hold".
"""

import math
from functools import cache
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats

# Process parameters, as (AR(1) coefficient, order d of the fractional difference).
Family = tuple[tuple[float, float], ...]

BATCHES_MAX_COUNT: Final = 40
_SHORT_MEMORY: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
# Network traffic has Hurst parameters H of 0.7 to 0.9 (W. E. Leland et al., IEEE/ACM Transactions
# on Networking 2, 1994). As d = H - 1/2, d can be up to 0.4.
_LONG_MEMORY: Final = (0.0, 0.1, 0.2, 0.3, 0.4)
# To be used for seconds. TCP's control loops (short memory) act on traffic that may have long
# memory.
SECONDS: Final[Family] = tuple((phi, d) for phi in _SHORT_MEMORY for d in _LONG_MEMORY)
# To be used for bursts. They are minutes apart, so no TCP control loop will last from a burst to
# the next. A process only has a single type of memory.
BURSTS: Final[Family] = (
    *((phi, 0.0) for phi in _SHORT_MEMORY),
    *((0.0, d / 20) for d in range(1, 10)),
)
# 0.95 ** 400 is below 2e-9.
_FILTER_COUNT: Final = 400
_LEVEL: Final = 0.95
# Share of the largest value. A double has a precision of 2.2e-16, and some sums will add to the
# error.
_ROUNDING_RATIO: Final = 1e-12


def correlated_half_width(values: Floats, family: Family = SECONDS) -> float:
    """Return half the 95 % confidence interval of a correlated series' mean.

    Args:
        values: Two or more values in time order, in any unit.
        family: Processes that may have made the values.

    Returns:
        Half width in the same unit as the values. It is 0 when all values are equal.
    """
    size = math.ceil(len(values) / BATCHES_MAX_COUNT)
    count = len(values) // size
    batches = values[: count * size].reshape(count, size).mean(axis=1)
    off = batches - batches.mean()
    top = float(np.abs(off).max())
    # If values only differ by rounding, they are constant.
    if top <= _ROUNDING_RATIO * float(np.abs(batches).max()):
        return 0.0
    off = off / top
    quadratic, constant, variance = _models(count, family)
    squares = quadratic @ np.outer(off, off).ravel()
    logs = constant - (count - 1) / 2 * np.log(squares)
    weights = np.exp(logs - logs.max())
    errors = np.sqrt(squares / (count - 1) * variance)
    return top * _quantile(weights / weights.sum(), errors, count - 1)


def _quantile(weights: Floats, errors: Floats, freedom: int) -> float:
    """Return the two-sided quantile of a mixture of scaled Student distributions."""
    at, previous = _student(freedom)
    known = weights > 1e-9
    weights, errors = weights[known], errors[known]
    low, high = 0.0, float(at[-1] * errors.max())
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if float(weights @ np.interp(middle / errors, at, previous)) < _LEVEL:
            low = middle
        else:
            high = middle
    return high


@cache
def _student(freedom: int) -> tuple[Floats, Floats]:
    """Return a grid of t, and the two-sided probability to be within each value."""
    at = np.concatenate(([0.0], np.geomspace(1e-3, 1e4, 4000)))
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    scale -= math.log(freedom * math.pi) / 2
    density = np.exp(scale - (freedom + 1) / 2 * np.log1p(at**2 / freedom))
    previous = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) * np.diff(at))))
    return at, np.minimum(previous, 1.0)


@cache
def _models(count: int, family: Family) -> tuple[Floats, Floats, Floats]:
    """Return the terms that each process needs to compute its restricted likelihood.

    Args:
        count: Number of values in the series.
        family: Processes to use.

    Returns:
        Quadratic forms for the contrasts, as a flattened ``count`` x ``count`` matrix per process.
        Constants for the log likelihood. Variance of the mean divided by that of a single value.
    """
    distances = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    quadratic = np.empty((len(family), count * count))
    constant, variance = np.empty(len(family)), np.empty(len(family))
    for index, (phi, d) in enumerate(family):
        covariance = _autocorrelation(phi, d, count)[distances]
        inverse = np.linalg.inv(covariance)
        sums = inverse.sum(axis=1)
        quadratic[index] = (inverse - np.outer(sums, sums) / sums.sum()).ravel()
        constant[index] = -(np.linalg.slogdet(covariance)[1] + math.log(sums.sum())) / 2
        variance[index] = covariance.mean()
    return quadratic, constant, variance


def _autocorrelation(phi: float, d: float, count: int) -> Floats:
    """Return the autocorrelation of ARFIMA(1, d, 0) at lags 0 to ``count - 1``."""
    reach = _FILTER_COUNT if phi > 0 else 0
    lags = np.arange(1, count + reach)
    noise = np.concatenate(([1.0], np.cumprod((lags - 1 + d) / (lags - d))))
    weights = phi ** np.abs(np.arange(-reach, reach + 1))
    both = np.concatenate((noise[reach:0:-1], noise))
    results = np.convolve(both, weights, "valid")
    return np.asarray(results[:count] / results[0])
