from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from broadside.coordinator.core.judge.observations import lag_findings
from broadside.coordinator.core.judge.reconciliation.lag import is_clock
from broadside.coordinator.core.summary import Reconciliation
from broadside.coordinator.imports.metric_csv import read_declared_metric
from broadside.coordinator.imports.table_runs import TableTests
from tests.unit.coordinator.core.judge.lag_simulation import (
    Setup,
    Simulated,
    drawn,
    simulate,
    tally,
)
from tests.unit.coordinator.imports.small_tables import made, parse

DATA = Path(__file__).parents[5] / "data" / "original"
# Burst, period, number of bursts (from, to), bin and lag (from, to), in seconds.
SHAPES = {
    "280-in-300": (280, 300, (2, 6), 60.0, (-30, 200)),
    "1740-in-1800": (1740, 1800, (2, 3), 60.0, (-30, 200)),
    "30-in-60": (30, 60, (4, 8), 60.0, (-30, 200)),
    "60-in-180": (60, 180, (3, 6), 10.0, (-5, 60)),
    "20-in-40": (20, 40, (2, 6), 5.0, (0, 15)),
    "10-in-25": (10, 25, (2, 6), 1.0, (0, 5)),
}
LONG = ("280-in-300", "1740-in-1800")


def setups(shape: str, kind: str) -> Callable[[np.random.Generator, int], Setup]:
    """Return a function that draws setups for this shape and kind."""
    burst_s, period_s, (fewest, most), bin_s, lags = SHAPES[shape]

    def draw(rng: np.random.Generator, number: int) -> Setup:
        bursts = int(rng.integers(fewest, most + 1))
        rate = float(rng.uniform(0.3, 1.2))
        drift = {
            # A crystal clock can drift by 100 ppm.
            "ppm": rng.uniform(-1, 1) * 100e-6 * bursts * period_s,
            "delay": rng.choice([-1, 1]) * rng.uniform(20, 50),
        }
        starts = {
            "unplanned-before": -1.0,
            "unplanned-after": float(bursts),
            "unplanned-between": float(rng.uniform(0, bursts - 1)),
        }
        return Setup(
            seed=number,
            burst_s=burst_s,
            period_s=period_s,
            bursts=bursts,
            bin_s=bin_s,
            lag_s=float(rng.uniform(*lags)),
            drift_s=float(drift.get(kind, 0.0)),
            noise_ratio=float(rng.uniform(0, 0.01)),
            trade_ratio=float(rng.choice([0.004, 0.03])),
            average=bool(rng.random() < 0.5),
            background_ratio=float(rng.choice([0, 0, 0.05, 0.3])),
            missing_ratio=float(rng.choice([0, 0, 0.05])),
            crossing_ratio=float(rng.uniform(0.1, 0.9)) if kind == "bypass" else 1.0,
            unrecorded=(int(rng.integers(bursts)),) if kind == "unrecorded" else (),
            unplanned=((starts[kind], rate),) if kind in starts else (),
        )

    return draw


def published(name: str) -> Reconciliation:
    """Reconcile a published table with the metric from its published chart."""
    table = parse((DATA / f"seed-{name}-30clients.csv").read_text("utf-8"), f"{name}.csv")
    points, *_ = read_declared_metric(DATA / f"seed-{name}-firewall-throughput.csv")
    table = table.model_copy(update={"metric_source": "chart", "metric": points})
    reconciliation = TableTests(table).describe(made(table)[1]).reconciliation
    assert reconciliation is not None
    return reconciliation


@pytest.mark.parametrize(("name", "lag_s"), [("280s", 75.5), ("1740s", 75.0)])
def test_estimates_lag_of_published_tables_without_drift(name: str, lag_s: float) -> None:
    """The 1,740 s table only has two bursts. The third one is only in the metric."""
    result = published(name)
    assert result.lag_s == pytest.approx(lag_s, abs=2)
    assert result.lag_drift_s == 0
    assert result.lag_uncertainty_s is not None
    assert result.lag_uncertainty_s < 5
    assert result.residual_ratio == pytest.approx(0, abs=0.01)


