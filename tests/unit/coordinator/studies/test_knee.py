"""Tests for the knee detection when the knee is known."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.studies.conclude import knee_index

STREAMS = [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("knee", range(1, 6))
def test_knee_is_at_the_cap(knee: int) -> None:
    rates = [min(index, knee) * 1e9 for index in range(len(STREAMS))]
    assert knee_index(STREAMS, rates) == knee


FLAT = [46.30, 46.37, 46.41, 46.35, 46.45, 46.38, 46.40]
RISING = [30.0, 36.0, 40.0, 40.0, 40.0, 40.0, 40.0]
FIVE = [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("values", "rates", "half_widths", "knee"),
    [
        # This is a straight line.
        ([1, 2, 3, 4, 5], [1.0, 2.0, 3.0, 4.0, 5.0], (), None),
        ([1, 2, 3, 4, 5], [3.0, 3.0, 3.0, 3.0, 3.0], (), None),
        # This was measured with an RTT of 20 ms, windows of 128 KiB and a 410 Mbit/s cap.
        (FIVE, [63.0, 119.5, 236.5, 368.2, 409.3], (), 3),
        (FIVE, [63.0, 119.5, 236.5, 470.0, 940.0], (), None),
        # The slope is decreasing.
        (FIVE, [1.0, 2.0, 3.0, 4.0, 5.0], (), None),
        # The rates are almost the same.
        (STREAMS, FLAT, (), None),
        (STREAMS, RISING, (), 2),
        (STREAMS, RISING, [4.0] * 7, 2),
        # The increase is not larger than the confidence intervals.
        (STREAMS, RISING, [5.5] * 7, None),
        (STREAMS, RISING, [None, 2.0, 11.0, *[2.0] * 4], None),
        # There are not enough points.
        ([1, 2, 4], [1.0, 4.0, 4.0], (), None),
        # The rate drops after the maximum.
        ([1, 2, 3, 4, 5], [0.0, 8.0, 9.0, 10.0, 1.0], (), 1),
    ],
)
def test_finds_known_knee(
    values: list[float], rates: list[float], half_widths: Sequence[float | None], knee: int | None
) -> None:
    assert knee_index(values, rates, half_widths) == knee


@given(
    scale=st.floats(1e-3, 1e12),
    rates=st.lists(st.floats(0, 1e3), min_size=7, max_size=7),
)
def test_knee_does_not_depend_on_units(scale: float, rates: list[float]) -> None:
    scaled = list(np.asarray(rates) * scale)
    first, second = knee_index(STREAMS, rates), knee_index(STREAMS, scaled)
    # This can happen only when values are rounded.
    if first != second:
        y = (np.asarray(rates) - rates[0]) / max(max(rates) - rates[0], 1e-9)
        assert first is None or second is None or abs(y[first] - y[second]) < 1.0
