"""Measure how often 95 % intervals contain the true value.

To run it, use ``python -m tests.bench.bench_intervals``. It will print the tables in
docs/validation.md: the mean of a correlated series by length and correlation, the mean of a run by
bursts and their scatter, the difference of two groups, and the residual and lag of a device counter
by bin length.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.comparison.group_comparison import Group, compare
from broadside.coordinator.core.judge.reconciliation.residual_causes import Missing
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.formulas.headers import tcp_headers
from broadside.coordinator.core.measure.formulas.steady import Mean, correlated_mean, mean_of_bursts
from broadside.coordinator.core.metrics import RECEIVED
from tests.synthetic import IP_RATIO, Plant, fleet
from tests.unit.coordinator.core.judge.reconciliation.counted import reconcile

LENGTHS_S = (7, 10, 15, 30, 60, 280, 1740)
COUNTS = (1, 2, 3, 5, 10, 30)
GRAINS_S = (1.0, 5.0, 10.0, 60.0, 300.0)
Floats = NDArray[np.float64]


def autocorrelation(process: float | str, length: int) -> Floats:
    """Return the autocorrelation of AR(1), or of fractional Gaussian noise (``H0.8``)."""
    lags = np.arange(float(length))
    if isinstance(process, float):
        return np.asarray(process**lags if process else np.eye(1, length)[0])
    power = 2 * float(process.removeprefix("H"))
    return np.asarray(((lags + 1) ** power - 2 * lags**power + np.abs(lags - 1) ** power) / 2)


def drawn(rng: np.random.Generator, draws: int, length: int, process: float | str) -> Floats:
    """Draw Gaussian series, one per row, by circulant embedding (Davies and Harte 1987)."""
    half = autocorrelation(process, max(64, 4 * length))
    powers = np.fft.fft(np.concatenate((half, half[-2:0:-1]))).real
    white = rng.standard_normal((draws, len(powers))) + 1j * rng.standard_normal(
        (draws, len(powers))
    )
    series = np.fft.fft(white * np.sqrt(np.maximum(powers, 0.0) / len(powers)), axis=1)
    return np.asarray(series.real[:, :length])


def spread(length: int, process: float | str) -> float:
    """Return the standard deviation of the mean of such a series."""
    result = autocorrelation(process, length)
    inner = 1 + 2 * float(((1 - np.arange(1, length) / length) * result[1:]).sum())
    return math.sqrt(inner / length)


def cell(means: Sequence[Mean], error: float) -> str:
    stored = sum(abs(mean.value) <= mean.half_width for mean in means) / len(means)
    half = float(np.median([mean.half_width for mean in means]))
    return f"{stored:8.1%} /{half / 1.96 / error:5.2f} "


def of_series(draws: int) -> Iterator[str]:
    processes = (0.0, 0.3, 0.5, 0.8, 0.9, "H0.8")
    yield "== Mean of a burst: coverage / median half width over what 1.96 standard errors would be"
    yield "seconds " + "".join(f"{f'{process}':>16}" for process in processes)
    for length in LENGTHS_S:
        rng = np.random.default_rng(length)
        cells = [
            cell(
                [correlated_mean(values) for values in drawn(rng, draws, length, process)],
                spread(length, process),
            )
            for process in processes
        ]
        yield f"{length:7d} " + "".join(cells)


def of_directions(draws: int) -> Iterator[str]:
    correlations = (-0.9, -0.5, 0.0, 0.5, 0.9)
    yield "== Both directions, rho 0.5: coverage / width, by the correlation between directions"
    yield "seconds " + "".join(f"{correlation:>16}" for correlation in correlations)
    for length in (30, 280, 1740):
        cells = []
        for correlation in correlations:
            rng = np.random.default_rng([length, round(10 + 10 * correlation)])
            one, two = (drawn(rng, draws, length, 0.5) for _ in range(2))
            other = correlation * one + math.sqrt(1 - correlation**2) * two
            error = math.sqrt(2 + 2 * correlation) * spread(length, 0.5)
            cells.append(cell([correlated_mean(values) for values in one + other], error))
        yield f"{length:7d} " + "".join(cells)


def of_runs(draws: int) -> Iterator[str]:
    processes = (0.0, 0.3, 0.5, 0.7, 0.8, "H0.8")
    for within, parts in ((0.0, "no intervals of their own"), (1.0, "as much noise within")):
        yield f"== Mean of a run: coverage / width, by correlation of its bursts; {parts}"
        yield "bursts  " + "".join(f"{f'{process}':>16}" for process in processes)
        for count in COUNTS[(0 if within else 1) :]:
            cells = []
            for process in processes:
                rng = np.random.default_rng([count, round(within)])
                level = drawn(rng, draws, count, process) if count > 1 else 0.0
                seen = level + within * rng.standard_normal((draws, count))
                stated = [2.2 * 1.96 * within if within else None] * count
                error = math.hypot(
                    spread(count, process) if count > 1 else 0.0, within / math.sqrt(count)
                )
                cells.append(cell([mean_of_bursts(row.tolist(), stated) for row in seen], error))
            yield f"{count:6d}  " + "".join(cells)


def of_differences(draws: int) -> Iterator[str]:
    yield "== Difference of two equal groups: coverage, and how often a difference was reported"
    for count, other in ((2, 2), (3, 3), (3, 8), (5, 5), (12, 12)):
        rng = np.random.default_rng([count, other])
        stored = gap = 0
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
            stored += half is not None and abs(metric.difference) <= half
            gap += metric.significant
        sizes = f"{count:3d} and {other:2d} bursts"
        yield f"{sizes}: {stored / draws:6.1%} held, {gap / draws:6.1%} apart"


def of_counters(draws: int) -> Iterator[str]:
    yield "== A device counter: coverage of residual and lag, median half widths, how many stated"
    ratios = tcp_headers([1448])
    no_user = Missing(pairs_count=0, share_ratio=0.0, planned_pairs_count=3)
    for grain_s in GRAINS_S:
        results = []
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
                counter_noise=float(rng.uniform(0, 0.004)),
                counter_jitter_s=float(rng.uniform(0, 0.05)) * grain_s,
            )
            built = fleet(plant)
            if built.device_counter is None:
                continue
            series = [measure_burst(built.plan.spec, e, built.now).series for e in built.evidence]
            share = float(rng.choice([0.0, rng.uniform(0, 0.5)]))
            level = float(series[0].received_bytes.max()) * IP_RATIO * rng.choice([0.0, 0.2, 0.5])
            noise = 1 + 0.02 * rng.standard_normal(len(built.device_counter))
            seen = built.device_counter.bytes * (1 - share) + level * grain_s * noise
            device_counter = replace(built.device_counter, bytes=seen)
            complete, _ = reconcile(series, device_counter, ratios, [no_user] * len(series))
            low, high = complete.residual_low_ratio, complete.residual_high_ratio
            if low is None or high is None or complete.lag_s is None:
                continue
            lag_half = complete.lag_uncertainty_s or 0.0
            results.append(
                (
                    low <= -share <= high,
                    abs(complete.lag_s - plant.lag_s) <= lag_half,
                    (high - low) / 2,
                    lag_half / grain_s,
                )
            )
        stored, lags, halves, lag_halves = (
            np.array(column) for column in zip(*results, strict=True)
        )
        yield (
            f"{grain_s:5g} s: {stored.mean():6.1%} / +-{np.median(halves):.2%}, "
            f"lag {lags.mean():6.1%} / +-{np.median(lag_halves):.2f} bins, "
            f"{len(results)} of {draws} stated"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_intervals")
    parser.add_argument("--draws", type=int, default=1000, help="series a cell")
    parser.add_argument("--counters", type=int, default=60, help="planted fleets a grain")
    arguments = parser.parse_args()
    for lines in (
        of_series(arguments.draws),
        of_directions(arguments.draws),
        of_runs(arguments.draws),
        of_differences(arguments.draws),
        of_counters(arguments.counters),
    ):
        for line in lines:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
