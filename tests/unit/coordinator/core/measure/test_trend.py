"""The interval of a slope."""

import math
import random

import pytest

from coordinator.core.measure.trend import trend

# Gilbert's ranks M1 and M2 + 1 of the ordered slopes, counted from 1 and taken outwards.
RANKS = {4: (1, 6), 6: (2, 14), 8: (6, 23), 12: (18, 49), 48: (453, 676)}


@pytest.mark.parametrize("count", RANKS)
def test_the_interval_takes_the_slopes_at_gilberts_ranks(count: int) -> None:
    """Of a curve that bends upwards all along, so that no two slopes are equal."""
    at_s = [3600.0 * i for i in range(count)]
    values = [math.exp(i * 0.1 * math.sqrt(2)) for i in range(count)]
    said = trend("rate", at_s, values)
    assert said is not None
    slopes = sorted(
        (values[j] - values[i]) / (j - i) / said.median * 100
        for i in range(count)
        for j in range(i + 1, count)
    )
    low, high = RANKS[count]
    assert said.low_percent_per_hour == pytest.approx(slopes[low - 1])
    assert said.high_percent_per_hour == pytest.approx(slopes[high - 1])


@pytest.mark.parametrize("count", [4, 6, 7, 12, 48])
def test_values_mirrored_about_their_median_mirror_the_interval(count: int) -> None:
    dice = random.Random(count)
    values = [dice.gauss(100, 5) for _ in range(count)]
    at_s = [60.0 * i for i in range(count)]
    said = trend("rate", at_s, values)
    assert said is not None
    mirrored = trend("rate", at_s, [2 * said.median - value for value in values])
    assert mirrored is not None
    assert mirrored.low_percent_per_hour == pytest.approx(-said.high_percent_per_hour)
    assert mirrored.high_percent_per_hour == pytest.approx(-said.low_percent_per_hour)
