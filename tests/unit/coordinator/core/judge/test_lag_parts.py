import math
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.reconciliation.counter_bins import Bins, Curve, seconds_curve
from broadside.coordinator.core.judge.reconciliation.lag import (
    BIN_COST_MAX,
    BIWEIGHT_SIGMAS,
    FEW_BINS_RATIO,
    JITTER_RATIO,
    SECOND_ERROR_S,
    Known,
    Lag,
    _absolute,
    _bin_cost,
    _biweight,
    _drifting,
    _inside,
    _merged,
    _scatter,
    _step_s,
    _Trials,
    _View,
    _within_reach,
    estimate_lag,
    is_clock,
)
from broadside.coordinator.core.measure.formulas.steady import t95


def _curve(*amounts: float, at_s: float = 0.0) -> Curve:
    return seconds_curve(np.arange(at_s, at_s + len(amounts)), np.array(amounts))


def _bins(*counted: float, at_s: float = 0.0, width_s: float = 1.0) -> Bins:
    start = np.asarray(at_s + width_s * np.arange(len(counted)), dtype=np.float64)
    return Bins(start_s=start, end_s=start + width_s, bytes=np.array(counted, dtype=np.float64))


def _known(fleet: Curve, *bursts: tuple[float, float, float], **fields: Any) -> Known:
    return Known(fleet=fleet, bursts=bursts or [(0.0, 1.0, 1.0)], **fields)


def _trials(*lag_s: float, scale: float = 1.0, idle: float = 0.0, drift_s: float = 0.0) -> _Trials:
    ones = np.ones(len(lag_s))
    return _Trials(
        lag_s=np.array(lag_s),
        drift_s=drift_s * ones,
        scale=scale * ones,
        idle=idle * ones,
        cost=0 * ones,
    )


def _list(values: Floats) -> list[float]:
    return [float(value) for value in values.ravel()]


def test_interpolates_drifting_lag_between_bursts() -> None:
    labels = np.array([0.0, 100.0, 150.0, 300.0])
    steady = Lag(lag_s=5.0, uncertainty_s=1.0, known=True)
    assert _list(steady.at(labels)) == [5, 5, 5, 5]
    assert steady.drift_s == 0.0
    grows = Lag(
        lag_s=5.0,
        uncertainty_s=1.0,
        known=True,
        drift_at_s=np.array([100.0, 200.0]),
        drift_lag_s=np.array([4.0, 6.0]),
    )
    assert _list(grows.at(labels)) == [4, 4, 5, 6]
    assert grows.drift_s == 2.0


@pytest.mark.parametrize(("drift_s", "clock"), [(0.05, True), (-0.05, True), (0.051, False)])
def test_clock_error_is_at_most_500_ppm(drift_s: float, clock: bool) -> None:
    assert is_clock(drift_s, 100.0) is clock


def test_missing_bytes_cost_three_times_as_much() -> None:
    """Other traffic can only add bytes, so missing bytes cost more: 2 + 3 x 1."""
    assert _list(_absolute(np.array([[2.0, -1.0], [0.0, -3.0]]))) == [5.0, 9.0]


def test_biweight_cost_of_a_bin() -> None:
    """The weight is 1 - 1/4 at half width.

    Below the fit, the width is multiplied by sqrt(3) and the cost by three.
    """
    sigma = np.array([2.0])
    half = BIWEIGHT_SIGMAS * 2.0 / 2
    assert _list(_inside(np.array([0.0, half, 2 * half, 9 * half]), sigma)) == pytest.approx(
        [1, 0.75, 0, 0]
    )
    assert _list(_inside(np.array([-half, -2 * half, -4 * half]), sigma)) == pytest.approx(
        [1 - 1 / 12, 1 - 1 / 3, 0]
    )
    costs = _bin_cost(np.array([0.0, half, 9 * half, -9 * half]), sigma)
    assert _list(costs) == pytest.approx(
        [0, BIN_COST_MAX * (1 - 0.75**3), BIN_COST_MAX, 3 * BIN_COST_MAX]
    )
    assert pytest.approx(costs.sum()) == float(
        _biweight(np.array([0.0, half, 9 * half, -9 * half]), sigma)
    )
    # For a small error, the cost is half its square, as in a log likelihood.
    assert _list(_bin_cost(np.array([0.02]), sigma)) == pytest.approx([0.5 * 0.01**2], rel=1e-3)


def test_scatter_is_larger_for_few_errors() -> None:
    """Use 1.4826 times the median, and t for 37 % of n - 3 degrees (at least two)."""
    assert _scatter(np.empty(0)) == 0.0
    few = _scatter(np.array([1.0, 2.0, 9.0]))
    assert few == pytest.approx(1.4826 * 2 * t95(2) / t95(math.inf))
    many = _scatter(np.full(103, 2.0))
    assert many == pytest.approx(1.4826 * 2 * t95(37) / t95(math.inf))


