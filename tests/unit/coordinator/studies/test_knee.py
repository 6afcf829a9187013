"""The knee of curves whose knee is known."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.studies.conclude import knee_index

STREAMS = [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("knee", range(1, 6))
def test_a_rate_that_grows_until_a_cap_has_its_knee_there(knee: int) -> None:
    rates = [min(index, knee) * 1e9 for index in range(len(STREAMS))]
    assert knee_index(STREAMS, rates) == knee


FLAT = [46.30, 46.37, 46.41, 46.35, 46.45, 46.38, 46.40]
RISING = [30.0, 36.0, 40.0, 40.0, 40.0, 40.0, 40.0]
FIVE = [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("values", "rates", "half_widths", "knee"),
    [
        ([1, 2, 3, 4, 5], [1.0, 2.0, 3.0, 4.0, 5.0], (), None),  # a straight line
        ([1, 2, 3, 4, 5], [3.0, 3.0, 3.0, 3.0, 3.0], (), None),
        # As measured over a path of 20 ms: 128 KiB windows behind a cap of some 410 Mbit/s.
        (FIVE, [63.0, 119.5, 236.5, 368.2, 409.3], (), 3),
        (FIVE, [63.0, 119.5, 236.5, 470.0, 940.0], (), None),
        (FIVE, [1.0, 2.0, 3.0, 4.0, 5.0], (), None),  # each adds less
        (STREAMS, FLAT, (), None),  # it hardly rises
        (STREAMS, RISING, (), 2),
        (STREAMS, RISING, [4.0] * 7, 2),
        (STREAMS, RISING, [5.5] * 7, None),  # it rises within its intervals
        (STREAMS, RISING, [None, 2.0, 11.0, *[2.0] * 4], None),
        ([1, 2, 4], [1.0, 4.0, 4.0], (), None),  # three points show no bend
        ([1, 2, 3, 4, 5], [0.0, 8.0, 9.0, 10.0, 1.0], (), 1),  # a fall behind the peak is none
    ],
)
def test_a_curve_has_the_knee_that_is_known_of_it(
    values: list[float], rates: list[float], half_widths: Sequence[float | None], knee: int | None
) -> None:
    assert knee_index(values, rates, half_widths) == knee


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
