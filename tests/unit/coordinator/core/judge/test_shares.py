import numpy as np
import pytest

from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import cancel_ratio


@pytest.mark.parametrize("seconds", [5, 12, 30, 60, 600])
@pytest.mark.parametrize(("rho", "most"), [(0.0, 0.015), (1 / 3, 0.02)])
def test_independent_pairs_rarely_cancel(seconds: int, rho: float, most: float) -> None:
    rng = np.random.default_rng(seconds)
    count, pairs = 2000, 4
    moves = np.empty((count, pairs, seconds))
    moves[..., 0] = rng.standard_normal((count, pairs))
    for at in range(1, seconds):
        fresh = rng.standard_normal((count, pairs)) * np.sqrt(1 - rho**2)
        moves[..., at] = rho * moves[..., at - 1] + fresh
    ratios = moves.sum(axis=1).var(axis=1, ddof=1) / moves.var(axis=2, ddof=1).sum(axis=1)
    assert (ratios < cancel_ratio(seconds)).mean() <= most


def test_cancel_ratio_grows_with_the_window() -> None:
    limits = [cancel_ratio(seconds) for seconds in (2, 5, 12, 30, 1740)]
    assert limits == sorted(limits)
    assert limits[-1] == 0.5
    assert 0 <= limits[0] < 0.01