@pytest.mark.parametrize(
    ("bursts", "grain_s", "step_s"),
    [
        pytest.param([(0, 30, 1.0)], 1.0, 10.0, id="a third of the burst, at most 10"),
        pytest.param([(0, 12, 1.0)], 1.0, 4.0, id="a third of 12"),
        pytest.param([(30, 60, 1.0), (0, 15, 1.0)], 1.0, 5.0, id="a third of the shorter burst"),
        pytest.param([(0, 30, 1.0), (36, 66, 1.0)], 1.0, 2.0, id="a third of the gap"),
        pytest.param([(0, 30, 1.0), (30, 60, 1.0)], 1.0, 10.0, id="no gap"),
        pytest.param([(0, 30, 1.0), (31, 33, 0.0)], 1.0, 10.0, id="burst without bytes"),
        pytest.param([(0, 2, 1.0)], 1.0, 1.0, id="at least one second"),
        pytest.param([(0, 6, 1.0)], 30.0, 5.0, id="a sixth of a bin"),
    ],
)
def test_step_between_trial_lags_depends_on_bursts_and_bins(
    bursts: list[tuple[float, float, float]], grain_s: float, step_s: float
) -> None:
    assert _step_s(_known(_curve(1.0), *bursts), grain_s) == step_s


def test_merges_fine_bins_but_not_across_gaps() -> None:
    bins = _bins(*range(7))
    gap = Bins(
        start_s=np.append(bins.start_s, [10.0, 11.0]),
        end_s=np.append(bins.end_s, [11.0, 12.0]),
        bytes=np.append(bins.bytes, [100.0, 200.0]),
    )
    result = _merged(gap, 3.9)
    assert _list(result.start_s) == [0, 3, 6, 10]
    assert _list(result.end_s) == [3, 6, 7, 12]
    assert _list(result.bytes) == [0 + 1 + 2, 3 + 4 + 5, 6, 300]
    assert _merged(bins, 1.9) is bins


def test_selects_bins_that_a_burst_can_reach() -> None:
    """The fleet sends from 1000 to 1010. Lags from -60 to 300 seconds are possible."""
    bins = _bins(*[1.0] * 60, at_s=800.0, width_s=10.0)
    fleet = _curve(*[1.0] * 10, at_s=1000.0)
    result = _within_reach(bins, _known(fleet), 10.0)
    assert (result.start_s[0], result.end_s[-1]) == (930.0, 1320.0)
    beside = _curve(1.0, at_s=950.0)
    result = _within_reach(bins, _known(fleet, beside=beside), 10.0)
    assert (result.start_s[0], result.end_s[-1]) == (880.0, 1320.0)
    later = _within_reach(bins, _known(fleet, beside=_curve(1.0, at_s=1500.0)), 10.0)
    assert later.start_s[0] == 930.0


def test_shifts_curve_by_lag_and_drift() -> None:
    """Seconds 10 and 20 have one byte. At a 2 s lag it is counted in seconds 12 and 22.

    With a 2 s drift, the lag is 1 second less at the first burst and 1 second more at the last.
    """
    fleet = seconds_curve(np.array([10.0, 20.0]), np.array([1.0, 1.0]))
    view = _View(_bins(*[0.0] * 30), _known(fleet, (11.0, 12.0, 1.0), (22.0, 23.0, 1.0)))
    assert (view.first_s, view.last_s) == (11.0, 23.0)
    assert _list(view.growth(np.array([0.0, 11, 17, 23, 99]))) == [-0.5, -0.5, 0, 0.5, 0.5]
    moved = view.shifted(fleet, np.array([2.0, 0.0]), np.zeros(2))
    assert moved.shape == (2, 30)
    assert list(np.flatnonzero(moved[0])) == [12, 22]
    assert list(np.flatnonzero(moved[1])) == [10, 20]
    grown = view.shifted(fleet, np.array([2.0]), np.array([2.0]))
    assert float(grown[0, 11]) == pytest.approx(1.0, abs=0.2)
    assert float(grown[0, 23]) == pytest.approx(1.0, abs=0.2)
    assert view.shifted(None, np.array([1.0, 2.0]), np.zeros(2)).shape == (1, 30)


