"""Rates, sizes and times as a person types them: ``1.5G``, ``128K``, ``2ms``."""

import re
from typing import Final

# As exponents, so that 9ms is read as 9e-3, the number nearest to it: 9 * 1e-3 is another.
_RATES: Final = {"": "", "k": "e3", "m": "e6", "g": "e9", "t": "e12"}
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMES: Final = {"us": "e-6", "ms": "e-3", "s": ""}
_LONG_TIMES: Final = {"m": 60, "min": 60, "h": 3600, "d": 86_400}
_NUMBER: Final = r"(\d+(?:\.\d*)?|\.\d+)"


def parse_rate(text: str) -> float:
    """Bits per second, decimal: ``180G``, ``100 Mbit/s``. Raises ``ValueError``."""
    found = re.fullmatch(rf"{_NUMBER}\s*([kmgt]?)(?:bit/s|bps|bit)?", text.strip(), re.IGNORECASE)
    if not found or float(found[1]) <= 0:
        raise ValueError(f"{text!r} is not a rate; write it like 1.5G or 180Gbit/s")
    return float(f"{found[1]}{_RATES[found[2].lower()]}")


def parse_size(text: str) -> int:
    """Bytes, binary as sockets count them: ``128K`` is 131072. Raises ``ValueError``."""
    found = re.fullmatch(rf"{_NUMBER}\s*([kmg]?)(?:i?b)?", text.strip(), re.IGNORECASE)
    if not found or float(found[1]) <= 0:
        raise ValueError(f"{text!r} is not a size; write it like 128K or 4M")
    return round(float(found[1]) * _SIZES[found[2].lower()])


def parse_time(text: str) -> float:
    """Seconds: ``2ms``, ``0.1s``, ``5m``; a unit is required. Raises ``ValueError``."""
    found = re.fullmatch(rf"{_NUMBER}\s*(us|ms|s|m|min|h|d)", text.strip(), re.IGNORECASE)
    if not found or float(found[1]) <= 0:
        raise ValueError(f"{text!r} is not a time; write it like 2ms, 0.1s or 5m")
    if times := _LONG_TIMES.get(found[2].lower()):
        return float(found[1]) * times
    return float(f"{found[1]}{_TIMES[found[2].lower()]}")


def parse_ratio(text: str) -> float:
    """A share: ``3%`` is 0.03. Raises ``ValueError``."""
    found = re.fullmatch(rf"{_NUMBER}\s*%", text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a share; write it like 0.03 or 3%")
    return float(f"{found[1]}e-2")
