"""Bytes over time from transfers and counters: cells of whole UTC seconds that conserve them."""

import math
from collections import Counter
from typing import Final

from exchange.messages import BUCKET_RATIO, Distribution, Interval

SPAN_MAX_S: Final = 100_000.0  # s of cells that are kept: more than the longest burst
_LOG_RATIO: Final = math.log(BUCKET_RATIO)
_LEAST_S: Final = 1e-6  # s: what is shorter counts as this long


class Seconds:
    """Amounts spread evenly over the time that each took, gathered by second.

    Memory is a number a second, whatever comes in.
    """

    def __init__(self) -> None:
        self._cells: dict[int, float] = {}  # bytes by epoch second
        self.first_s: float | None = None  # epoch s of the earliest start
        self.last_s: float | None = None  # epoch s of the latest end

    def add(self, start_s: float, end_s: float, amount_bytes: int) -> None:
        """Spread bytes over a span of epoch seconds; a span of no length is a moment."""
        start_s = min(start_s, end_s)
        if self.first_s is not None and abs(start_s - self.first_s) > SPAN_MAX_S:
            return  # a stamp that no test can have
        self.first_s = min(start_s, start_s if self.first_s is None else self.first_s)
        self.last_s = max(end_s, end_s if self.last_s is None else self.last_s)
        length_s = end_s - start_s
        first, last = math.floor(start_s), math.floor(end_s)
        if length_s < _LEAST_S or first == last:
            self._cells[first] = self._cells.get(first, 0.0) + amount_bytes
            return
        for cell in range(first, last + 1):
            inside_s = min(end_s, cell + 1) - max(start_s, cell)
            self._cells[cell] = self._cells.get(cell, 0.0) + amount_bytes * inside_s / length_s

    def intervals(self, until_s: float | None = None) -> tuple[Interval, ...]:
        """One interval a UTC second from the first byte to ``until_s`` (default: the last).

        Their bytes are whole numbers that sum to what was added; time is counted from
        :attr:`first_s`.
        """
        if self.first_s is None or self.last_s is None:
            return ()
        zero_s, end_s = self.first_s, max(self.last_s, until_s or self.last_s)
        intervals = []
        total, told = 0.0, 0
        for cell in range(math.floor(zero_s), math.ceil(end_s)):
            total += self._cells.get(cell, 0.0)
            reached = round(total)
            intervals.append(
                Interval(
                    start_s=max(zero_s, cell) - zero_s,
                    end_s=min(end_s, cell + 1) - zero_s,
                    transferred_bytes=reached - told,
                )
            )
            told = reached
        return tuple(intervals)


class Buckets:
    """Counts of one quantity by logarithmic bucket."""

    def __init__(self, name: str, unit: str) -> None:
        self._name, self._unit = name, unit
        self._counts: Counter[int] = Counter()
        self._max = 0.0

    def add(self, value: float) -> None:
        """Count one value; what is not positive counts as the smallest there is."""
        value = max(value, _LEAST_S)
        self._counts[math.floor(math.log(value) / _LOG_RATIO)] += 1
        self._max = max(self._max, value)

    def distribution(self) -> tuple[Distribution, ...]:
        """As a report carries it; empty without a value."""
        if not self._counts:
            return ()
        counts = dict(sorted(self._counts.items()))
        return (Distribution(name=self._name, unit=self._unit, counts=counts, max=self._max),)