def test_misfit_excludes_possible_unrecorded_bytes() -> None:
    """The counter has 5, 9, 2 and 20 bytes, and 1 byte is from another run.

    The prediction is 2 x fleet + 1, and up to 3 bytes can be ignored.
    """
    known = _known(
        _curve(1.0, 2.0, 3.0, 4.0),
        unrecorded=_curve(3.0, 3.0, 3.0, 3.0),
        beside=_curve(1.0, 1.0, 1.0, 1.0),
    )
    view = _View(_bins(5.0, 9.0, 2.0, 20.0), known)
    fleet, seen, free = view.parts(np.zeros(1), np.zeros(1))
    assert (_list(fleet), _list(seen), _list(free)) == ([1, 2, 3, 4], [4, 8, 1, 19], [3] * 4)
    off = view.misfit(_trials(0.0, scale=2.0, idle=1.0))
    # The differences are 4 - 3, 8 - 5, 1 - 7 and 19 - 9.
    assert _list(off) == [0.0, 0.0, -6.0, 7.0]


def test_fits_scale_and_idle_level_by_least_squares() -> None:
    view = _View(_bins(*[0.0] * 4, width_s=2.0), _known(_curve(1.0)))
    fleet = np.array([[1.0, 2.0, 3.0, 4.0]])
    ones = np.ones((1, 4))

    def solved(target: list[float], least: float = 0.0, of: Floats = fleet) -> list[float]:
        scale, idle = view._solve(ones, np.array([target]), of, np.array([least]))
        return [float(scale[0]), float(idle[0])]

    # The scale is 3, and the level is 5 per 2 s bin.
    assert solved([8, 11, 14, 17]) == pytest.approx([3.0, 2.5])
    # The level cannot be negative, so only the scale is fitted: 3 - 10 x 5 / 30.
    below = sum(f * (3 * f - 5) for f in (1, 2, 3, 4)) / 30
    assert solved([-2, 1, 4, 7]) == pytest.approx([below, 0.0])
    assert solved([8, 11, 14, 17], 4.0) == pytest.approx([4.0, (50 - 40) / 8])
    # If the fleet is constant, only the scale is fitted.
    assert solved([6, 6, 6, 6], of=np.full((1, 4), 2.0)) == pytest.approx([3.0, 0.0])
    weight = np.array([[1.0, 1.0, 1.0, 0.0]])
    scale, idle = view._solve(weight, np.array([[8.0, 11, 14, 99]]), fleet, np.zeros(1))
    assert (float(scale[0]), float(idle[0])) == pytest.approx((3.0, 2.5))


RISE = [0.0, 0.0, 10.0, 20.0, 30.0, 10.0, 0.0, 0.0]


def test_absolute_fit_ignores_one_outlier() -> None:
    counted = [2 * item + 5 for item in RISE]
    counted[3] += 1000
    view = _View(_bins(*counted), _known(_curve(*RISE), (2.0, 6.0, 70.0)))
    result = view.least_absolute(np.array([0.0, 1.0]), np.zeros(2))
    assert float(result.scale[0]) == pytest.approx(2.0, rel=0.02)
    assert float(result.idle[0]) == pytest.approx(5.0, rel=0.02)
    assert float(result.cost[0]) == pytest.approx(1000.0, rel=0.02)
    assert result.best == 0
    assert result.cost[1] > result.cost[0]
    bounded = view.bounded(result, np.full(8, 1.0), 0.5)
    assert float(bounded.scale[0]) == pytest.approx(2.0, rel=1e-3)
    assert float(bounded.cost[0]) == pytest.approx(BIN_COST_MAX, rel=1e-3)


@pytest.mark.parametrize("unit", [1e-6, 1e9])
def test_absolute_fit_ignores_one_outlier_in_any_unit(unit: float) -> None:
    counted = np.array([2 * item + 5 for item in RISE], dtype=np.float64)
    counted[3] += 1000
    view = _View(_bins(*counted * unit), _known(_curve(*RISE), (2.0, 6.0, 70.0)))
    result = view.least_absolute(np.zeros(1), np.zeros(1))
    assert float(result.scale[0]) == pytest.approx(2.0 * unit, rel=0.02)
    assert float(result.idle[0]) == pytest.approx(5.0 * unit, rel=0.02)


def test_constant_level_is_the_best_quantile() -> None:
    """For 10, 10, 10 and 40 the best level is 10, with one outlier."""
    view = _View(_bins(20.0, 20, 20, 80, width_s=2.0), _known(_curve(1.0)))
    seen, none = np.array([20.0, 20, 20, 80]), np.zeros(4)
    loss, cost = view.even_level(seen, none, np.full(4, 1.0))
    assert (loss, cost) == pytest.approx((60.0, BIN_COST_MAX))
    loss, cost = view.even_level(seen, np.array([0, 0, 0, 60.0]), np.full(4, 1.0))
    # The outlier can be caused by unrecorded bytes.
    assert (loss, cost) == (0.0, 0.0)


