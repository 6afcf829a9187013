"""How often stated 95 % intervals hold the truth: ``python -m tests.bench.bench_intervals``.

Prints the tables that docs/verdict.md repeats: the mean of a correlated series by length and
correlation, a run's mean by bursts and their scatter, the difference of two groups, and a
ledger's residual and lag by grain.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.figures import RECEIVED
from broadside.coordinator.core.judge.comparison import Group, compare
from broadside.coordinator.core.judge.reconcile import reconcile
from broadside.coordinator.core.judge.residual_cause import Missing
from broadside.coordinator.core.measure.headers import headers
from broadside.coordinator.core.measure.measure_burst import measure_burst
from broadside.coordinator.core.measure.steady import correlated_mean, mean_of_bursts
from broadside.exchange.messages import Protocol
from tests.synthetic import IP_RATIO, Plant, fleet

LENGTHS_S = (7, 8, 10, 12, 20, 30, 60, 120, 300, 1740)
RHOS = (0.0, 0.3, 0.5, 0.7, 0.9)
GRAINS_S = (1.0, 5.0, 10.0, 60.0, 300.0)
Floats = NDArray[np.float64]


def autoregressive(rng: np.random.Generator, count: int, rho: float) -> Floats:
    values = np.empty(count)
    values[0] = rng.standard_normal() / math.sqrt(1 - rho**2)
    for i in range(1, count):
        values[i] = rho * values[i - 1] + rng.standard_normal()
    return values


def spread(length: int, rho: float) -> float:
    """Standard deviation of the mean of such a series."""
    lags = np.arange(1, length)
    inner = 1 + 2 * float(((1 - lags / length) * rho**lags).sum())
    return math.sqrt(inner / length / (1 - rho**2))


def of_series(draws: int) -> Iterator[str]:
    yield "== Mean of a burst: coverage / median half width over what 1.96 standard errors would be"
    yield "seconds " + "".join(f"{f'rho {rho}':>16}" for rho in RHOS)
    for length in LENGTHS_S:
        cells = []
        for rho in RHOS:
            rng = np.random.default_rng([length, int(10 * rho)])
            found = [correlated_mean(autoregressive(rng, length, rho)) for _ in range(draws)]
            held = sum(abs(mean.value) <= mean.half_width for mean in found) / draws
            half = float(np.median([mean.half_width for mean in found]))
            cells.append(f"{held:8.1%} /{half / 1.96 / spread(length, rho):5.2f} ")
        yield f"{length:7d} " + "".join(cells)


def of_runs(draws: int) -> Iterator[str]:
    yield "== Mean of a run: coverage by bursts and their scatter over what each leaves open"
    scatters = (0.0, 0.5, 1.0, 5.0)
    yield "bursts  " + "".join(f"{f'x {scatter}':>9}" for scatter in scatters)
    for count in (2, 3, 4, 6, 12):
        cells = []
        for scatter in scatters:
            rng = np.random.default_rng([count, int(10 * scatter)])
            held = 0
            for _ in range(draws):
                bursts = math.hypot(scatter, 1) * rng.standard_normal(count)
                mean = mean_of_bursts(bursts.tolist(), [1.96] * count)
                held += abs(mean.value) <= mean.half_width
            cells.append(f"{held / draws:9.1%}")
        yield f"{count:6d}  " + "".join(cells)


def of_differences(draws: int) -> Iterator[str]:
    yield "== Difference of two groups, alike: coverage, and how often they were called apart"
    for count, other in ((2, 2), (3, 3), (3, 8), (5, 5), (12, 12)):
        rng = np.random.default_rng([count, other])
        held = apart = 0
        for _ in range(draws):
            a, b = (
                Group(
                    name=name,
                    observations=tuple({RECEIVED.name: 100 + x} for x in rng.standard_normal(size)),
                )
                for name, size in (("a", count), ("b", other))
            )
            (metric,) = compare(a, b).metrics
            half = metric.difference_half_width
            held += half is not None and abs(metric.difference) <= half
            apart += metric.apart
        sizes = f"{count:3d} and {other:2d} bursts"
        yield f"{sizes}: {held / draws:6.1%} held, {apart / draws:6.1%} apart"


def of_ledgers(draws: int) -> Iterator[str]:
    yield "== A ledger: coverage of residual and lag, their median half widths, how many stated"
    ratios = headers(Protocol.TCP, [1448])
    nobody = Missing(pairs_count=0, share_ratio=0.0, planned_pairs_count=3)
    for grain_s in GRAINS_S:
        found = []
        for seed in range(draws):
            rng = np.random.default_rng([seed, int(grain_s)])
            burst_s = max(15, int(grain_s * rng.choice([0.3, 1.0, 3.0, 5.0])))
            plant = Plant(
                seed=seed,
                pairs=2,
                bursts=int(rng.integers(1, 5)),
                burst_s=burst_s,
                period_s=burst_s + int(rng.integers(6, 66 + int(2 * grain_s))),
                grain_s=grain_s,
                lag_s=float(rng.uniform(0, min(300, 2 * grain_s))),
                ledger_noise=float(rng.uniform(0, 0.004)),
                ledger_jitter_s=float(rng.uniform(0, 0.05)) * grain_s,
            )
            built = fleet(plant)
            if built.ledger is None:
                continue
            series = [measure_burst(built.plan.spec, e, built.now).series for e in built.evidence]
            share = float(rng.choice([0.0, rng.uniform(0, 0.5)]))
            level = float(series[0].received_bytes.max()) * IP_RATIO * rng.choice([0.0, 0.2, 0.5])
            noise = 1 + 0.02 * rng.standard_normal(len(built.ledger))
            seen = built.ledger.bytes * (1 - share) + level * grain_s * noise
            ledger = replace(built.ledger, bytes=seen)
            whole, _ = reconcile(series, ledger, ratios, [nobody] * len(series))
            low, high = whole.residual_low_ratio, whole.residual_high_ratio
            if low is None or high is None or whole.lag_s is None:
                continue
            lag_half = whole.lag_uncertainty_s or 0.0
            found.append(
                (
                    low <= -share <= high,
                    abs(whole.lag_s - plant.lag_s) <= lag_half,
                    (high - low) / 2,
                    lag_half / grain_s,
                )
            )
        held, lags, halves, lag_halves = (np.array(column) for column in zip(*found, strict=True))
        yield (
            f"{grain_s:5g} s: {held.mean():6.1%} / +-{np.median(halves):.2%}, "
            f"lag {lags.mean():6.1%} / +-{np.median(lag_halves):.2f} bins, "
            f"{len(found)} of {draws} stated"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_intervals")
    parser.add_argument("--draws", type=int, default=1000, help="series a cell")
    parser.add_argument("--ledgers", type=int, default=60, help="planted fleets a grain")
    asked = parser.parse_args()
    for lines in (
        of_series(asked.draws),
        of_runs(asked.draws),
        of_differences(asked.draws),
        of_ledgers(asked.ledgers),
    ):
        for line in lines:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
