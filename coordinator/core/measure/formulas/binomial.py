"""Exact interval for a share, by Clopper and Pearson (Biometrika 26, 1934).

It contains the true share with at least the given confidence for any number of trials, if the
trials are independent.
"""

import math
from collections.abc import Callable
from typing import Final

# An exact interval of 95 % misses in up to 5 of 100 runs, so a set of 100 often has more misses.
CONFIDENCE: Final = 0.99
# Bisections, enough for the resolution of a float.
_STEPS_COUNT: Final = 60
_TERMS_MAX_COUNT: Final = 100_000


def share_interval(
    count: int, trials_count: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the lower and upper end of the interval for a share.

    Args:
        count: Trials with the event.
        trials_count: All trials, at least one.
        confidence: Confidence of the interval.

    Returns:
        Both ends, as ratios from 0 to 1.
    """
    tail, others = (1 - confidence) / 2, trials_count - count
    low = _solve(lambda share: incomplete_beta(count, others + 1, share), tail) if count else 0.0
    high = (
        _solve(lambda share: incomplete_beta(count + 1, others, share), 1 - tail) if others else 1.0
    )
    return low, high


def _solve(function: Callable[[float], float], value: float) -> float:
    """Return where an increasing function of 0 to 1 has a value."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS_COUNT):
        middle = (low + high) / 2
        if function(middle) < value:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function (NIST DLMF 8.17.22).

    Args:
        a: First parameter, above 0.
        b: Second parameter, above 0.
        x: Argument, 0 to 1.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front += a * math.log(x) + b * math.log1p(-x)
    # Continued fraction, evaluated forwards (Lentz).
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _TERMS_MAX_COUNT):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / (1 + term * d), 1 + term / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return math.exp(front) * fraction / a
