"""How quantities read to a person: the one formatter of sentences, tables, report and page.

Rates, sizes and times have four significant digits and the decimal unit that fits; unknown is
said, never shown as zero. The page gets :data:`SCALES` and follows the same rule (``format.js``; a
test holds both to the same words).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

Scale = Sequence[tuple[str, float]]  # a unit and its size, the largest first

DIGITS: Final = 4  # significant ones
UNKNOWN: Final = "unknown"
RATES: Final = (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0))
SIZES: Final = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
TIMES: Final = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
SCALES: Final[Mapping[str, Scale]] = {"rate": RATES, "size": SIZES, "time": TIMES}


class Unit(StrEnum):
    """What a figure is counted in."""

    RATE = "bit/s"
    TIME = "s"
    RATIO = "ratio"
    COUNT = "count"
    CPU = "CPU-s/GB"
    NUMBER = "1"

    @classmethod
    def of(cls, name: str) -> "Unit":
        """What a figure of that name is counted in: names end with their units."""
        return next((unit for end, unit in _ENDINGS.items() if name.endswith(end)), cls.NUMBER)


_ENDINGS: Final = {
    "_bits_per_second": Unit.RATE,
    "_s_per_gigabyte": Unit.CPU,
    "_s": Unit.TIME,
    "_ratio": Unit.RATIO,
    "_count": Unit.COUNT,
}


def say(unit: Unit, value: float | None, digits: int = 2) -> str:
    """A figure of that unit; ``digits`` are the decimals of a percentage."""
    match unit:
        case Unit.RATE:
            return rate(value)
        case Unit.TIME:
            return time(value)
        case Unit.RATIO:
            return ratio(value, digits)
        case Unit.COUNT:
            return count(value)
        case Unit.CPU:
            return quantity(value, unit)
        case Unit.NUMBER:
            return number(value)
        case _:
            assert_never(unit)


def unit_of(value: float, scale: Scale) -> tuple[str, float]:
    """The unit, and its size, in which a value reads well; zero reads in the base unit."""
    size = abs(float(f"{value:.{DIGITS}g}"))
    if not size:
        return next(unit for unit in scale if unit[1] == 1)
    return next((unit for unit in scale if size >= unit[1]), scale[-1])


def number(value: float | None, digits: int = DIGITS) -> str:
    """A number to four significant digits, or ``digits``, or `unknown`."""
    return UNKNOWN if value is None else f"{float(f'{value:.{digits}g}'):.15g}"


def quantity(value: float | None, unit: str) -> str:
    """An amount of something, or `unknown`."""
    return UNKNOWN if value is None else f"{number(value)} {unit}"


def signed(value: float | None, digits: int = DIGITS) -> str:
    """A number with its sign, or `unknown`."""
    said = number(value, digits)
    return said if value is None or value <= 0 else f"+{said}"


def lab(scale: float) -> str:
    """What a lab is built to: ``lab at 1:1000``."""
    return f"lab at 1:{scale:g}"


def rate(bits_per_second: float | None) -> str:
    """A decimal rate with its unit, or `unknown`."""
    return _scaled(bits_per_second, RATES)


def size(count_bytes: float | None) -> str:
    """Bytes in decimal units, or `unknown`."""
    return _scaled(count_bytes, SIZES)


def time(seconds: float | None) -> str:
    """A time in s, ms or µs, or `unknown`."""
    return _scaled(seconds, TIMES)


def _scaled(value: float | None, scale: Scale) -> str:
    if value is None:
        return UNKNOWN
    name, each = unit_of(value, scale)
    return f"{number(value / each)} {name}"


def ratio(value: float | None, digits: int = 2) -> str:
    """A ratio as a percentage, or `unknown`."""
    return UNKNOWN if value is None else f"{value * 100:.{digits}f} %"


def signed_ratio(value: float | None, digits: int = 2) -> str:
    """A ratio as a percentage with its sign, or `unknown`."""
    return UNKNOWN if value is None else f"{value * 100:+.{digits}f} %"


def instant(at: datetime | None) -> str:
    """An instant to the second, UTC, or `unknown`."""
    return UNKNOWN if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def count(value: float | None) -> str:
    """A number with thousands apart, or `unknown`; a mean below ten keeps what is left of one."""
    if value is None:
        return UNKNOWN
    is_whole = abs(value) >= 10 or value == round(value)
    return f"{value:,.0f}".replace(",", "\u202f") if is_whole else f"{value:.2g}"


def dollars(usd: float | None) -> str:
    """A sum in US dollars: whole ones from a hundred on, cents below, or `unknown`."""
    if usd is None:
        return UNKNOWN
    return f"${usd:,.0f}" if usd >= 100 else f"${usd:.2f}"


def dollars_each(usd: float | None) -> str:
    """A price in US dollars, as exact as the list has it, or `unknown`."""
    return UNKNOWN if usd is None else f"${usd:g}"
