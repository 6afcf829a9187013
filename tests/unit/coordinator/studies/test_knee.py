"""The knee of curves whose knee is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.studies.conclude import knee_index

STREAMS = [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("knee", range(1, 6))
def test_a_rate_that_grows_until_a_cap_has_its_knee_there(knee: int) -> None:
    rates = [min(index, knee) * 1e9 for index in range(len(STREAMS))]
    assert knee_index(STREAMS, rates) == knee


def test_a_straight_line_and_a_flat_one_have_none() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert knee_index(values, [1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert knee_index(values, [3.0, 3.0, 3.0, 3.0, 3.0]) is None


def test_sessions_that_add_up_until_something_holds_them_have_their_knee_near_the_end_too() -> None:
    """As measured over a path of 20 ms: 128 KiB windows behind a cap of some 410 Mbit/s."""
    assert knee_index([1, 2, 4, 8, 16], [63.0, 119.5, 236.5, 368.2, 409.3]) == 3
    assert knee_index([1, 2, 4, 8, 16], [63.0, 119.5, 236.5, 470.0, 940.0]) is None
    assert knee_index([1, 2, 4, 8, 16], [1.0, 2.0, 3.0, 4.0, 5.0]) is None  # each adds less


def test_what_hardly_rises_or_rises_within_its_intervals_has_none() -> None:
    flat = [46.30, 46.37, 46.41, 46.35, 46.45, 46.38, 46.40]
    assert knee_index(STREAMS, flat) is None
    rising = [30.0, 36.0, 40.0, 40.0, 40.0, 40.0, 40.0]
    assert knee_index(STREAMS, rising) == 2
    assert knee_index(STREAMS, rising, [4.0] * 7) == 2
    assert knee_index(STREAMS, rising, [5.5] * 7) is None
    assert knee_index(STREAMS, rising, [None, 2.0, 11.0, *[2.0] * 4]) is None


def test_three_points_show_no_bend() -> None:
    assert knee_index([1, 2, 4], [1.0, 4.0, 4.0]) is None


def test_a_fall_behind_the_peak_is_not_the_knee() -> None:
    assert knee_index([1, 2, 3, 4, 5], [0.0, 8.0, 9.0, 10.0, 1.0]) == 1


@given(
    scale=st.floats(1e-3, 1e12),
    rates=st.lists(st.floats(0, 1e3), min_size=7, max_size=7),
)
def test_units_do_not_matter(scale: float, rates: list[float]) -> None:
    scaled = list(np.asarray(rates) * scale)
    one, other = knee_index(STREAMS, rates), knee_index(STREAMS, scaled)
    if one != other:  # rounding at a tie or at the threshold only
        y = (np.asarray(rates) - rates[0]) / max(max(rates) - rates[0], 1e-9)
        assert one is None or other is None or abs(y[one] - y[other]) < 1.0
