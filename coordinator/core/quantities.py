"""Parser for rates, sizes and times from user input, such as ``1.5G``, ``128K`` or ``2ms``."""

import re
from typing import Final

# We need to use exponents, so that 9ms will be parsed as 9e-3. You would get a different number if
# you used 9 * 1e-3.
_RATES: Final = {"": "", "k": "e3", "m": "e6", "g": "e9", "t": "e12"}
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMES: Final = {"us": "e-6", "ms": "e-3", "s": ""}
_LONG_TIMES: Final = {"m": 60, "min": 60, "h": 3600, "d": 86_400}
_NUMBER: Final = r"(\d+(?:\.\d*)?|\.\d+)"


def _parsed(text: str, units: str, what: str, like: str) -> tuple[str, str]:
    """Return number and unit in lower case, or raise a ValueError that names ``what``."""
    results = re.fullmatch(rf"{_NUMBER}\s*{units}", text.strip(), re.IGNORECASE)
    if not results or float(results[1]) <= 0:
        raise ValueError(f"{text!r} is not a {what}; write it like {like}")
    return results[1], results[2].lower()


def parse_rate(text: str) -> float:
    """Parse a rate in bit/s with decimal prefixes, such as ``180G`` or ``100 Mbit/s``.

    Raises:
        ValueError: The text is not a rate.
    """
    number, unit = _parsed(text, "([kmgt]?)(?:bit/s|bps|bit)?", "rate", "1.5G or 180Gbit/s")
    return float(f"{number}{_RATES[unit]}")


def parse_size(text: str) -> int:
    """Parse a size in bytes with binary prefixes, as for socket buffers. ``128K`` is 131072.

    Raises:
        ValueError: The text is not a size.
    """
    number, unit = _parsed(text, "([kmg]?)(?:i?b)?", "size", "128K or 4M")
    return round(float(number) * _SIZES[unit])


def parse_time(text: str) -> float:
    """Parse a time in seconds with a required unit, such as ``2ms``, ``0.1s`` or ``5m``.

    Raises:
        ValueError: The text is not a time.
    """
    number, unit = _parsed(text, "(us|ms|s|m|min|h|d)", "time", "2ms, 0.1s or 5m")
    if times := _LONG_TIMES.get(unit):
        return float(number) * times
    return float(f"{number}{_TIMES[unit]}")


def parse_ratio(text: str) -> float:
    """Parse a percentage to a ratio. ``3%`` is 0.03.

    Raises:
        ValueError: The text is not a percentage.
    """
    results = re.fullmatch(rf"{_NUMBER}\s*%", text.strip())
    if not results:
        raise ValueError(f"{text!r} is not a share; write it like 0.03 or 3%")
    return float(f"{results[1]}e-2")
