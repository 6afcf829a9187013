"""Window size and number of sessions that a rate needs on a path. Pure."""

import math
from fractions import Fraction

from broadside.coordinator.core import formatting
from broadside.exchange.messages import Message


class WindowAdvice(Message):
    """Windows and sessions that are needed for a rate and a round-trip time."""

    # Payload rate.
    bits_per_second: float
    rtt_s: float
    # Bandwidth-delay product, the bytes in flight that the rate needs.
    bdp_bytes: int
    # Window of one session, as given.
    window_bytes: int | None = None
    # Highest rate of one session with this window.
    session_bits_per_second: float | None = None
    # Number of sessions with this window that the rate needs.
    sessions_count: int | None = None
    sentence: str


def advise_window(
    bits_per_second: float, rtt_s: float, window_bytes: int | None = None
) -> WindowAdvice:
    """Compute the bandwidth-delay product, and the sessions that a window needs.

    A sender can have at most one window in flight per round trip. The session rate is therefore
    limited to window / RTT (RFC 6349, section 3.3.1). To reach the rate, BDP = rate x RTT bytes
    need to be in flight in all sessions. The decimals are used exactly as given: 9 ms is 9/1000 s,
    not the nearest binary number.

    Args:
        bits_per_second: Payload rate to reach.
        rtt_s: Round-trip time in seconds.
        window_bytes: Window of one session, or None.

    Raises:
        ValueError: A value is not above zero.
    """
    for name, value in (
        ("bits_per_second", bits_per_second),
        ("rtt_s", rtt_s),
        ("window_bytes", window_bytes),
    ):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}: {value:g} is not above zero")
    bdp_bytes = math.ceil(_decimal(bits_per_second) * _decimal(rtt_s) / 8)
    needs = f"one session needs a window of {_bytes(bdp_bytes)}"
    advice = WindowAdvice(
        bits_per_second=bits_per_second, rtt_s=rtt_s, bdp_bytes=bdp_bytes, sentence=needs
    )
    if window_bytes is None:
        return advice
    session = window_bytes * 8 / rtt_s
    count = math.ceil(Fraction(bdp_bytes, window_bytes))
    return advice.model_copy(
        update={
            "window_bytes": window_bytes,
            "session_bits_per_second": session,
            "sessions_count": count,
            "sentence": f"{needs}; with {_bytes(window_bytes)} it reaches at most "
            f"{formatting.rate(session)} of payload, so the rate needs {count} "
            f"session{'s' if count > 1 else ''}",
        }
    )


def _decimal(value: float) -> Fraction:
    return Fraction(str(value))


def _bytes(count: int) -> str:
    """Format bytes in KiB or MiB, as windows are set."""
    if count >= 1 << 20:
        return f"{count / (1 << 20):.4g} MiB"
    return f"{count / (1 << 10):.4g} KiB" if count >= 1 << 10 else f"{count} bytes"
