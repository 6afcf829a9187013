"""Functions to draw random series with mean 1 and a given autocorrelation."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from tests.worlds.record_format import Floats

Family = Literal["lognormal", "bursty", "pareto"]

# Smaller terms of the filter below are lost in the rounding of the series.
_FILTER_LEAST = 1e-9
# Tail index and maximum of the Pareto family. Downey (2005) and Crovella and Bestavros (1997)
# report tail indices between 1.1 and 2 for transfers. The series is limited to have a finite mean.
PARETO_INDEX = 1.8
PARETO_MAX = 30.0


def ar1(rng: np.random.Generator, shape: tuple[int, int], rho: float) -> Floats:
    """Draw stationary AR(1) series with variance 1.

    The filter `1 / (1 - rho B)` is the product of the terms `1 + rho^(2^k) B^(2^k)`, so no
    loop over time is necessary.

    Args:
        rng: Random number generator to use.
        shape: Number of series and values to draw.
        rho: Correlation between neighbours, from 0 to below 1.

    Returns:
        Array with this shape.
    """
    series = rng.standard_normal(shape)
    if rho == 0.0:
        return series
    # The first value has the stationary variance. The others are innovations.
    series[:, 1:] *= np.sqrt(1.0 - rho * rho)
    step, factor = 1, rho
    while step < shape[1] and factor > _FILTER_LEAST:
        series[:, step:] += factor * series[:, :-step]
        step, factor = step * 2, factor * factor
    return series


def lognormal(rng: np.random.Generator, shape: tuple[int, int], cov: float, rho: float) -> Floats:
    """Draw positive series with mean 1 and coefficient of variation `cov`.

    The logarithm is an AR(1) series. Its correlation is chosen for the given `cov`, so the series
    has the correlation `rho`.
    """
    if cov == 0.0:
        return np.ones(shape)
    variance = np.log1p(cov * cov)
    inner = np.log1p(rho * cov * cov) / variance
    series = np.exp(np.sqrt(variance) * ar1(rng, shape, inner) - variance / 2.0)
    return np.asarray(series, dtype=np.float64)


def bursty(rng: np.random.Generator, shape: tuple[int, int], cov: float, rho: float) -> Floats:
    """Draw series that switch between a low and a high level, with mean 1.

    A quarter of the seconds are high. The level lasts longer with a larger `rho`.
    """
    share = 0.25
    high = 1.0 + cov * np.sqrt((1.0 - share) / share)
    low = max(0.02, (1.0 - share * high) / (1.0 - share))
    high = (1.0 - (1.0 - share) * low) / share
    # Upper quartile of the normal distribution.
    return np.asarray(np.where(ar1(rng, shape, rho) > 0.6744897501960817, high, low))


def pareto(rng: np.random.Generator, shape: tuple[int, int], cov: float, rho: float) -> Floats:
    """Draw independent heavy-tailed values with mean 1, mixed with a constant.

    The coefficient of variation of a single value is `cov`. `rho` has no effect.
    """
    del rho
    a, top = PARETO_INDEX, PARETO_MAX
    mass = 1.0 - top**-a
    mean = a / (a - 1.0) * (1.0 - top ** (1.0 - a)) / mass
    square = a / (2.0 - a) * (top ** (2.0 - a) - 1.0) / mass
    values = (1.0 - mass * rng.random(shape)) ** (-1.0 / a)
    spread = np.sqrt(square - mean * mean) / mean
    weight = min(1.0, cov / spread)
    return np.asarray(1.0 - weight + weight * values / mean, dtype=np.float64)


DRAW: dict[Family, Callable[[np.random.Generator, tuple[int, int], float, float], Floats]] = {
    "lognormal": lognormal,
    "bursty": bursty,
    "pareto": pareto,
}


def weights(rng: np.random.Generator, count: int, family: str, largest_ratio: float) -> Floats:
    """Draw the relative sizes of the pairs.

    Args:
        rng: Random number generator to use.
        count: Number of pairs to draw.
        family: `equal`, `lognormal` or `pareto`.
        largest_ratio: Ratio of the largest size to the smallest.

    Returns:
        Sizes with sum 1.
    """
    if family == "equal":
        sizes = np.ones(count)
    elif family == "lognormal":
        # Four standard deviations between the smallest and the largest.
        sizes = np.exp(rng.standard_normal(count) * np.log(largest_ratio) / 4.0)
    else:
        sizes = (1.0 - rng.random(count)) ** (-1.0 / PARETO_INDEX)
    sizes = np.minimum(sizes, sizes.min() * largest_ratio)
    return np.asarray(sizes / sizes.sum(), dtype=np.float64)
