"""Tests for the coverage of 95 % intervals, for series with short or long memory.

At least 93 % of the intervals should cover the true value. The number of hits will be random, so a
case should only fail if a number this low has a probability below 1 in 1,000.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.correlation import correlated_half_width
from broadside.coordinator.core.measure.formulas.steady import correlated_mean, mean_of_bursts
from broadside.coordinator.core.measure.resolution import TimeScale, half_width

WANTED = 0.93
Draw = Callable[[np.random.Generator, int, int], Floats]


def least_hits(draws: int) -> float:
    """Return the 0.1 % quantile for the number of hits, using the normal approximation."""
    return draws * WANTED - 3.09 * math.sqrt(draws * WANTED * (1 - WANTED))


def autoregressive(rho: float) -> Draw:
    """Return a generator for AR(1) series with a variance of 1 and a mean of 0."""

    def draw(rng: np.random.Generator, count: int, length: int) -> Floats:
        values = rng.standard_normal((count, length))
        values[:, 1:] *= math.sqrt(1 - rho**2)
        for at in range(1, length):
            values[:, at] += rho * values[:, at - 1]
        return values

    return draw


def fractional(hurst: float) -> Draw:
    """Return a generator for fractional Gaussian noise, using circulant embedding."""

    def draw(rng: np.random.Generator, count: int, length: int) -> Floats:
        lags = np.arange(4 * length + 1.0)
        power = 2 * hurst
        covariance = ((lags + 1) ** power - 2 * lags**power + np.abs(lags - 1) ** power) / 2
        eigenvalues = np.fft.fft(np.concatenate((covariance, covariance[-2:0:-1]))).real
        size = len(eigenvalues)
        white = rng.standard_normal((count, size)) + 1j * rng.standard_normal((count, size))
        return np.fft.fft(white * np.sqrt(np.maximum(eigenvalues, 0) / size)).real[:, :length]

    return draw


SERIES = {
    "rho 0": autoregressive(0.0),
    "rho 0.3": autoregressive(0.3),
    "rho 0.5": autoregressive(0.5),
    "rho 0.8": autoregressive(0.8),
    "Hurst 0.8": fractional(0.8),
}


@pytest.mark.parametrize("length_s", [30, 280, 1740])
@pytest.mark.parametrize("name", SERIES)
def test_interval_of_a_burst_covers_the_mean(name: str, length_s: int) -> None:
    draws = 400
    series = SERIES[name](np.random.default_rng([length_s, 1]), draws, length_s)
    results = [correlated_mean(values) for values in series]
    hits = sum(abs(mean.value) <= mean.half_width for mean in results)
    assert hits >= least_hits(draws)


@pytest.mark.parametrize("length_s", [7, 10, 15])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_interval_of_a_short_burst_covers_the_mean(rho: float, length_s: int) -> None:
    draws = 400
    series = autoregressive(rho)(np.random.default_rng([length_s, 2]), draws, length_s)
    hits = sum(abs(values.mean()) <= correlated_half_width(values) for values in series)
    assert hits >= least_hits(draws)


@pytest.mark.parametrize("length_s", [30, 280])
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_interval_is_at_most_three_times_the_optimum(rho: float, length_s: int) -> None:
    """This would be the interval if the process were known."""
    series = autoregressive(rho)(np.random.default_rng([length_s, 3]), 400, length_s)
    gap = np.abs(np.subtract.outer(np.arange(length_s), np.arange(length_s)))
    known = 1.96 * math.sqrt((rho**gap if rho else np.eye(length_s)).mean())
    halves = [correlated_half_width(values) for values in series]
    assert known < np.median(halves) < 3 * known


@pytest.mark.parametrize("count", [3, 5, 10, 30])
@pytest.mark.parametrize(
    "draw", [autoregressive(0.0), autoregressive(0.7), fractional(0.8)], ids=["0", "0.7", "H"]
)
@pytest.mark.parametrize("within", [0.0, 0.3, 1.0, 3.0])
def test_interval_of_a_run_covers_the_mean(count: int, draw: Draw, within: float) -> None:
    """The bursts are correlated, but not the measurement errors."""
    draws = 400
    rng = np.random.default_rng([count, int(10 * within)])
    bursts = draw(rng, draws, count) + within * rng.standard_normal((draws, count))
    stated = [2.2 * 1.96 * within if within else None] * count
    results = [mean_of_bursts(values.tolist(), stated) for values in bursts]
    hits = sum(abs(mean.value) <= mean.half_width for mean in results)
    assert hits >= least_hits(draws)


@pytest.mark.parametrize("correlation", [-0.9, -0.5, 0.0, 0.5, 0.9])
def test_interval_of_both_directions_covers_the_sum(correlation: float) -> None:
    """The interval is for the sum, even if the directions compete."""
    rng = np.random.default_rng(5)
    draws, length_s = 400, 30
    one, two = (10 + autoregressive(0.5)(rng, draws, length_s) for _ in range(2))
    other = 10 + correlation * (one - 10) + math.sqrt(1 - correlation**2) * (two - 10)
    # When seconds from receivers exist, this will not use anything else in a flow.
    flows: list[Any] = [None, None]
    scale = TimeScale(receivers_s=1.0, senders_s=1.0)
    hits = 0
    for up, down in zip(one, other, strict=True):
        half = half_width(flows, [up[None, :], down[None, :]], slice(0, length_s), scale)
        hits += abs(float(np.mean(up + down)) - 20) * 8 <= half
    assert hits >= least_hits(draws)


def test_competing_directions_do_not_widen_the_interval() -> None:
    up = 10 + np.random.default_rng(6).standard_normal((1, 30))
    scale = TimeScale(receivers_s=1.0, senders_s=1.0)
    flows: list[Any] = [None, None]
    alone = half_width(flows[:1], [up], slice(0, 30), scale)
    assert half_width(flows, [up, 20 - up], slice(0, 30), scale) == 0
    assert half_width(flows, [up, up], slice(0, 30), scale) == pytest.approx(2 * alone)


def test_run_of_one_burst_has_the_interval_of_the_burst() -> None:
    mean = mean_of_bursts([100.0], [3.0])
    assert mean.half_width == pytest.approx(3.0)


@pytest.mark.parametrize(("rho", "pass_ratio"), [(0.0, 0.99), (0.3, 0.99), (0.5, 0.94)])
def test_steady_fleet_two_percent_above_the_limit_passes(rho: float, pass_ratio: float) -> None:
    """Use 28 values, which is what will be left when the ramp is removed from 30."""
    series = 1.02 + 0.005 * autoregressive(rho)(np.random.default_rng(4), 400, 28)
    passed = [float(values.mean()) - correlated_half_width(values) > 1 for values in series]
    assert np.mean(passed) >= pass_ratio


def test_rounding_differences_count_as_constant() -> None:
    values = 2e10 / 3 + np.array([0.0, 1e-6, 0.0, -1e-6, 0.0, 0.0, 0.0])
    assert correlated_half_width(values) == 0.0
    assert mean_of_bursts(values.tolist(), [1.0] * 7).half_width > 0
