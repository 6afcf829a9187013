"""Confidence sequence for studies, which may be looked at after every burst. Pure.

A 95 % interval that is computed again after every burst, until it excludes zero, is wrong much more
often than in 5 % of the cases. The intervals here hold at all times at once, so a study can stop
when it has its answer. They contain the means that a t-test with a mixture does not reject
(T. L. Lai, Annals of Statistics 4, 1976; H. Wang and A. Ramdas, "Anytime-valid t-tests and
confidence sequences for Gaussian means with unknown variance", Sequential Analysis 44, 2025). By
Ville's inequality, one of them misses the true mean with a probability of at most the error rate.

The values are one number for each round, such as the logarithm of the ratio of two bursts. They
are assumed to be independent with the same scatter. A drift that affects both bursts of a round
does not change their ratio.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np

from broadside.exchange.messages import Message

# Probability that any interval of a study misses the true difference.
ERROR_RATIO: Final = 0.05
# Variance of the expected difference, relative to that between rounds. A large value needs fewer
# rounds for large differences.
_SPREAD: Final = 100.0
# Rounds before a study can stop.
ROUNDS_MIN_COUNT: Final = 3
# Rates of a search among which the error rate is divided.
SEARCH_RATES_COUNT: Final = 10
# Number of rounds for which the expected number is computed, at most.
EXPECTED_MAX_COUNT: Final = 1000


class Decision(StrEnum):
    """Result of a sequential comparison so far.

    Attributes:
        DIFFERENT: The interval does not contain zero.
        EQUIVALENT: The interval is within the margin around zero.
        OPEN: Not decided yet.
    """

    DIFFERENT = "different"
    EQUIVALENT = "equivalent"
    OPEN = "open"


class SequentialResult(Message):
    """Comparison of two alternatives after a number of rounds.

    Attributes:
        a: Name of the reference.
        b: Name of the other alternative.
        rounds_count: Number of complete rounds.
        ratio: Rate of b divided by the rate of a, as the geometric mean over rounds.
        ratio_low: Lower end of the interval that holds at all times. None if there is none yet.
        ratio_high: Upper end.
        decision: Result so far.
        error_ratio: Probability that the interval of any round misses the true ratio.
    """

    a: str
    b: str
    rounds_count: int
    ratio: float
    ratio_low: float | None = None
    ratio_high: float | None = None
    decision: Decision = Decision.OPEN
    error_ratio: float = ERROR_RATIO


def half_width(count: int, deviation: float, error_ratio: float = ERROR_RATIO) -> float:
    """Return the half width of the interval after ``count`` values.

    Args:
        count: Number of values.
        deviation: Standard deviation of the values (with ``count - 1``).
        error_ratio: Probability that any of the intervals misses the mean.

    Returns:
        Half width in the unit of the deviation, or infinity.
    """
    if count < 2:
        return math.inf
    rest = (error_ratio**2 / (1 + count * _SPREAD)) ** (1 / count)
    shrunk = (1 - rest) * (count + 1 / _SPREAD)
    if shrunk >= count:
        return math.inf
    squares = deviation**2 * (count - 1)
    return math.sqrt(shrunk * squares / (count * (count - shrunk)))


def interval_of(
    values: Sequence[float], error_ratio: float = ERROR_RATIO
) -> tuple[float, float] | None:
    """Return the interval after these values, or None if it has no end.

    Args:
        values: One value for each round.
        error_ratio: Probability that any of the intervals misses the mean.

    Returns:
        Lower and upper end, in the unit of the values. None if there are too few values, so that
        the interval has no end.
    """
    if len(values) < ROUNDS_MIN_COUNT:
        return None
    array = np.asarray(values, float)
    half = half_width(len(array), float(array.std(ddof=1)), error_ratio)
    mean = float(array.mean())
    return None if math.isinf(half) else (mean - half, mean + half)


def decide(values: Sequence[float], margin: float, error_ratio: float = ERROR_RATIO) -> Decision:
    """Return the decision after these values.

    Args:
        values: One value for each round.
        margin: Largest difference that does not matter, in the unit of the values.
        error_ratio: Probability that any of the intervals misses the mean.
    """
    interval = interval_of(values, error_ratio)
    if interval is None:
        return Decision.OPEN
    low, high = interval
    if low > 0 or high < 0:
        return Decision.DIFFERENT
    return Decision.EQUIVALENT if max(-low, high) <= margin else Decision.OPEN


def compare_rounds(
    names: tuple[str, str],
    rates: Sequence[tuple[float, float]],
    margin_ratio: float,
    error_ratio: float = ERROR_RATIO,
) -> SequentialResult | None:
    """Compare two alternatives by the ratio of their rates in each round.

    Args:
        names: Names of the reference and of the other alternative.
        rates: Positive rates of both in each round.
        margin_ratio: Largest relative difference that does not matter.
        error_ratio: Probability that any of the intervals misses the ratio.

    Returns:
        The comparison, or None without a complete round.
    """
    if not rates:
        return None
    values = [math.log(b / a) for a, b in rates]
    interval = interval_of(values, error_ratio)
    return SequentialResult(
        a=names[0],
        b=names[1],
        rounds_count=len(values),
        ratio=_rounded(math.exp(sum(values) / len(values))),
        ratio_low=None if interval is None else _rounded(math.exp(interval[0])),
        ratio_high=None if interval is None else _rounded(math.exp(interval[1])),
        decision=decide(values, math.log1p(margin_ratio), error_ratio),
        error_ratio=error_ratio,
    )


def loss_decision(losses: Sequence[float], most: float) -> Decision:
    """Return if the loss at one rate is certainly above or below the limit of a search.

    Args:
        losses: Loss of each trial at this rate.
        most: Limit of the loss.

    Returns:
        ``different`` if the loss is above the limit, ``equivalent`` if it is not, or ``open``.
    """
    interval = interval_of([loss - most for loss in losses], ERROR_RATIO / SEARCH_RATES_COUNT)
    if interval is None:
        return Decision.OPEN
    if interval[0] > 0:
        return Decision.DIFFERENT
    return Decision.EQUIVALENT if interval[1] <= 0 else Decision.OPEN


def expected_rounds_count(
    margin_ratio: float, scatter_ratio: float, error_ratio: float = ERROR_RATIO
) -> int:
    """Return the rounds after which the interval is as narrow as the margin.

    With that width, a difference of zero and one of twice the margin are decided. Larger
    differences need fewer rounds, at least :data:`ROUNDS_MIN_COUNT`.

    Args:
        margin_ratio: Largest relative difference that does not matter.
        scatter_ratio: Expected scatter between bursts (standard deviation / mean).
        error_ratio: Probability that any of the intervals misses the ratio.
    """
    deviation = math.sqrt(2) * scatter_ratio
    for count in range(ROUNDS_MIN_COUNT, EXPECTED_MAX_COUNT):
        if half_width(count, deviation, error_ratio) <= margin_ratio:
            return count
    return EXPECTED_MAX_COUNT


def _rounded(value: float) -> float:
    return float(f"{value:.9g}")
