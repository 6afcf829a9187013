"""Formatting of quantities for people, used in sentences, tables, reports and the web page.

Rates, sizes and times have four significant digits and a decimal unit. An unknown value is shown as
``unknown`` and never as zero. The web page uses :data:`SCALES` with the same rules (``format.js``).
A test checks that both give the same text.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

# Units with their size, the largest first.
UnitScale = Sequence[tuple[str, float]]

# Number of significant digits.
DIGITS: Final = 4
UNKNOWN: Final = "unknown"
RATES: Final = (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0))
SIZES: Final = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
TIMES: Final = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
SCALES: Final[Mapping[str, UnitScale]] = {"rate": RATES, "size": SIZES, "time": TIMES}


class MetricUnit(StrEnum):
    """Unit of a metric."""

    RATE = "bit/s"
    TIME = "s"
    RATIO = "ratio"
    COUNT = "count"
    CPU = "CPU-s/GB"
    NUMBER = "1"

    @classmethod
    def of(cls, name: str) -> "MetricUnit":
        """Return the unit for the name of a metric, which ends with its unit."""
        return next((unit for end, unit in _ENDINGS.items() if name.endswith(end)), cls.NUMBER)


_ENDINGS: Final = {
    "_bits_per_second": MetricUnit.RATE,
    "_s_per_gigabyte": MetricUnit.CPU,
    "_s": MetricUnit.TIME,
    "_ratio": MetricUnit.RATIO,
    "_count": MetricUnit.COUNT,
}


def quantity_text(unit: MetricUnit, value: float | None, digits: int = 2) -> str:
    """Format a value with its unit.

    Args:
        unit: The unit.
        value: The value, or None if unknown.
        digits: Decimals of a percentage.

    Returns:
        Text such as ``1.62 Gbit/s`` or ``12.5 %``, or :data:`UNKNOWN` for None.
    """
    match unit:
        case MetricUnit.RATE:
            return rate(value)
        case MetricUnit.TIME:
            return time(value)
        case MetricUnit.RATIO:
            return ratio(value, digits)
        case MetricUnit.COUNT:
            return count(value)
        case MetricUnit.CPU:
            return quantity(value, unit)
        case MetricUnit.NUMBER:
            return number(value)
        case _:
            assert_never(unit)


def unit_of(value: float, scale: UnitScale) -> tuple[str, float]:
    """Select the unit for a value. Zero has the base unit.

    Args:
        value: The value.
        scale: Units to select from.

    Returns:
        Name and size of the unit.
    """
    size = abs(float(f"{value:.{DIGITS}g}"))
    if not size:
        return next(unit for unit in scale if unit[1] == 1)
    return next((unit for unit in scale if size >= unit[1]), scale[-1])


def number(value: float | None, digits: int = DIGITS) -> str:
    """Format a number with four significant digits, or ``digits``.

    Args:
        value: The number, or None if unknown.
        digits: Number of significant digits.

    Returns:
        Decimal text, or :data:`UNKNOWN` for None.
    """
    return UNKNOWN if value is None else f"{float(f'{value:.{digits}g}'):.15g}"


def quantity(value: float | None, unit: str) -> str:
    """Format a number with a unit.

    Args:
        value: The number, or None if unknown.
        unit: Name of the unit.

    Returns:
        Text such as ``12 segments``, or :data:`UNKNOWN` for None.
    """
    return UNKNOWN if value is None else f"{number(value)} {unit}"


def signed(value: float | None, digits: int = DIGITS) -> str:
    """Format a number with a sign.

    Args:
        value: The number, or None if unknown.
        digits: Number of significant digits.

    Returns:
        Text with a ``+`` if the value is above 0, or :data:`UNKNOWN` for None.
    """
    reported = number(value, digits)
    return reported if value is None or value <= 0 else f"+{reported}"


def lab(scale: float) -> str:
    """Format the scale of a lab, as in ``lab at 1:1000``."""
    return f"lab at 1:{scale:g}"


def rate(bits_per_second: float | None) -> str:
    """Format a rate with a decimal unit, or return `unknown`."""
    return _scaled(bits_per_second, RATES)


def size(count_bytes: float | None) -> str:
    """Format a number of bytes with a decimal unit, or return `unknown`."""
    return _scaled(count_bytes, SIZES)


def time(seconds: float | None) -> str:
    """Format a time in s, ms or µs, or return `unknown`."""
    return _scaled(seconds, TIMES)


def _scaled(value: float | None, scale: UnitScale) -> str:
    if value is None:
        return UNKNOWN
    name, item = unit_of(value, scale)
    return f"{number(value / item)} {name}"


def ratio(value: float | None, digits: int = 2) -> str:
    """Format a ratio as a percentage.

    Args:
        value: The ratio, or None if unknown.
        digits: Decimals of the percentage.

    Returns:
        Text such as ``12.5 %`` for 0.125, or :data:`UNKNOWN` for None.
    """
    return UNKNOWN if value is None else f"{value * 100:.{digits}f} %"


def signed_ratio(value: float | None, digits: int = 2) -> str:
    """Format a ratio as a percentage with a sign.

    Args:
        value: The ratio, or None if unknown.
        digits: Decimals of the percentage.

    Returns:
        Text such as ``+12.5 %`` for 0.125, or :data:`UNKNOWN` for None.
    """
    return UNKNOWN if value is None else f"{value * 100:+.{digits}f} %"


def instant(at: datetime | None) -> str:
    """Format a time in UTC with a resolution of one second, or return `unknown`."""
    return UNKNOWN if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def count(value: float | None) -> str:
    """Format a number with grouped thousands. A mean below ten has two significant digits."""
    if value is None:
        return UNKNOWN
    is_complete = abs(value) >= 10 or value == round(value)
    return f"{value:,.0f}".replace(",", "\u202f") if is_complete else f"{value:.2g}"


def dollars(usd: float | None) -> str:
    """Format an amount in US dollars, with cents below 100, or return `unknown`."""
    if usd is None:
        return UNKNOWN
    return f"${usd:,.0f}" if usd >= 100 else f"${usd:.2f}"


def unit_price(usd: float | None) -> str:
    """Format a price in US dollars with all digits of the price list, or return `unknown`."""
    return UNKNOWN if usd is None else f"${usd:g}"
