"""Tests for ramps, slow stretches, rate drops and confidence intervals."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.measure.formulas.steady import (
    VALUES_MIN,
    cliff,
    correlated_mean,
    mean_of_bursts,
    ramp_s,
    slowest_stretch,
    t90,
    t95,
)


@pytest.mark.parametrize("length", [15, 30, 280, 1740])
@pytest.mark.parametrize("ramp", [0, 1, 3])
def test_removes_only_the_ramp(length: int, ramp: int) -> None:
    rng = np.random.default_rng(length + ramp)
    fleet = 100 * (1 + 0.003 * rng.standard_normal(length))
    fleet[:ramp] *= np.linspace(0.2, 0.8, ramp) if ramp else 1.0
    cut = ramp_s(fleet)
    assert ramp <= cut <= max(ramp + 5, length // 10)
    assert fleet[cut:].mean() == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("length", [7, 10, 14])
def test_ramp_is_at_most_a_fifth_of_a_short_window(length: int) -> None:
    for slow_s, cut_s in ((length // 5, length // 5), (length // 5 + 1, 0)):
        assert ramp_s(np.r_[np.full(slow_s, 60.0), np.full(length - slow_s, 100.0)]) == cut_s


REST = [175.0, 173.7, 172.6, 172.9, 173.9, 175.1, 174.4, 172.2, 173.1, 174.8]
BUMP = [1394.2, 1719.9, 1726.7, 1756.6, 1752.6, 1731.4, 1736.5, 1738.8, 1737.6, 1737.5]
BUSY = [181.16, 227.53, 234.16, 233.48, 231.37, 233.34, 231.47, 231.18, 232.50, 230.85]


@pytest.mark.parametrize(
    ("seen", "cut_s"),
    # These rates (Mbit/s) were measured in the lab and on a busy machine.
    [
        pytest.param(
            [80.0, 97, 99.6, 99.7, 99.8, 100, 100.01, 100, 99.99, 100],
            2,
            id="steady seconds remain",
        ),
        pytest.param(BUMP, 1, id="bump in the fourth second"),
        pytest.param(BUSY, 2, id="the third second is 1.02 % above"),
        pytest.param([125.0, 183.1, *REST], 2, id="queue fills during the ramp"),
        pytest.param([168.0, 190.0, *REST], 1, id="overshoot larger than the ramp remains"),
    ],
)
def test_removes_the_ramp_and_its_overshoot_only(seen: list[float], cut_s: int) -> None:
    assert ramp_s(np.array(seen)) == cut_s


def test_does_not_remove_a_drop_after_a_plateau() -> None:
    fleet = np.r_[np.full(40, 100.0), np.full(60, 50.0)]
    assert ramp_s(fleet) == 0


@given(st.lists(st.floats(0, 1e12), min_size=0, max_size=400))
def test_removed_seconds_are_limited(values: list[float]) -> None:
    assert 0 <= ramp_s(np.array(values)) <= min(30, max(3, 0.2 * len(values)))


@pytest.mark.parametrize("length", [20, 60, 280, 1740])
@pytest.mark.parametrize("share", [0.25, 0.3, 0.49])
@pytest.mark.parametrize("level", [0.1, 0.2, 0.6])
def test_slow_start_is_not_a_ramp(length: int, share: float, level: float) -> None:
    rng = np.random.default_rng(length)
    fleet = 100 * (1 + 0.003 * rng.standard_normal(length))
    fleet[: round(share * length)] *= level
    assert ramp_s(fleet) == 0
    slowest = slowest_stretch(fleet)
    assert slowest is not None
    assert slowest.mean == pytest.approx(100 * level, rel=0.02)
    assert slowest.at + slowest.length_s <= share * length + 1


@pytest.mark.parametrize("at", [0.3, 0.5, 0.8])
def test_locates_the_slowest_stretch(at: float) -> None:
    rng = np.random.default_rng(1)
    fleet = 100 * (1 + 0.01 * rng.standard_normal(100))
    fleet[round(at * 100) :] *= 0.54
    slowest = slowest_stretch(fleet)
    assert slowest is not None
    assert slowest.mean == pytest.approx(54, rel=0.02)
    assert slowest.at >= round(at * 100)
    assert slowest.noise < 0.6
    assert slowest_stretch(fleet[:9]) is None


def test_locates_a_cliff() -> None:
    rng = np.random.default_rng(3)
    fleet = np.r_[np.full(100, 100.0), np.full(80, 60.0)] * (1 + 0.02 * rng.standard_normal(180))
    result = cliff(fleet)
    assert result is not None
    assert abs(result.at - 100) <= 1
    assert result.before == pytest.approx(100, rel=0.01)
    assert result.after == pytest.approx(60, rel=0.01)


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("fell_at_s", [15.1, 15.5, 15.9])
def test_cliff_within_a_second_does_not_change_its_size(fell_at_s: float, ratio: float) -> None:
    before_s = np.clip(fell_at_s - np.arange(25), 0.0, 1.0)
    result = cliff(100 * (before_s + (1 - before_s) * ratio))
    assert result is not None
    assert abs(result.at - fell_at_s) <= 0.5 + 1e-9
    assert (result.before, result.after) == pytest.approx((100, 100 * ratio))


def test_locates_a_cliff_near_the_end() -> None:
    result = cliff(np.repeat([100.0, 50.0], [18, 2]))
    assert result is not None
    assert (result.at, result.before, result.after) == (18, 100.0, 50.0)


@pytest.mark.parametrize(("low", "fell"), [(60.0, False), (30.0, True)])
def test_drop_within_the_scatter_is_not_a_cliff(low: float, fell: bool) -> None:
    """The rates vary by 10 around 100, so a drop has to be below 59 to be a cliff."""
    result = cliff(np.concatenate((np.tile([90.0, 110.0], 10), np.full(20, low))))
    assert (result is not None) is fell


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_growth_are_not_a_cliff(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert cliff(100 * (1 + 0.05 * rng.standard_normal(280))) is None
    assert cliff(np.linspace(50, 100, 60)) is None
    assert cliff(np.array([1.0, 2.0])) is None


def test_too_few_values_have_no_interval() -> None:
    assert math.isnan(correlated_mean(np.array([])).value)
    for count in range(1, VALUES_MIN):
        assert math.isnan(correlated_mean(np.arange(float(count))).half_width)
    assert correlated_mean(np.arange(float(VALUES_MIN))).half_width > 0
    assert correlated_mean(np.full(30, 7.0)).half_width == 0


@pytest.mark.parametrize("count", [2, 3, 6])
def test_interval_of_a_run_covers_scatter_between_bursts(count: int) -> None:
    """Use a scatter of 2 % between bursts, but intervals of only 0.2 %."""
    rng = np.random.default_rng(count)
    hits = 0
    for _ in range(400):
        bursts = 100 + 2 * rng.standard_normal(count)
        mean = mean_of_bursts(bursts.tolist(), [0.2] * count)
        hits += abs(mean.value - 100) <= mean.half_width
    assert hits >= 0.92 * 400


def test_interval_of_a_run_includes_those_of_its_bursts() -> None:
    assert mean_of_bursts([100.0, 100.0], [1.0, 1.0]).half_width == pytest.approx(math.sqrt(2) / 2)
    assert mean_of_bursts([100.0], [1.0]).half_width == pytest.approx(1.0)
    assert math.isnan(mean_of_bursts([100.0], [None]).half_width)
    assert mean_of_bursts([99.0, 101.0], [None, None]).half_width > 12.706
    assert math.isnan(mean_of_bursts([], []).value)


@pytest.mark.parametrize(
    ("table", "quantiles"),
    [(t95, (12.706, 2.776, 2.042, 2.000, 1.962)), (t90, (6.314, 2.132, 1.697, 1.671, 1.646))],
)
def test_quantiles_of_the_t_distribution(
    table: Callable[[float], float], quantiles: tuple[float, ...]
) -> None:
    results = [table(freedom) for freedom in (1, 4, 30, 60, 1000)]
    assert results == pytest.approx(quantiles, rel=0.003)
