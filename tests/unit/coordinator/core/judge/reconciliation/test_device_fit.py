import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.judge.reconciliation.counter_bins import BinSums
from broadside.coordinator.core.judge.reconciliation.device_fit import (
    ERROR_RATIO,
    FitBounds,
    counters_noise,
    fit_burst,
    relative_noise,
)
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import RunSummary, Verdict
from tests.planted import summarise
from tests.synthetic import Break, Fleet, Plant, fleet

PLANT = Plant(
    pairs=6,
    bursts=3,
    burst_s=60,
    period_s=150,
    noise=0.01,
    counter_noise=0.001,
    firewall_bits_per_second=None,
)


def bins_of(counts: NDArray[np.float64], predicted: NDArray[np.float64]) -> BinSums:
    return BinSums(
        device_counter=counts,
        fleet=predicted,
        width=np.ones(len(counts)),
        earlier=predicted,
        later=predicted,
        placed=predicted[:, None],
    )


@pytest.mark.parametrize("trades", [0.0, 0.02])
@pytest.mark.parametrize("count", [8, 20, 60, 300])
def test_fit_error_rate_for_matching_bursts(count: int, trades: float) -> None:
    """Simulate 2,000 runs with bin noise and with bytes that are counted in the next bin."""
    rng = np.random.default_rng(31)
    draws, rejected = 2000, 0
    for _ in range(draws):
        bursts = []
        for _ in range(3):
            moved = trades * rng.standard_normal(count + 1)
            noisy = 1 + 0.01 * rng.standard_normal(count) + np.diff(moved)
            bursts.append(bins_of(noisy, np.ones(count)))
        result = fit_burst(bursts[0], 0.0, relative_noise(bursts, 0.0), FitBounds())
        assert result is not None
        rejected += result.distance_ratio > result.limit_ratio
    # The expected number is 2. The probability for 8 or more is 0.1 %.
    assert rejected < 8, f"{rejected} of {draws} rejected, expected {ERROR_RATIO:.1%}"


def test_detects_step_with_equal_mean() -> None:
    rng = np.random.default_rng(7)
    shape = np.repeat([0.6, 1.0, 0.36], 20)
    bins = bins_of(shape * (1 + 0.01 * rng.standard_normal(60)), np.ones(60))
    result = fit_burst(bins, 0.0, relative_noise([bins], 0.0), FitBounds())
    assert result is not None
    assert result.distance_ratio > 3 * result.limit_ratio


def test_accepts_one_late_reading() -> None:
    """Bytes that are missing in one bin are in the next bin."""
    rng = np.random.default_rng(8)
    counts = 1 + 0.005 * rng.standard_normal(60)
    counts[30] -= 0.4
    counts[31] += 0.4
    bins = bins_of(counts, np.ones(60))
    result = fit_burst(bins, 0.0, relative_noise([bins], 0.0), FitBounds(flat_ratio=0.006))
    assert result is not None
    assert result.distance_ratio <= result.limit_ratio


def test_detects_early_group_at_edges_of_a_few_bins() -> None:
    """Both ends change by 13 % of a bin. In the middle this would be noise."""
    rng = np.random.default_rng(31)
    draws, seen = 100, 0
    for _ in range(draws):
        bursts = []
        for _ in range(3):
            counts = 1 + 0.01 * rng.standard_normal(14)
            counts[[0, 1, -2, -1]] += [0.13, -0.13, -0.13, 0.13]
            bursts.append(bins_of(counts, np.ones(14)))
        result = fit_burst(bursts[0], 0.0, relative_noise(bursts, 0.0), FitBounds())
        assert result is not None
        seen += result.distance_ratio > result.limit_ratio
    # With one limit for all edges, only 20 % would be detected.
    assert seen > 0.6 * draws


def test_fleet_rate_changes_are_no_counter_noise() -> None:
    rng = np.random.default_rng(9)
    fleets = [np.exp(0.3 * rng.standard_normal(12)) for _ in range(4)]
    noise = counters_noise(
        [(1.04 * item * (1 + 0.01 * rng.standard_normal(12)), item) for item in fleets]
    )
    assert 0.007 < noise < 0.014
    assert math.isnan(counters_noise([(fleets[0][:4], fleets[0][:4])]))
    assert math.isnan(counters_noise([]))


def judge_run(made: Fleet, counted: NDArray[np.float64]) -> RunSummary:
    assert made.device_counter is not None
    device_counter = replace(made.device_counter, bytes=counted)
    made = made.aiming(target_bits_per_second=0.9 * made.truth.rates[0], tolerance_ratio=0.0)
    return summarise(replace(made, plan=made.plan.sealed(), device_counter=device_counter))


