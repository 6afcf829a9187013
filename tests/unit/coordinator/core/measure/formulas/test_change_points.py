"""Steps that a generator planted are found, and none where there are none."""

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.measure.formulas.change_points import find_steps, long_run_variance


def sawtooth(levels: NDArray[np.float64], seed: int, ratio: float) -> NDArray[np.float64]:
    """As of TCP: each level is climbed to within a few seconds, over and over."""
    random = np.random.default_rng(seed)
    every = random.integers(4, 9)
    teeth = (np.arange(len(levels)) + random.integers(every)) % every / every - 0.5
    return np.asarray(levels * (1 + ratio * (3.4 * teeth + 0.3 * random.normal(size=len(levels)))))


def noisy(levels: NDArray[np.float64], seed: int, ratio: float, rho: float) -> NDArray[np.float64]:
    """Levels under a first-order autoregression whose values deviate by a ratio of the first."""
    random = np.random.default_rng(seed)
    noise = np.empty(len(levels))
    noise[0] = random.normal()
    for place in range(1, len(levels)):
        noise[place] = rho * noise[place - 1] + np.sqrt(1 - rho**2) * random.normal()
    return np.asarray(levels + ratio * levels[0] * noise)


STAIR = np.repeat(20e9 + 11.4e9 * np.arange(6), 20)


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_five_steps_after_20_s_each_are_found_in_size_and_time(rho: float) -> None:
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


def test_steps_are_found_in_whatever_they_are_hidden_in() -> None:
    """Noise that grows with the level, correlated as far as one may meet it, or a sawtooth."""
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
def test_no_step_is_found_in_what_is_flat(rho: float, count: int) -> None:
    flat = np.full(count, 20e9)
    assert not any(find_steps(noisy(flat, seed, 0.03, rho)) for seed in range(10))


def test_an_interval_holds_what_was_planted_as_often_as_it_says() -> None:
    levels = np.repeat([100.0, 104.0], 40)
    stored = sized = result = 0
    for seed in range(60):
        steps = find_steps(noisy(levels, seed, 0.015, 0.3))
        if len(steps) == 1:
            result += 1
            stored += steps[0].index_low <= 40 <= steps[0].index_high
            sized += abs(steps[0].size - 4.0) <= steps[0].half_width
    assert result >= 50
    assert stored >= 0.9 * result
    assert sized >= 0.85 * result


def test_the_noise_is_taken_for_no_less_than_that_of_the_autoregression() -> None:
    wanted = (0.03 * 20e9) ** 2 * (1 + 0.5) / (1 - 0.5)
    cuts = range(20, 120, 20)
    seen = [long_run_variance(noisy(STAIR, seed, 0.03, 0.5), cuts) for seed in range(40)]
    assert wanted <= float(np.median(seen)) <= 3 * wanted


def test_what_does_not_vary_at_all_has_its_steps_too() -> None:
    steps = find_steps(np.repeat([10.0, 20.0], 10))
    assert [(step.index, step.size) for step in steps] == [(10, 10.0)]
    assert not find_steps(np.zeros(30))
    assert not find_steps(np.array([1.0, 2.0]))


def test_the_long_run_variance_takes_the_autocorrelation_at_its_upper_end() -> None:
    """Ten times 1, 1, -1, -1: of the 39 products of neighbours one more is 1 than -1, and the mean
    that was taken off lowered the correlation by (1 + 3 rho) / 40."""
    values = 100 + np.array([1.0, 1.0, -1.0, -1.0] * 10)
    rho = 1 / 40
    rho += (1 + 3 * rho) / 40
    rho += 1.645 * np.sqrt((1 - rho**2) / 40)
    assert long_run_variance(values) == pytest.approx(40 / 39 * (1 + rho) / (1 - rho))


def test_the_upper_end_of_a_small_autocorrelation() -> None:
    """1, -1, 1, -1 ... has -15/16, and (1 + 0) / 16 of its mean: so little that it counts as none
    but for its uncertainty."""
    values = 100 + np.array([1.0, -1.0] * 8)
    rho = -15 / 16 + 1 / 16
    rho = max(0.0, rho + 1.645 * np.sqrt((1 - rho**2) / 16))
    assert long_run_variance(values) == pytest.approx(16 / 15 * (1 + rho) / (1 - rho))


def test_noise_is_no_less_than_two_permille_of_the_level() -> None:
    assert long_run_variance(np.full(10, 1000.0)) == pytest.approx(4.0)


@pytest.mark.parametrize(("after", "count"), [(1015.0, 0), (1025.0, 1)])
def test_a_step_of_less_than_two_per_cent_is_not_reported(after: float, count: int) -> None:
    assert len(find_steps(np.repeat([1000.0, after], 20))) == count
