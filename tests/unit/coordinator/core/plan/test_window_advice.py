"""Windows and sessions for a rate over a path."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.plan.window_advice import advise_window


def test_the_lesson_of_the_128_kib_window_over_2_ms() -> None:
    advice = advise_window(5e9, 0.002, 128 * 1024)
    assert advice.bdp_bytes == 1_250_000
    assert advice.session_bits_per_second == pytest.approx(524.288e6)
    assert advice.sessions_count == 10
    assert "1.192 MiB" in advice.sentence
    assert "524.3 Mbit/s" in advice.sentence


def test_without_a_window_the_window_is_the_answer() -> None:
    advice = advise_window(100e6, 0.001)
    assert advice.bdp_bytes == 12_500
    assert advice.sessions_count is None
    assert advice.sentence == "one session needs a window of 12.21 KiB"


@given(rate=st.floats(1e3, 1e12), rtt_s=st.floats(1e-5, 2.0), window=st.integers(1024, 512_000_000))
def test_the_sessions_carry_the_rate_and_one_less_does_not(
    rate: float, rtt_s: float, window: int
) -> None:
    advice = advise_window(rate, rtt_s, window)
    assert advice.sessions_count is not None
    assert advice.session_bits_per_second is not None
    wanted = Fraction(repr(rate)) * Fraction(repr(rtt_s)) / 8  # bytes in flight
    assert advice.bdp_bytes - 1 < wanted <= advice.bdp_bytes
    assert (advice.sessions_count - 1) * window < wanted <= advice.sessions_count * window


@given(
    rtt_ms=st.integers(1, 100),
    rate_mbit=st.integers(1, 100_000),
    sessions=st.integers(1, 64),
)
def test_windows_that_fill_a_path_exactly_are_enough(
    rtt_ms: int, rate_mbit: int, sessions: int
) -> None:
    window = 125 * rtt_ms * rate_mbit
    rate, rtt_s = float(rate_mbit * sessions * 10**6), float(Fraction(rtt_ms, 1000))
    advice = advise_window(rate, rtt_s, window)
    assert (advice.bdp_bytes, advice.sessions_count) == (window * sessions, sessions)


@pytest.mark.parametrize(("rate", "rtt_s"), [(0.0, 1.0), (1e9, 0.0), (1e9, float("nan"))])
def test_what_is_not_positive_is_refused_by_name(rate: float, rtt_s: float) -> None:
    with pytest.raises(ValueError, match="is not above zero"):
        advise_window(rate, rtt_s)
