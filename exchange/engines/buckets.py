"""How one quantity spread, counted by logarithmic bucket while it is told."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from broadside.exchange.messages import BUCKET_RATIO, Distribution

_LOG_RATIO: Final = math.log(BUCKET_RATIO)
LEAST_S: Final = 1e-6  # s: what is shorter counts as this long


class Buckets:
    """Counts of one quantity by logarithmic bucket."""

    def __init__(self, name: str, unit: str) -> None:
        self._name, self._unit = name, unit
        self._counts: Counter[int] = Counter()
        self._max = 0.0

    def add(self, value: float) -> None:
        """Count one value; what is not positive counts as the smallest there is."""
        value = max(value, LEAST_S)
        self._counts[math.floor(math.log(value) / _LOG_RATIO)] += 1
        self._max = max(self._max, value)

    def distribution(self) -> tuple[Distribution, ...]:
        """As a report carries it; empty without a value."""
        if not self._counts:
            return ()
        counts = dict(sorted(self._counts.items()))
        return (Distribution(name=self._name, unit=self._unit, counts=counts, max=self._max),)


def folded(distributions: Iterable[Distribution]) -> tuple[Distribution, ...]:
    """Those of one name as one: counts add up."""
    found: dict[str, Distribution] = {}
    for each in distributions:
        was = found.get(each.name)
        if was is not None:
            counts = dict(sorted((Counter(was.counts) + Counter(each.counts)).items()))
            each = each.model_copy(update={"counts": counts, "max": max(was.max, each.max)})
        found[each.name] = each
    return tuple(found.values())