KINDS = (
    "clean",
    "unrecorded",
    "bypass",
    "unplanned-before",
    "unplanned-after",
    "unplanned-between",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", LONG)
def test_lag_of_long_bursts_is_right_or_unknown(shape: str, kind: str) -> None:
    """Use 280 s in 300 s and 1,740 s in 1,800 s. One burst may be unrecorded or unplanned."""
    result = tally(drawn(16, 31, setups(shape, kind)))
    assert result.counts["wrong"] + result.counts["drift"] == 0, result.wrong
    assert result.counts["right"] >= (11 if kind.startswith("unplanned") else 15), result.summary


@pytest.mark.parametrize("kind", ["clean", "unrecorded", "unplanned-before", "unplanned-after"])
@pytest.mark.parametrize("shape", sorted(set(SHAPES) - set(LONG)))
def test_lag_of_other_shapes_is_right_or_unknown(shape: str, kind: str) -> None:
    """If an unplanned burst continues a short series, there are often two lags that fit."""
    result = tally(drawn(12, 31, setups(shape, kind)))
    assert result.counts["wrong"] + result.counts["drift"] == 0, result.wrong
    assert result.counts["right"] >= (10 if kind == "clean" else 4), result.summary


def test_small_clock_error_needs_no_drift() -> None:
    """A 100 ppm clock error changes the labels by up to 0.6 s. This is less than the interval."""
    result = tally(drawn(12, 31, setups("1740-in-1800", "ppm")))
    assert result.counts["right"] == 12, result.summary


def test_follows_changing_delay_that_is_no_clock_error() -> None:
    setup = Setup(seed=3, burst_s=60, period_s=180, bursts=6, bin_s=10.0, lag_s=40.0, drift_s=40.0)
    lag = simulate(setup).estimate()
    assert lag.drift_s == pytest.approx(40, abs=1.5)
    assert not is_clock(lag.drift_s, 5 * 180 + 60)


def shifted(simulated: Simulated, by_s: float, from_s: float = 0.0) -> Simulated:
    """Return the same counter, with records after ``from_s`` later by ``by_s``."""
    known = simulated.known
    curve = replace(
        known.fleet, at_s=known.fleet.at_s + np.where(known.fleet.at_s >= from_s, by_s, 0.0)
    )
    bursts = [
        (first + by_s, last + by_s, size) if first >= from_s else (first, last, size)
        for first, last, size in known.bursts
    ]
    return replace(simulated, known=replace(known, fleet=curve, bursts=bursts))


def test_one_misplaced_burst_is_no_drift() -> None:
    """One burst record is 15 seconds late. This should not be used as a drift."""
    setup = Setup(seed=4, burst_s=280, period_s=300, bursts=5, bin_s=60.0, lag_s=75.0)
    simulated = simulate(setup)
    lag = shifted(simulated, 15.0, from_s=simulated.known.bursts[-1][0]).estimate()
    assert lag.drift_s == 0
    assert not lag.known or abs(lag.lag_s - 75) <= lag.uncertainty_s


@pytest.mark.parametrize("by_s", [-40.0, 25.0])
def test_common_shift_of_all_records_is_a_lag(by_s: float) -> None:
    setup = Setup(seed=5, burst_s=60, period_s=180, bursts=4, bin_s=10.0, lag_s=45.0)
    original = simulate(setup).estimate()
    moved = shifted(simulate(setup), by_s).estimate()
    assert moved.known
    assert moved.lag_s == pytest.approx(original.lag_s - by_s, abs=0.1)
    assert moved.uncertainty_s == pytest.approx(original.uncertainty_s, abs=0.1)


def test_lag_is_unknown_if_two_lags_fit() -> None:
    """The counter has two equal bursts, but there is only one record."""
    setup = Setup(
        seed=6,
        burst_s=30,
        period_s=100,
        bursts=1,
        bin_s=10.0,
        lag_s=20.0,
        unplanned=((1.0, 1.0),),
    )
    assert not simulate(setup).estimate().known


@pytest.mark.parametrize("seed", range(6))
def test_counter_may_end_soon_after_the_burst(seed: int) -> None:
    """A lag is not possible if it would put the burst outside the counter bins."""
    setup = Setup(seed=seed, burst_s=30, period_s=60, bursts=1, bin_s=10.0, lag_s=2.0)
    simulated = simulate(setup)
    bins, (first, last, _) = simulated.bins, simulated.known.bursts[0]
    near = bins.pick((bins.start_s > first - 50) & (bins.end_s < last + 50))
    lag = replace(simulated, bins=near).estimate()
    assert lag.known
    assert lag.lag_s == pytest.approx(2, abs=lag.uncertainty_s)


def test_lag_hint_selects_only_among_fitting_lags() -> None:
    """The 10 s burst is inside one 60 s bin, so there are 50 seconds of lags that fit."""
    setup = Setup(seed=8, burst_s=10, period_s=120, bursts=3, bin_s=60.0, lag_s=30.0)
    simulated = simulate(setup)
    free = simulated.estimate()
    assert free.known
    inside = free.lag_s + free.uncertainty_s / 2
    assert simulated.estimate(inside).lag_s == pytest.approx(inside, abs=0.01)
    assert simulated.estimate(free.lag_s + 200).lag_s == free.lag_s


@pytest.mark.parametrize(("drift_s", "clock"), [(0.05, True), (30.0, False)])
def test_clock_error_is_at_most_some_hundred_ppm(drift_s: float, clock: bool) -> None:
    assert is_clock(drift_s, 600.0) is clock


@pytest.mark.parametrize(
    ("drift_s", "parts"),
    [
        (0.4, ["grows by 400 ms", "400 ppm", "clock of the counter drifts"]),
        (-0.4, ["shrinks by 400 ms", "clock of the counter drifts"]),
        (
            30.0,
            ["grows by 30 s", "30000 ppm", "the delay between the counter and its reader changes"],
        ),
    ],
)
def test_describes_lag_drift_as_clock_error_or_delay(drift_s: float, parts: list[str]) -> None:
    stored = Reconciliation(
        source="counter",
        layer="ip",
        grain_s=10.0,
        basis="bytes",
        lag_s=30.0,
        lag_drift_s=drift_s,
        overhead_ratio=1.036,
        overhead_how="recorded",
    )
    (finding,) = lag_findings(stored, 1000.0)
    for part in parts:
        assert part in finding.sentence
    assert not list(lag_findings(stored.model_copy(update={"lag_drift_s": 0.0}), 1000.0))
    assert not list(lag_findings(stored.model_copy(update={"lag_s": None}), 1000.0))
