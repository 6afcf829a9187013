"""Recompute the worked example in docs/statistics.md and compare it with the summary."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.judge.checks.rate_checks import device_rate, received_rate
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import Reconciliation, RunSummary
from tests.planted import summarise
from tests.synthetic import Fleet, Plant, fleet

PLANT: Final = Plant(
    pairs=6, bursts=3, burst_s=60, period_s=150, grain_s=10, lag_s=30, noise=0.01, seed=0
)
PAGE: Final = Path(__file__).parents[5] / "docs" / "statistics.md"


def quantile(freedom: float) -> float:
    """Return the two-sided 95 % quantile for Student's t."""
    at = np.linspace(0, 100, 200_001)
    density = (1 + at**2 / freedom) ** (-(freedom + 1) / 2)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    steps = (density[1:] + density[:-1]) / 2 * at[1]
    half = np.concatenate(([0.0], np.cumsum(steps))) * scale / math.sqrt(freedom * math.pi)
    return float(np.interp(0.475, half, at))


@dataclass(frozen=True)
class ByHand:
    rates: list[float]
    halves: list[float]
    run_half: float
    scatter: float
    counted_bytes: float
    expected_bytes: float
    residual_half: float


def by_hand(made: Fleet) -> ByHand:
    rates, halves, ratios, payload = [], [], [], []
    assert made.device_counter is not None
    bins = made.device_counter
    for burst in made.evidence:
        begun = int(burst.burst.planned_start_at.timestamp())
        seconds = begun + np.arange(62.0)
        first, last, fleet_bits, total = -math.inf, math.inf, np.zeros(61), 0.0
        for pair in burst.pairs:
            track = pair.server_tracks[0]
            at = track.first_data_at_s + np.append(0.0, track.end_s)
            sums = np.append(0.0, np.cumsum(track.transferred_bytes))
            fleet_bits += np.diff(np.interp(seconds, at, sums)) * 8
            first, last, total = max(first, at[0]), min(last, at[-1]), total + sums[-1]
        shared = fleet_bits[(seconds[:-1] >= first) & (seconds[1:] <= last)]
        steady = without_ramp(shared)
        rates.append(float(steady.mean()))
        halves.append(half_of_seconds(steady))
        lagged = (bins.end_s - 30 > begun) & (bins.start_s - 30 < begun + 61)
        ratios.append(float(bins.bytes[lagged].sum()) / total)
        payload.append(total)
    scatter = float(np.std(rates, ddof=1))
    within = math.sqrt(sum(half**2 for half in halves)) / 3
    between = quantile(2) * float(np.std(ratios, ddof=1)) / math.sqrt(3) / float(np.mean(ratios))
    return ByHand(
        rates=rates,
        halves=halves,
        run_half=max(half_of_mean(np.array(rates), BURSTS), within),
        scatter=scatter,
        counted_bytes=float(np.dot(ratios, payload)),
        expected_bytes=sum(payload) * 1500 / 1448,
        residual_half=math.hypot(0.002, between),
    )


