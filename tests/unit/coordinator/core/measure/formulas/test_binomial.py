"""Test the exact interval of a share."""

import math

import pytest

from broadside.coordinator.core.measure.formulas.binomial import incomplete_beta, share_interval


def tail(count: int, trials: int, share: float) -> float:
    """Return the probability of at least ``count`` events."""
    return math.fsum(
        math.comb(trials, k) * share**k * (1 - share) ** (trials - k)
        for k in range(count, trials + 1)
    )


# Published values (R 4.2, binom.test).
@pytest.mark.parametrize(
    ("count", "trials", "low", "high"),
    [
        (0, 100, 0.0, 0.03621669),
        (10, 100, 0.04900469, 0.17622260),
        (7, 20, 0.15390918, 0.59218850),
        (100, 100, 0.96378331, 1.0),
        (0, 1, 0.0, 0.975),
    ],
)
def test_interval_has_the_published_ends(count: int, trials: int, low: float, high: float) -> None:
    assert share_interval(count, trials, 0.95) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize("trials", [1, 2, 3, 10, 57])
def test_both_tails_of_the_interval_have_the_given_probability(trials: int) -> None:
    for count in range(trials + 1):
        low, high = share_interval(count, trials, 0.9)
        assert low <= count / trials <= high
        if count:
            assert tail(count, trials, low) == pytest.approx(0.05)
        if count < trials:
            assert 1 - tail(count + 1, trials, high) == pytest.approx(0.05)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.8])
@pytest.mark.parametrize("trials", [30, 120, 300])
def test_interval_contains_the_true_share_with_its_confidence(share: float, trials: int) -> None:
    covered = math.fsum(
        math.comb(trials, k) * share**k * (1 - share) ** (trials - k)
        for k in range(trials + 1)
        if share_interval(k, trials)[0] <= share <= share_interval(k, trials)[1]
    )
    assert covered >= 0.99
    # So a set of 100 runs almost never has more than 5 whose interval misses the true share.
    missed = 1 - covered
    assert math.fsum(
        math.comb(100, k) * missed**k * covered ** (100 - k) for k in range(6)
    ) == pytest.approx(1, abs=6e-4)


def test_interval_of_many_trials_is_near_the_normal_one() -> None:
    low, high = share_interval(400_000, 4_000_000)
    half = 2.5758 * math.sqrt(0.1 * 0.9 / 4_000_000)
    assert (low, high) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-6)


def test_incomplete_beta_has_its_ends() -> None:
    assert [incomplete_beta(2, 3, x) for x in (-1, 0, 1, 2)] == [0, 0, 1, 1]
