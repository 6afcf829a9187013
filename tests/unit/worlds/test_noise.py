"""Statistical tests for the noise."""

import numpy as np
import pytest

from tests.worlds.noise import DRAW, PARETO_MAX, ar1, weights
from tests.worlds.record_format import Floats


def measured_rho(series: Floats) -> float:
    """Return the lag-1 correlation, using rows with equal true means."""
    centred = series - series.mean()
    return float((centred[:, 1:] * centred[:, :-1]).mean() / (centred**2).mean())


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.7, 0.95])
def test_ar1_has_the_requested_correlation_and_variance_one(rho: float) -> None:
    series = ar1(np.random.default_rng(1), (200, 2000), rho)
    assert measured_rho(series) == pytest.approx(rho, abs=0.01)
    assert series.var() == pytest.approx(1.0, rel=0.05)
    # The first value has the same variance as the others.
    assert series[:, 0].var() == pytest.approx(1.0, rel=0.35)


def test_ar1_equals_the_recursion() -> None:
    rho, count = 0.8, 50
    series = ar1(np.random.default_rng(3), (1, count), rho)[0]
    innovations = np.random.default_rng(3).standard_normal((1, count))[0]
    expected = [float(innovations[0])]
    for value in innovations[1:]:
        expected.append(rho * expected[-1] + float(np.sqrt(1 - rho * rho)) * float(value))
    assert series == pytest.approx(np.array(expected), abs=1e-7)


@pytest.mark.parametrize("cov", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_lognormal_has_the_requested_moments(cov: float, rho: float) -> None:
    series = DRAW["lognormal"](np.random.default_rng(5), (400, 1000), cov, rho)
    assert series.min() > 0.0
    assert series.mean() == pytest.approx(1.0, abs=0.02 * cov + 0.001)
    assert series.std() == pytest.approx(cov, rel=0.06)
    assert measured_rho(series) == pytest.approx(rho, abs=0.03)


@pytest.mark.parametrize("family", ["bursty", "pareto"])
@pytest.mark.parametrize("cov", [0.1, 0.3, 1.0])
def test_other_families_have_the_requested_moments(family: str, cov: float) -> None:
    draw = DRAW["bursty" if family == "bursty" else "pareto"]
    series = draw(np.random.default_rng(7), (400, 1000), cov, 0.5)
    assert series.min() >= 0.0
    assert series.mean() == pytest.approx(1.0, abs=0.02)
    assert series.std() == pytest.approx(cov, rel=0.06)


def test_bursty_levels_last_longer_with_a_larger_rho() -> None:
    changes = []
    for rho in (0.0, 0.9):
        series = DRAW["bursty"](np.random.default_rng(9), (50, 1000), 0.5, rho)
        changes.append(float((np.diff(series, axis=1) != 0.0).mean()))
    assert changes[1] < 0.5 * changes[0]


def test_pareto_has_a_heavy_tail() -> None:
    series = DRAW["pareto"](np.random.default_rng(11), (100, 1000), 1.0, 0.0)
    # A normal distribution would have 1 of 30,000 beyond 4 standard deviations.
    assert (series > 5.0).mean() > 0.002
    assert series.max() < PARETO_MAX


@pytest.mark.parametrize("family", ["equal", "lognormal", "pareto"])
def test_weights_have_sum_one_and_a_limited_ratio(family: str) -> None:
    for seed in range(20):
        sizes = weights(np.random.default_rng(seed), 30, family, 50.0)
        assert sizes.sum() == pytest.approx(1.0)
        assert sizes.max() / sizes.min() <= 50.0 * (1.0 + 1e-9)


def test_heavy_tailed_weights_reach_large_ratios() -> None:
    ratios = []
    for seed in range(40):
        sizes = weights(np.random.default_rng(seed), 30, "pareto", 50.0)
        ratios.append(float(sizes.max() / sizes.min()))
    assert max(ratios) > 20.0
