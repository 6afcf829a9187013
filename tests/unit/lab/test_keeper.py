"""What a profile moves by itself."""

import itertools

import numpy as np

from broadside.coordinator.core.judge.bottleneck.share_evidence import cancel_ratio
from broadside.lab.keeper import is_jitter_up


def test_whichever_clients_get_the_jobs_none_makes_up_for_another() -> None:
    """By the seconds of a 16 s burst's steady window, wherever it begins."""
    ratios = []
    for begun_s in np.arange(0, 12, 0.5):
        tenths = [
            [1.0 if is_jitter_up(begun_s + tenth / 10, index) else -1.0 for tenth in range(130)]
            for index in range(8)
        ]
        seconds = np.array(tenths).reshape(8, 13, 10).mean(axis=2)
        for chosen in itertools.combinations(seconds, 4):
            own = sum(each.var() for each in chosen)
            ratios.append(sum(chosen).var() / own)
    assert np.quantile(ratios, 0.01) > cancel_ratio(13)
    assert 0.7 < np.median(ratios) < 1.3
