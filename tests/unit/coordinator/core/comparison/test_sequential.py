"""Test that continuous looks at the intervals are wrong no more often than they state."""

import math

import numpy as np
import pytest

from broadside.coordinator.core.comparison.sequential import (
    ERROR_RATIO,
    ROUNDS_MIN_COUNT,
    Decision,
    compare_rounds,
    decide,
    expected_rounds_count,
    half_width,
    interval_of,
)
from broadside.coordinator.core.measure.formulas.steady import t95

DRAWS_COUNT = 4000
LOOKS_COUNT = 100


def half_widths(values: np.ndarray) -> np.ndarray:
    """Return the half width after each value, with shape (draws, looks). The first ones are inf."""
    counts = np.arange(1, values.shape[1] + 1)
    means = np.cumsum(values, axis=1) / counts
    squares = np.maximum(np.cumsum(values**2, axis=1) - counts * means**2, 0)
    factors = np.array([half_width(count, 1.0) for count in counts])
    factors[: ROUNDS_MIN_COUNT - 1] = np.inf
    deviations = np.sqrt(squares / np.maximum(counts - 1, 1))
    return factors * np.where(np.isinf(factors), 1.0, deviations)


@pytest.mark.parametrize("heavy_tails", [False, True])
def test_continuous_looks_miss_a_difference_of_zero_no_more_often_than_stated(
    heavy_tails: bool,
) -> None:
    random = np.random.default_rng(38)
    shape = (DRAWS_COUNT, LOOKS_COUNT)
    values = random.standard_t(5, shape) if heavy_tails else random.standard_normal(shape)
    counts = np.arange(1, LOOKS_COUNT + 1)
    means = np.abs(np.cumsum(values, axis=1) / counts)
    wrong = (means > half_widths(values)).any(axis=1).mean()
    assert wrong <= ERROR_RATIO
    # The usual interval is wrong several times as often with as many looks.
    squares = np.cumsum(values**2, axis=1) - counts * means**2
    usual = np.array([np.inf, np.inf, *(t95(count - 1) for count in counts[2:])])
    deviations = np.sqrt(np.maximum(squares, 0) / np.maximum(counts - 1, 1))
    naive = means > np.where(np.isinf(usual), 1, usual) * deviations / np.sqrt(counts)
    assert naive[:, ROUNDS_MIN_COUNT - 1 :].any(axis=1).mean() > 4 * ERROR_RATIO


@pytest.mark.parametrize("difference", [-0.05, -0.02, 0.02, 0.05])
def test_decisions_have_the_right_sign(difference: float) -> None:
    random = np.random.default_rng(38)
    values = difference + 0.01 * random.standard_normal((500, 60))
    for row in values:
        decision = next(
            matches
            for n in range(61)
            if (matches := decide(row[:n].tolist(), 0.005)) is not Decision.OPEN
        )
        assert decision is Decision.DIFFERENT


def test_one_interval_is_wider_than_the_usual_one_but_not_by_much() -> None:
    for count in (10, 30, 100):
        usual = t95(count - 1) / math.sqrt(count)
        assert usual < half_width(count, 1.0) < 2.5 * usual


def test_a_large_difference_needs_three_rounds_and_none_needs_the_expected_number() -> None:
    rates = [(100.0, 22.0), (101.0, 22.1), (99.5, 21.9)]
    assert compare_rounds(("off", "deny"), [], 0.02) is None
    two = compare_rounds(("off", "deny"), rates[:2], 0.02)
    assert two is not None
    assert (two.decision, two.ratio_low) == (Decision.OPEN, None)
    three = compare_rounds(("off", "deny"), rates, 0.02)
    assert three is not None
    assert three.decision is Decision.DIFFERENT
    assert three.ratio_low is not None
    assert three.ratio_high is not None
    assert three.ratio_low < 0.22 < three.ratio_high < 0.25
    count = expected_rounds_count(0.02, 0.01)
    assert half_width(count, 0.01 * math.sqrt(2)) <= 0.02
    assert half_width(count - 1, 0.01 * math.sqrt(2)) > 0.02
    random = np.random.default_rng(1)
    equal = (0.01 * math.sqrt(2) * random.standard_normal(3 * count)).tolist()
    needed = next(n for n in range(3 * count) if decide(equal[:n], 0.02) is Decision.EQUIVALENT)
    assert count / 2 < needed < 2 * count


def test_too_few_values_have_no_interval() -> None:
    assert interval_of([0.1, 0.1]) is None
    assert interval_of([0.1, 0.1, 0.1]) == pytest.approx((0.1, 0.1))
