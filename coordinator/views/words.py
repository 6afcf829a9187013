"""How quantities read to a person. Unknown is said, never shown as zero."""

from datetime import datetime


def rate(bits_per_second: float | None) -> str:
    """A decimal rate with its unit, or `unknown`."""
    if bits_per_second is None:
        return "unknown"
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if abs(bits_per_second) >= size:
            return f"{bits_per_second / size:.4g} {unit}"
    return f"{bits_per_second:.3g} bit/s"


def ratio(value: float | None, digits: int = 2) -> str:
    """A ratio as a percentage, or `unknown`."""
    return "unknown" if value is None else f"{value * 100:.{digits}f} %"


def signed_ratio(value: float | None, digits: int = 2) -> str:
    """A ratio as a percentage with its sign, or `unknown`."""
    return "unknown" if value is None else f"{value * 100:+.{digits}f} %"


def milliseconds(seconds: float | None, digits: int = 3) -> str:
    """A short time in ms, one of a second or more in s, or `unknown`."""
    if seconds is None:
        return "unknown"
    if abs(seconds) >= 1:
        return f"{seconds:.{digits}g} s"
    return f"{seconds * 1e3:.{digits}g} ms"


def microseconds(seconds: float | None) -> str:
    """A clock's offset or bound in us, or `unknown`."""
    return "unknown" if seconds is None else f"{seconds * 1e6:.4g} us"


def size(count_bytes: float | None) -> str:
    """Bytes in decimal units, or `unknown`."""
    if count_bytes is None:
        return "unknown"
    for unit, each in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count_bytes) >= each:
            return f"{count_bytes / each:.4g} {unit}"
    return f"{count_bytes:.0f} B"


def instant(at: datetime | None) -> str:
    """An instant to the second, UTC, or `unknown`."""
    return "unknown" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def count(value: int | None) -> str:
    """A whole number with thousands apart, or `unknown`."""
    return "unknown" if value is None else f"{value:,}".replace(",", "\u202f")


def dollars(usd: float | None) -> str:
    """US dollars, or `unknown`."""
    if usd is None:
        return "unknown"
    return f"USD {usd:,.2f}" if usd >= 1 or usd == 0 else f"USD {usd:.3g}"
