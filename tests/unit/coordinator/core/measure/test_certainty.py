"""Tests for the confidence sequence of a burst."""

import numpy as np
import pytest

from broadside.coordinator.core.measure.formulas.certainty import (
    ALPHA,
    BATCH_S,
    SKIP_S,
    batch_means,
    certain_at_s,
    evidence_against,
    sequence_at_end,
)
from tests.hunt.stop_decisions import CHANGES, SCATTER, correlated, decide, noise_bursts

CORRELATIONS = (0.0, 0.5, 0.8, 0.95)


def bursts(correlation: float, margin: float, count: int, burst_s: int) -> np.ndarray:
    noise = correlated(np.random.default_rng(5), count, burst_s, correlation)
    return np.asarray(1 + margin + SCATTER * noise)


@pytest.mark.parametrize("correlation", CORRELATIONS)
def test_a_rate_at_the_limit_is_rarely_certain_at_any_time(correlation: float) -> None:
    certain = certain_at_s(bursts(correlation, 0.0, 400, 400), 1.0, 60)
    # Three standard deviations of a share of ALPHA.
    assert np.isfinite(certain).mean() <= ALPHA + 3 * np.sqrt(ALPHA / 400)


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("margin", [-0.05, -0.02, -0.005, 0.005, 0.02, 0.05])
def test_few_decisions_are_wrong(correlation: float, margin: float) -> None:
    seconds = bursts(correlation, margin, 40, 280)
    out = decide(seconds, np.full((1, 280), 1 + margin))
    assert out.wrong.mean() <= 0.05
    if abs(margin) >= (0.02 if correlation <= 0.5 else 0.05) and correlation <= 0.8:
        # All are decided, and most are stopped.
        assert (out.side == np.sign(margin)).all()
        assert out.early.mean() > 0.9


def test_a_decision_against_the_expected_rate_is_counted_as_wrong() -> None:
    seconds = bursts(0.5, 0.05, 5, 280)
    assert decide(seconds, np.full((1, 280), 0.95)).wrong.all()


def test_large_margins_stop_near_the_shortest_duration() -> None:
    assert np.median(certain_at_s(bursts(0.0, 0.02, 100, 280), 1.0, 60)) <= 70
    assert certain_at_s(bursts(0.0, 0.5, 5, 400), 1.0, 300).tolist() == [300.0] * 5


def test_small_margins_run_to_the_end() -> None:
    out = decide(bursts(0.5, 0.002, 50, 280), np.full((1, 280), 1.002))
    assert out.early.mean() < 0.1


@pytest.mark.parametrize("kind", CHANGES)
def test_later_changes_do_not_make_the_seen_part_wrong(kind: str) -> None:
    expected = CHANGES[kind](1740)[None]
    noise = correlated(np.random.default_rng(6), 20, 1740, 0.5)
    out = decide(expected + SCATTER * noise, expected)
    assert out.wrong.mean() <= 0.05
    if kind.endswith("after the stop"):
        assert out.early.all()
        assert out.changed.all()
    if kind == "ramp":
        # A slow ramp makes the rate uncertain, so it is not stopped at once.
        assert np.median(out.stop_s) > 90


def test_bursts_of_noise_delay_the_decision() -> None:
    noise = noise_bursts(np.random.default_rng(7), 40, 600)
    out = decide(1.02 + SCATTER * noise, np.full((1, 600), 1.02))
    assert out.wrong.mean() <= 0.05
    assert np.median(out.stop_s) > 70


def test_sequence_ends_where_the_evidence_reaches_the_limit() -> None:
    batches = batch_means(bursts(0.5, 0.01, 1, 120)[0])
    sequence = sequence_at_end(batches)
    assert sequence is not None
    assert sequence.low < batches.mean() < sequence.high
    for end, inside in ((sequence.low, 1e-5), (sequence.high, -1e-5)):
        assert evidence_against(batches, end)[-1] >= -np.log(ALPHA)
        assert evidence_against(batches, end + inside)[-1] < -np.log(ALPHA)


def test_evidence_does_not_depend_on_the_unit() -> None:
    batches = batch_means(bursts(0.5, 0.01, 1, 120)[0])
    assert evidence_against(batches * 1e11, 1e11) == pytest.approx(evidence_against(batches, 1.0))


def test_first_batch_and_first_seconds_are_no_evidence() -> None:
    seconds = np.concatenate((np.full(SKIP_S, 99.0), np.ones(2 * BATCH_S)))
    assert batch_means(seconds).tolist() == [1.0, 1.0]
    assert evidence_against(np.array([3.0, 3.1]), 1.0)[0] == pytest.approx(0.0)
    assert sequence_at_end(np.array([1.0, 1.1])) is None


def test_equal_seconds_are_certain() -> None:
    sequence = sequence_at_end(np.full(30, 1e9))
    assert sequence is not None
    assert sequence.high - sequence.low < 1e3
