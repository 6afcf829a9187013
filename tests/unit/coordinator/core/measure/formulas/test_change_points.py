"""Tests for change points, to find all planted steps and no others."""

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.measure.formulas.change_points import find_steps, long_run_variance


def sawtooth(levels: NDArray[np.float64], seed: int, ratio: float) -> NDArray[np.float64]:
    """Return a series that keeps rising to the level, like the rate of TCP."""
    random = np.random.default_rng(seed)
    every = random.integers(4, 9)
    teeth = (np.arange(len(levels)) + random.integers(every)) % every / every - 0.5
    return np.asarray(levels * (1 + ratio * (3.4 * teeth + 0.3 * random.normal(size=len(levels)))))


def noisy(levels: NDArray[np.float64], seed: int, ratio: float, rho: float) -> NDArray[np.float64]:
    """Add first-order autoregressive noise. The given ratio is relative to the first level."""
    random = np.random.default_rng(seed)
    noise = np.empty(len(levels))
    noise[0] = random.normal()
    for place in range(1, len(levels)):
        noise[place] = rho * noise[place - 1] + np.sqrt(1 - rho**2) * random.normal()
    return np.asarray(levels + ratio * levels[0] * noise)


STAIR = np.repeat(20e9 + 11.4e9 * np.arange(6), 20)


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_finds_size_and_time_of_five_steps_every_20_s(rho: float) -> None:
    good = 0
    for seed in range(10):
        steps = find_steps(noisy(STAIR, seed, 0.02, rho))
        good += len(steps) == 5 and all(
            abs(step.index - planted) <= 3
            and step.index_low <= step.index <= step.index_high
            and abs(step.size - 11.4e9) <= 0.05 * 11.4e9
            for step, planted in zip(steps, range(20, 120, 20), strict=True)
        )
    assert good >= 9


def test_finds_steps_in_correlated_noise_and_sawtooth() -> None:
    """The noise can be correlated and proportional to the level, or it can be a sawtooth."""
    fields = {}
    for rho in (0.3, 0.6, 0.8, None):
        series = [
            sawtooth(STAIR, seed, 0.02)
            if rho is None
            else STAIR * noisy(np.ones(len(STAIR)), seed, 0.02, rho)
            for seed in range(100, 120)
        ]
        fields[rho] = sum(
            [abs(step.index - 20 * n) <= 3 for n, step in enumerate(find_steps(values), 1)]
            == [True] * 5
            for values in series
        )
    assert min(fields.values()) >= 18, fields


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.8])
@pytest.mark.parametrize("count", [60, 120, 600])
def test_finds_no_step_in_a_constant_series(rho: float, count: int) -> None:
    flat = np.full(count, 20e9)
    assert not any(find_steps(noisy(flat, seed, 0.03, rho)) for seed in range(10))


def test_intervals_cover_planted_steps_at_the_stated_rate() -> None:
    levels = np.repeat([100.0, 104.0], 40)
    located = sized = detected = 0
    for seed in range(60):
        steps = find_steps(noisy(levels, seed, 0.015, 0.3))
        if len(steps) == 1:
            detected += 1
            located += steps[0].index_low <= 40 <= steps[0].index_high
            sized += abs(steps[0].size - 4.0) <= steps[0].half_width
    assert detected >= 50
    assert located >= 0.9 * detected
    assert sized >= 0.85 * detected


def test_variance_is_at_least_that_of_the_autoregression() -> None:
    wanted = (0.03 * 20e9) ** 2 * (1 + 0.5) / (1 - 0.5)
    cuts = range(20, 120, 20)
    seen = [long_run_variance(noisy(STAIR, seed, 0.03, 0.5), cuts) for seed in range(40)]
    assert wanted <= float(np.median(seen)) <= 3 * wanted


def test_finds_steps_in_a_series_without_noise() -> None:
    steps = find_steps(np.repeat([10.0, 20.0], 10))
    assert [(step.index, step.size) for step in steps] == [(10, 10.0)]
    assert not find_steps(np.zeros(30))
    assert not find_steps(np.array([1.0, 2.0]))


def test_long_run_variance_uses_the_upper_bound_of_the_autocorrelation() -> None:
    """Use a series that repeats 1, 1, -1, -1 ten times.

    There are 39 products of adjacent values: 20 are 1 and 19 are -1. The correlation will be (1
    + 3 rho) / 40 lower because the mean is subtracted.
    """
    values = 100 + np.array([1.0, 1.0, -1.0, -1.0] * 10)
    rho = 1 / 40
    rho += (1 + 3 * rho) / 40
    rho += 1.645 * np.sqrt((1 - rho**2) / 40)
    assert long_run_variance(values) == pytest.approx(40 / 39 * (1 + rho) / (1 - rho))


def test_upper_bound_of_a_small_autocorrelation() -> None:
    """If the autocorrelation is not above zero, only its uncertainty is used.

    For 1, -1, ... it is -15/16, and (1 + 0) / 16 has to be added for the mean.
    """
    values = 100 + np.array([1.0, -1.0] * 8)
    rho = -15 / 16 + 1 / 16
    rho = max(0.0, rho + 1.645 * np.sqrt((1 - rho**2) / 16))
    assert long_run_variance(values) == pytest.approx(16 / 15 * (1 + rho) / (1 - rho))


def test_noise_is_at_least_two_permille_of_the_level() -> None:
    assert long_run_variance(np.full(10, 1000.0)) == pytest.approx(4.0)


@pytest.mark.parametrize(("after", "count"), [(1015.0, 0), (1025.0, 1)])
def test_ignores_steps_below_two_percent(after: float, count: int) -> None:
    assert len(find_steps(np.repeat([1000.0, after], 20))) == count