def test_bin_noise_comes_from_busy_bins() -> None:
    """Twelve busy bins have an error of 30 / 1000. Edges add 0.167 of a full bin."""
    fleet = [0.0] * 4 + [1000.0] * 12 + [0.0] * 4
    off = [0.0] * 4 + [30.0, -30.0] * 6 + [0.0] * 4
    counted = [a + b for a, b in zip(fleet, off, strict=True)]
    view = _View(_bins(*counted), _known(_curve(*fleet), (4.0, 16.0, 1.0)))
    busy = 1.4826 * 30 * t95(0.37 * 9) / t95(math.inf)
    sigma = view.sigma(_trials(0.0))
    assert _list(sigma) == pytest.approx([math.hypot(busy, SECOND_ERROR_S * 1000)] * 20)
    even = _View(_bins(*fleet), _known(_curve(*fleet), (4.0, 16.0, 1.0)))
    least = math.hypot(JITTER_RATIO * 1000, SECOND_ERROR_S * 1000)
    assert _list(even.sigma(_trials(0.0))) == pytest.approx([least] * 20)
    few = [0.0, 1000.0, 0.0]
    short = _View(_bins(*few), _known(_curve(*few), (1.0, 2.0, 1.0)))
    least = math.hypot(FEW_BINS_RATIO * 1000, SECOND_ERROR_S * 1000)
    assert _list(short.sigma(_trials(0.0))) == pytest.approx([least] * 3)


def test_bin_noise_includes_quiet_bins() -> None:
    """Adjacent quiet bins differ by 400, which is divided by sqrt(2)."""
    fleet = [0.0] * 12 + [1000.0] * 2
    counted = [100.0, 500.0] * 6 + [1300.0, 1300.0]
    view = _View(_bins(*counted), _known(_curve(*fleet), (12.0, 14.0, 1.0)))
    quiet = 1.4826 * 400 / math.sqrt(2) * t95(0.37 * 8) / t95(math.inf)
    sigma = view.sigma(_trials(0.0, idle=300.0))
    assert _list(sigma) == pytest.approx([math.hypot(quiet, SECOND_ERROR_S * 1000)] * 14)


def test_lag_drift_is_midpoint_and_widens_the_interval() -> None:
    """In the counter, the second burst is 2 seconds later than the first."""
    fleet = [0.0] * 150
    counted = [0.0] * 150
    for at in range(10):
        fleet[20 + at] = fleet[120 + at] = 1000.0
        counted[29 + at] = counted[131 + at] = 1000.0
    view = _View(_bins(*counted), _known(_curve(*fleet), (20.0, 30.0, 1e4), (120.0, 130.0, 1e4)))
    lag = Lag(lag_s=10.0, uncertainty_s=0.5, known=True, scale=1.0)
    result = _drifting(lag, view, _trials(10.0, drift_s=2.0))
    assert result.drift_at_s is not None
    assert result.drift_lag_s is not None
    assert _list(result.drift_at_s) == [20.0, 130.0]
    assert result.drift_s == pytest.approx(2.0, abs=0.4)
    assert _list(result.drift_lag_s) == pytest.approx(
        [10 - result.drift_s / 2, 10 + result.drift_s / 2]
    )
    assert result.lag_s == 10.0
    assert 0.5 < result.uncertainty_s < 1.5


def test_estimates_lag_scale_and_interval_of_late_counter() -> None:
    fleet = [0.0] * 40 + [1000.0] * 20 + [0.0] * 40
    counted = [50.0] * 100
    for at in range(20):
        counted[47 + at] = 1150.0
    result = estimate_lag(
        _bins(*counted, at_s=1000.0),
        _known(_curve(*fleet, at_s=1000.0), (1040.0, 1060.0, 2e4)),
        grain_s=1.0,
    )
    assert result.known
    assert result.lag_s == pytest.approx(7.0, abs=0.1)
    assert result.scale == pytest.approx(1.1, rel=0.01)
    assert 0.25 <= result.uncertainty_s < 1.5


@pytest.mark.parametrize("hint_s", [None, 12.0])
def test_counter_without_signal_has_no_lag(hint_s: float | None) -> None:
    known = _known(_curve(*[1000.0] * 20, at_s=1040.0), (1040.0, 1060.0, 2e4))
    for bins in (_bins(*[50.0] * 100, at_s=1000.0), _bins(*[0.0] * 100, at_s=1000.0), _bins(1, 2)):
        result = estimate_lag(bins, known, grain_s=1.0, hint_s=hint_s)
        assert not result.known
        assert result.lag_s == (hint_s or 0.0)
        assert result.uncertainty_s == 360.0
