"""Tests for the schedule of the generator of connections."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.connection_generator import find_library

LIBRARY = find_library()

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the generator was not built")


def due_after_s(number: int, rate: float, duration_s: float, up_s: float, down_s: float) -> float:
    function = ctypes.CDLL(str(LIBRARY)).broadside_due_after_s
    function.argtypes = [ctypes.c_uint64, *[ctypes.c_double] * 4]
    function.restype = ctypes.c_double
    due: float = function(number, rate, duration_s, up_s, down_s)
    return due


def attempts_before(
    at_s: float, rate: float, duration_s: float, up_s: float, down_s: float
) -> float:
    """Return the area below a trapezoid from the start to a time."""
    rise = min(at_s, up_s)
    fall = max(0.0, at_s - (duration_s - down_s))
    flat = max(0.0, min(at_s, duration_s - down_s) - up_s)
    area = flat + (rise**2 / (2 * up_s) if up_s else 0.0)
    return rate * (area + (fall - fall**2 / (2 * down_s) if down_s else 0.0))


def test_without_ramps_attempts_are_evenly_spaced() -> None:
    assert [due_after_s(number, 4, 2, 0, 0) for number in range(8)] == [n / 4 for n in range(8)]


def test_attempts_of_every_second_rise_hold_and_fall() -> None:
    load = (100.0, 10.0, 4.0, 2.0)
    seconds = [0] * 10
    for number in range(700):
        seconds[int(due_after_s(number, *load) + 1e-9)] += 1
    assert seconds == [13, 37, 63, 87, 100, 100, 100, 100, 75, 25]


@given(
    rate=st.floats(1, 1e5),
    lengths=st.tuples(st.integers(0, 60), st.integers(1, 300), st.integers(0, 60)),
    share=st.floats(0, 1),
)
def test_attempt_is_due_when_the_planned_area_reaches_its_number(
    rate: float, lengths: tuple[int, int, int], share: float
) -> None:
    up_s, flat_s, down_s = lengths
    load = (rate, float(up_s + flat_s + down_s), float(up_s), float(down_s))
    number = int(share * rate * (up_s / 2 + flat_s + down_s / 2))
    due_s = due_after_s(number, *load)
    assert 0 <= due_s <= load[1]
    assert attempts_before(due_s, *load) == pytest.approx(number, rel=1e-6, abs=1e-3)