def without_ramp(bits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Remove the ramp at the cut with the smallest standard error (White 1997).

    The ramp must differ by at least 1 %, and it can be at most 20 % of the window.
    """
    count = len(bits)
    errors = [bits[cut:].var() / (count - cut) for cut in range(count // 2 + 1)]
    cut = int(np.argmin(errors))
    rest = bits[cut:]
    off = np.abs(bits[:cut] - rest.mean()) > max(0.01 * rest.mean(), 2 * rest.std())
    cut = int(np.flatnonzero(off)[-1]) + 1 if off.any() else 0
    assert cut <= 0.2 * count
    return bits[cut:]


SHORT: Final = (*(place / 10 for place in range(10)), 0.95)
SECONDS: Final = [(phi, place / 10) for phi in SHORT for place in range(5)]
BURSTS: Final = [(phi, 0.0) for phi in SHORT] + [(0.0, place / 20) for place in range(1, 10)]


def half_of_seconds(bits: NDArray[np.float64]) -> float:
    """Return the half width. Two-second means are used for more than 40 seconds."""
    count = len(bits) // 2
    return half_of_mean(bits[: 2 * count].reshape(count, 2).mean(axis=1), SECONDS)


def half_of_mean(values: NDArray[np.float64], processes: list[tuple[float, float]]) -> float:
    """Return the half width. Processes are weighted by their likelihood (Harville 1974)."""
    count = len(values)
    contrasts = np.linalg.svd(np.eye(count) - 1 / count)[0][:, : count - 1].T
    seen = contrasts @ values
    likelihoods, errors = [], []
    for phi, d in processes:
        covariance = arfima(phi, d, count)
        inner = contrasts @ covariance @ contrasts.T
        squares = float(seen @ np.linalg.solve(inner, seen))
        logs = -np.linalg.slogdet(inner)[1] / 2 - (count - 1) / 2 * math.log(squares)
        likelihoods.append(logs)
        errors.append(math.sqrt(squares / (count - 1) * covariance.mean()))
    weights = np.exp(np.array(likelihoods) - max(likelihoods))
    at = np.linspace(0, 100, 200_001)
    density = (1 + at**2 / (count - 1)) ** (-count / 2)
    cumulative = np.cumsum(density) / density.sum()
    low, high = 0.0, 100 * max(errors)
    for _ in range(60):
        middle = (low + high) / 2
        inside = np.interp(middle / np.array(errors), at, cumulative) @ weights / weights.sum()
        low, high = (middle, high) if inside < 0.95 else (low, middle)
    return high


def arfima(phi: float, d: float, count: int) -> NDArray[np.float64]:
    """Return the autocorrelation matrix (Hosking 1981), with an AR(1) filter for 1,000 steps."""
    noise = [1.0]
    for lag in range(1, count + 2000):
        noise.append(noise[-1] * (lag - 1 + d) / (lag - d))
    steps = np.arange(-1000, 1001)
    results = [
        sum(phi ** abs(step) * noise[abs(lag - step)] for step in steps.tolist() if phi or not step)
        for lag in range(count)
    ]
    return np.array(results)[np.abs(np.subtract.outer(range(count), range(count)))] / results[0]


def near(one: float, other: float, digit: float) -> bool:
    """Return true if the values are equal when they are printed."""
    return abs(one - other) <= 0.51 * digit


def judge_run(made: Fleet, device_counter: CounterRecord | None) -> RunSummary:
    made = made.aiming(target_bits_per_second=30e9, tolerance_ratio=0.05)
    return summarise(replace(made, plan=made.plan.sealed(), device_counter=device_counter))


def printed(column: int) -> list[list[float]]:
    """Return the table rows: bursts, run, lag, idle level, bytes, residual."""
    page = PAGE.read_text("utf-8").partition("## Worked example")[2].partition("\n## ")[0]
    lines = [line.split("|")[column] for line in page.splitlines() if line.startswith("| ")]
    return [[float(item) for item in re.findall(r"-?\d+\.\d+", line)] for line in lines[2:8]]


def test_example_matches_formulas_and_summary() -> None:
    made = fleet(PLANT)
    hand, summary = by_hand(made), judge_run(made, made.device_counter)
    bursts, run, lag, _, sizes, residual = printed(2)
    reconciliation = summary.reconciliation
    assert summary.verdict == "pass"
    assert reconciliation is not None
    for place, burst in enumerate(summary.bursts):
        for mine, figure, page in (
            (hand.rates, burst.fleet_received_bits_per_second, bursts[2 * place]),
            (hand.halves, burst.fleet_received_half_width_bits_per_second, bursts[2 * place + 1]),
        ):
            assert near(mine[place] / 1e9, page, 1e-3)
            assert near((figure or 0.0) / 1e9, page, 1e-3)
    assert near(float(np.mean(hand.rates)) / 1e9, run[0], 1e-3)
    assert near(hand.run_half / 1e9, run[1], 1e-3)
    assert near(hand.scatter / 1e9, run[-1], 1e-3)
    assert near((summary.fleet_received_half_width_bits_per_second or 0) / 1e9, run[1], 1e-3)
    assert [reconciliation.lag_s, reconciliation.lag_uncertainty_s] == lag
    assert near(hand.counted_bytes / 1e9, sizes[0], 0.1)
    assert near(hand.expected_bytes / 1e9, sizes[1], 0.1)
    _same_residual(reconciliation, hand, 1.0, residual)


def test_example_with_ten_percent_bypass() -> None:
    made = fleet(PLANT)
    _, _, _, (idle,), sizes, residual = printed(3)
    assert made.device_counter is not None
    foreign = idle * 1e9 / 8 * PLANT.grain_s
    summary = judge_run(
        made, replace(made.device_counter, bytes=0.9 * made.device_counter.bytes + foreign)
    )
    reported, hand = summary.reconciliation, by_hand(made)
    assert summary.verdict == "inconclusive"
    assert {"residual", "bypass", "foreign-traffic"} <= {finding.id for finding in summary.findings}
    assert reported is not None
    assert near((reported.baseline_bits_per_second or 0.0) / 1e9, idle, 1e-3)
    assert near(0.9 * hand.counted_bytes / 1e9, sizes[0], 0.1)
    _same_residual(reported, hand, 0.9, residual)


def _same_residual(
    reconciliation: Reconciliation, hand: ByHand, share: float, page: list[float]
) -> None:
    off = share * hand.counted_bytes / hand.expected_bytes - 1
    ends = (off, off - hand.residual_half, off + hand.residual_half)
    engine = (
        reconciliation.residual_ratio,
        reconciliation.residual_low_ratio,
        reconciliation.residual_high_ratio,
    )
    for mine, theirs, printed_percent in zip(ends, engine, page, strict=True):
        assert near(mine * 100, printed_percent, 0.01)
        assert near((theirs or 0.0) * 100, printed_percent, 0.01)


def test_verdict_page_matches_the_summary() -> None:
    page = (PAGE.parent / "verdict.md").read_text("utf-8")
    text = page.partition("## Worked example")[2]
    made = fleet(PLANT)
    spec = made.aiming(target_bits_per_second=30e9, tolerance_ratio=0.05).plan.spec
    summary = judge_run(made, made.device_counter)
    burst = summary.bursts[0]
    rate = received_rate(spec, burst)
    assert rate is not None
    device = device_rate(spec, burst, rate)
    reconciliation = burst.reconciliation
    assert device is not None
    assert reconciliation is not None
    low, high = (
        (reconciliation.residual_low_ratio or 0) * 100,
        (reconciliation.residual_high_ratio or 0) * 100,
    )
    for shown in (
        f"`37.383 - 0.099 = {rate.low / 1e9:.3f} > 28.5`",
        f"counter has {(reconciliation.firewall_bytes or 0) / 1e9:.3f} GB",
        f"prediction is {(reconciliation.expected_bytes or 0) / 1e9:.3f} GB",
        f"interval is {low:.2f} % to +{high:.2f} %",
        f"`{device.value / 1e9:.3f} - {device.below / 1e9:.3f} > 28.5`",
    ):
        assert shown in text


@pytest.mark.parametrize(
    ("target", "verdict", "finding"),
    [
        (30e9, "pass", "target-reached"),
        (40e9, "fail", "target-missed"),
        (39.4e9, "inconclusive", "target-undecided"),
    ],
)
def test_example_with_other_targets(target: float, verdict: str, finding: str) -> None:
    made = fleet(PLANT).aiming(target_bits_per_second=target, tolerance_ratio=0.05)
    summary = summarise(replace(made, plan=made.plan.sealed()))
    assert summary.verdict == verdict
    on_target = {"target-reached", "target-missed", "target-undecided"}
    assert on_target & {item.id for item in summary.findings} == {finding}