def shifted(made: Fleet, by_s: float) -> NDArray[np.float64]:
    """Return the counter bins with all traffic ``by_s`` later."""
    assert made.device_counter is not None
    edges = np.append(made.device_counter.start_s, made.device_counter.end_s[-1])
    curve = np.append(0.0, np.cumsum(made.device_counter.bytes))
    return np.diff(np.interp(edges - by_s, edges, curve))


def findings(summary: RunSummary) -> set[str]:
    return {finding.id for finding in summary.findings}


@pytest.mark.parametrize("by_s", [-20.0, -5.0, 0.0, 0.4, 5.0, 40.0])
def test_common_shift_is_a_lag(by_s: float) -> None:
    made = fleet(PLANT)
    summary = judge_run(made, shifted(made, by_s))
    assert "device-shape" not in findings(summary)
    assert summary.verdict is Verdict.PASS


@pytest.mark.parametrize("grain_s", [1.0, 5.0])
@pytest.mark.parametrize(("share", "by_s"), [(0.4, 10.0), (0.5, 9.0), (0.3, -12.0), (0.1, 25.0)])
def test_detects_shift_of_a_group_of_hosts(share: float, by_s: float, grain_s: float) -> None:
    """All records have the same start time, but one group is counted earlier or later."""
    made = fleet(replace(PLANT, grain_s=grain_s))
    counted = (1 - share) * shifted(made, 0.0) + share * shifted(made, by_s)
    summary = judge_run(made, counted)
    assert summary.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ((0.6, 1.0, 0.36), {"device-shape", "slow-stretch-device"}),
        ((1.0, 0.7, 1.3, 1.0), {"device-shape", "slow-stretch-device"}),
        # The lag is not known, because a shorter burst would fit twice.
        ((1.4, 0.6), {"lag-unknown"}),
    ],
)
def test_counter_with_other_shape_is_inconclusive(
    parts: tuple[float, ...], named: set[str]
) -> None:
    """The fleet rate is constant. The counter has the same mean but another shape."""
    made = fleet(PLANT)
    assert made.device_counter is not None
    counted = made.device_counter.bytes.copy()
    for burst in made.plan.bursts:
        at = (made.device_counter.start_s - burst.planned_start_at.timestamp()) / burst.duration_s
        inside = (at >= 0) & (at < 1)
        place = np.minimum((at[inside] * len(parts)).astype(int), len(parts) - 1)
        counted[inside] *= np.array(parts)[place] / np.mean(parts)
    summary = judge_run(made, counted)
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert named & findings(summary)


@pytest.mark.parametrize("grain_s", [1.0, 5.0])
@pytest.mark.parametrize(("before_s", "after_s"), [(20.0, 0.0), (0.0, 20.0), (8.0, 0.0)])
def test_traffic_around_a_burst_does_not_hide_a_bypass(
    before_s: float, after_s: float, grain_s: float
) -> None:
    """The fleet bypasses the device with 20 % of its traffic, and foreign traffic replaces it."""
    made = fleet(replace(PLANT, grain_s=grain_s))
    assert made.device_counter is not None
    counted = 0.8 * made.device_counter.bytes
    plateau = 0.2 * float(np.quantile(made.device_counter.bytes / grain_s, 0.99))
    for burst in made.plan.bursts:
        first = burst.planned_start_at.timestamp() - before_s
        last = burst.planned_end_at.timestamp() + after_s
        counted += plateau * np.clip(
            np.minimum(made.device_counter.end_s, last)
            - np.maximum(made.device_counter.start_s, first),
            0,
            None,
        )
    assert judge_run(made, counted).verdict is Verdict.INCONCLUSIVE


def flat(pair: PairEvidence) -> PairEvidence:
    """Make all receiver seconds equal."""
    tracks = []
    for track in pair.server_tracks:
        amounts = track.transferred_bytes
        even = np.full(len(amounts), amounts.sum() / track.end_s[-1]) * (
            track.end_s - track.start_s
        )
        tracks.append(replace(track, transferred_bytes=even))
    return replace(pair, server_tracks=tuple(tracks))


def cut(pair: PairEvidence) -> PairEvidence:
    """Make all receiver seconds equal, and remove sender rows in the slow part."""
    tracks = [track.rows(track.end_s < 40.5) for track in pair.client_tracks]
    return replace(flat(pair), client_tracks=tuple(tracks))


@pytest.mark.parametrize("forged", [flat, cut])
def test_senders_show_slow_part_that_receivers_hide(
    forged: Callable[[PairEvidence], PairEvidence],
) -> None:
    """All receiver seconds are equal, but the senders only reach the target for 40 seconds."""
    slow = Break(burst=0, from_s=40, length_s=20, factor=0.7)
    made = fleet(replace(PLANT, bursts=1, device_counter=False, breaks=(slow,))).told(forged)
    made = made.aiming(target_bits_per_second=0.97 * made.truth.rates[0], tolerance_ratio=0.0)
    summary = summarise(replace(made, plan=made.plan.sealed()))
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert "slow-stretch-senders" in findings(summary)
