"""Ramps are cut, falls are not; intervals cover what they say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.measure.steady import batch_length, batch_mean, cliff, ramp_s, t95


@pytest.mark.parametrize("length", [10, 30, 280, 1740])
@pytest.mark.parametrize("ramp", [0, 1, 3])
def test_a_ramp_is_cut_and_nothing_more(length: int, ramp: int) -> None:
    rng = np.random.default_rng(length + ramp)
    fleet = 100 * (1 + 0.003 * rng.standard_normal(length))
    fleet[:ramp] *= np.linspace(0.2, 0.8, ramp) if ramp else 1.0
    cut = ramp_s(fleet)
    assert ramp <= cut <= max(ramp + 5, length // 10)
    assert fleet[cut:].mean() == pytest.approx(100, rel=0.01)


def test_quiet_seconds_are_not_cut_with_the_ramp() -> None:
    fleet = np.array([80.0, 97, 99.6, 99.7, 99.8, 100, 100.01, 100, 99.99, 100])
    assert ramp_s(fleet) == 2


def test_a_fall_after_a_plateau_is_never_cut_away() -> None:
    fleet = np.r_[np.full(40, 100.0), np.full(60, 50.0)]
    assert ramp_s(fleet) == 0


@given(st.lists(st.floats(0, 1e12), min_size=0, max_size=200))
def test_at_most_half_is_cut(values: list[float]) -> None:
    assert 0 <= ramp_s(np.array(values)) <= max(0, len(values) // 2 + 5)


def test_a_cliff_is_found_and_placed() -> None:
    rng = np.random.default_rng(3)
    fleet = np.r_[np.full(100, 100.0), np.full(80, 60.0)] * (1 + 0.02 * rng.standard_normal(180))
    found = cliff(fleet)
    assert found is not None
    assert abs(found.at - 100) <= 1
    assert found.before == pytest.approx(100, rel=0.01)
    assert found.after == pytest.approx(60, rel=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_growth_are_no_cliff(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert cliff(100 * (1 + 0.05 * rng.standard_normal(280))) is None
    assert cliff(np.linspace(50, 100, 60)) is None
    assert cliff(np.array([1.0, 2.0])) is None


def test_batch_means_cover_a_correlated_series() -> None:
    """Nominal 95 %: an AR(1) series with phi 0.5 is covered in at least 88 % of 300 draws."""
    covered = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal(280)
        values = np.empty(280)
        values[0] = noise[0]
        for i in range(1, 280):
            values[i] = 0.5 * values[i - 1] + noise[i]
        mean = batch_mean(values)
        covered += abs(mean.value) <= mean.half_width
    assert covered >= 0.88 * 300


def test_too_few_values_have_no_interval() -> None:
    assert math.isnan(batch_mean(np.array([])).value)
    assert math.isnan(batch_mean(np.array([1.0])).half_width)
    assert [batch_length(n) for n in (1, 8, 9, 27, 1740)] == [1, 2, 3, 3, 13]


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (4, 2.776), (30, 2.042), (60, 2.000), (1000, 1.962)]
)
def test_t_quantiles(freedom: float, quantile: float) -> None:
    assert t95(freedom) == pytest.approx(quantile, rel=0.003)
