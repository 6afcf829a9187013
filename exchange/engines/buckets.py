"""Histograms with logarithmic buckets, filled while values arrive."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from broadside.exchange.messages import BUCKET_RATIO, Distribution

_LOG_RATIO: Final = math.log(BUCKET_RATIO)
# Smallest value in seconds. A shorter value will be counted as this value.
LEAST_S: Final = 1e-6


class Buckets:
    """Histogram of one quantity with logarithmic buckets.

    Args:
        name: Name of the quantity in the report.
        unit: Unit of the values.
    """

    def __init__(self, name: str, unit: str) -> None:
        self._name, self._unit = name, unit
        self._counts: Counter[int] = Counter()
        self._max = 0.0

    def add(self, value: float) -> None:
        """Count one value. Zero and negative values count as ``LEAST_S``."""
        value = max(value, LEAST_S)
        self._counts[math.floor(math.log(value) / _LOG_RATIO)] += 1
        self._max = max(self._max, value)

    def distribution(self) -> tuple[Distribution, ...]:
        """Return the histogram for a report, or an empty tuple if no value was added."""
        if not self._counts:
            return ()
        counts = dict(sorted(self._counts.items()))
        return (Distribution(name=self._name, unit=self._unit, counts=counts, max=self._max),)


def add_counts(distributions: Sequence[Distribution]) -> tuple[int, dict[int, int]]:
    """Add the counts of distributions.

    Args:
        distributions: One or more distributions of the same quantity.

    Returns:
        The smallest resolution of them, and the counts by bucket of this resolution.
    """
    resolution = min(distribution.resolution for distribution in distributions)
    counts: Counter[int] = Counter()
    for distribution in distributions:
        width = distribution.resolution // resolution
        for bucket, count in distribution.counts.items():
            counts[bucket // width] += count
    return resolution, dict(sorted(counts.items()))


def folded(distributions: Iterable[Distribution]) -> tuple[Distribution, ...]:
    """Merge distributions that have the same name.

    The counts are added, and the largest maximum is used.
    """
    merged: dict[str, Distribution] = {}
    for distribution in distributions:
        was = merged.get(distribution.name)
        if was is not None:
            resolution, counts = add_counts((was, distribution))
            changes = {"resolution": resolution, "counts": counts}
            largest = max(was.max, distribution.max)
            distribution = distribution.model_copy(update={**changes, "max": largest})
        merged[distribution.name] = distribution
    return tuple(merged.values())
