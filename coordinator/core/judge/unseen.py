"""Estimate of the traffic from pairs without a record.

The rate of a pair is estimated from its rates in other bursts. If there are none, it is estimated
from the distribution of the measured pairs. A paced pair cannot exceed its pace.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.steady import t95
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import BurstSummary, State
from broadside.exchange.engines import offered_bits_per_second, scaled

# The distribution is estimated from this number of pairs or more.
HEARD_MIN: Final = 2


def unseen_bits_per_second(
    spec: RunSpec, burst: BurstSummary, others: Sequence[BurstSummary] = ()
) -> float:
    """Return an upper limit for the payload rate of unseen pair-seconds, in bit/s.

    If a pair has records in other bursts, its largest rate in them is used. It is multiplied by the
    largest growth that a measured pair shows over its own rates in other bursts. For other pairs
    the upper end of a 95 % prediction interval is used. It is computed from the log rates of the
    measured pairs (Hahn and Meeker, Statistical Intervals, 1991, 4.7) and is never lower than the
    largest of them.

    Args:
        spec: Specification for the run. A pace in it limits every pair.
        burst: Burst with unseen pairs.
        others: Other bursts of the run, in any order.

    Returns:
        The payload rate in the window, for all flows together. Infinite if there is no upper limit.
    """
    pace = offered_bits_per_second(scaled(spec.traffic, spec.scale))
    known = _largest(others)
    heard = _heard(burst)
    growth = max([1.0, *(rate / known[pair] for pair, rate in heard.items() if known.get(pair))])
    predicted = _predicted(list(heard.values()))
    total = 0.0
    for pair in burst.pairs:
        unseen_ratio = 1.0 - pair.completeness_ratio
        if unseen_ratio <= 0:
            continue
        history = known.get(pair.pair_index)
        most = predicted if history is None else history * growth
        total += min(most, math.inf if pace is None else float(pace)) * unseen_ratio
    return total


def _heard(burst: BurstSummary) -> dict[int, float]:
    """Return the rates of the measured pairs by index, in bit/s."""
    return {
        pair.pair_index: pair.received_bits_per_second
        for pair in burst.pairs
        if pair.state is State.MEASURED and pair.received_bits_per_second
    }


def _largest(bursts: Sequence[BurstSummary]) -> dict[int, float]:
    """Return the largest measured rate of each pair in several bursts."""
    largest: dict[int, float] = {}
    for burst in bursts:
        for pair, rate in _heard(burst).items():
            largest[pair] = max(rate, largest.get(pair, 0.0))
    return largest


def _predicted(rates: Sequence[float]) -> float:
    """Return an upper limit for the rate of one more pair, or infinity for too few pairs."""
    count = len(rates)
    if count < HEARD_MIN:
        return math.inf
    logs = np.log(rates)
    half = t95(count - 1) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / count)
    # Few pairs with very different rates give no useful limit, so this prevents an overflow.
    exponent = min(float(logs.mean()) + half, math.log(max(rates)) + 50.0)
    return max(math.exp(exponent), max(rates))
