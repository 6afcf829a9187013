"""Axes of a drawn chart: ranges, round ticks, and where a value lies on paper."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values from ``low`` to ``high`` on paper from ``start`` to ``stop`` (px; may run down)."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        """Where a value lies, in px."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.stop - self.start)

    def ticks(self, most: int) -> list[float]:
        """Round values inside the range, at most about ``most``."""
        step = round_step((self.high - self.low) / max(1, most))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(number * step, 10) for number in range(first, last + 1)]


def round_step(rough: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten that is not below ``rough``."""
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * (1 - 1e-9))


def span(layout: dict[str, Any], values: Iterable[float | None]) -> tuple[float, float]:
    """The range that an axis shows: its own, else what the values need and some room."""
    fixed = layout.get("range")
    if fixed is not None:
        return float(fixed[0]), float(fixed[1])
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if layout.get("rangemode") == "tozero":
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high == 0.0:
        high = 1.0
    room = 0.05 * ((high - low) or abs(high) or 1.0)
    return (low - room if low < 0 else low), (high + room if high > 0 else high)


def said(value: float) -> str:
    """A tick's label."""
    return f"{value:.6g}"
