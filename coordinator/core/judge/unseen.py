"""What pairs without a record may have carried.

A pair that nobody heard of is weighed by what it carried in the run's other bursts, else by the
distribution of the pairs that were heard. A paced pair carries no more than its pace.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.steady import t95
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import BurstSummary, State
from broadside.exchange.engines import offered_bits_per_second, scaled

HEARD_MIN: Final = 2  # pairs that have a distribution


def unseen_bits_per_second(
    spec: RunSpec, burst: BurstSummary, others: Sequence[BurstSummary] = ()
) -> float:
    """Return the most payload bit/s that a burst's unseen pair-seconds may stand for.

    A pair with a history counts with its largest rate, times the most by which a heard pair
    exceeded its own. A pair without one counts with the upper end of the 95 % prediction interval
    of one more value of the heard pairs' log rates (Hahn and Meeker, Statistical Intervals, 1991,
    4.7), and never with less than their largest.

    Args:
        spec: The run's specification; a pace bounds every pair.
        burst: The burst with the unseen pairs.
        others: The run's other bursts, in any order.

    Returns:
        Payload over the window, all flows; infinite where nothing bounds it.
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
    """Rates of the pairs that were measured, by index."""
    return {
        pair.pair_index: pair.received_bits_per_second
        for pair in burst.pairs
        if pair.state is State.MEASURED and pair.received_bits_per_second
    }


def _largest(bursts: Sequence[BurstSummary]) -> dict[int, float]:
    """The largest measured rate of each pair over several bursts."""
    largest: dict[int, float] = {}
    for burst in bursts:
        for pair, rate in _heard(burst).items():
            largest[pair] = max(rate, largest.get(pair, 0.0))
    return largest


def _predicted(rates: Sequence[float]) -> float:
    """The most that one more pair like these may carry; infinite for too few."""
    count = len(rates)
    if count < HEARD_MIN:
        return math.inf
    logs = np.log(rates)
    half = t95(count - 1) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / count)
    # A few pairs that differ much bound nothing.
    exponent = min(float(logs.mean()) + half, math.log(max(rates)) + 50.0)
    return max(math.exp(exponent), max(rates))
