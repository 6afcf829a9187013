"""How large a window, or how many sessions, a rate over a path needs. Pure."""

import math
from fractions import Fraction

from broadside.coordinator.core import words
from broadside.exchange.messages import Message


class WindowAdvice(Message):
    """What a rate over a round trip asks of windows and sessions."""

    bits_per_second: float  # payload
    rtt_s: float
    bdp_bytes: int  # bandwidth-delay product: bytes in flight that the rate needs
    window_bytes: int | None = None  # one session's, as given
    session_bits_per_second: float | None = None  # the most one session reaches with that window
    sessions_count: int | None = None  # sessions with that window that the rate needs
    sentence: str


def advise_window(
    bits_per_second: float, rtt_s: float, window_bytes: int | None = None
) -> WindowAdvice:
    """The bandwidth-delay product, and what a given window makes of it.

    A sender has at most one window in flight a round trip, so a session's rate is at most
    window / RTT (RFC 6349, section 3.3.1); the rate needs BDP = rate x RTT bytes in flight over all
    sessions. Reckoned exactly, in the decimals as they are written: 9 ms is 9/1000 s and not the
    nearest binary number. Raises ``ValueError`` for what is not positive.
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
            f"{words.rate(session)} of payload, so the rate needs {count} "
            f"session{'s' if count > 1 else ''}",
        }
    )


def _decimal(value: float) -> Fraction:
    return Fraction(str(value))


def _bytes(count: int) -> str:
    """Bytes as windows are set: in KiB and MiB."""
    if count >= 1 << 20:
        return f"{count / (1 << 20):.4g} MiB"
    return f"{count / (1 << 10):.4g} KiB" if count >= 1 << 10 else f"{count} bytes"
