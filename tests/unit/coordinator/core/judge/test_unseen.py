import math
from dataclasses import replace

import pytest

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.checks.rate_checks import unseen_bits_per_second
from broadside.coordinator.core.summary import BurstSummary, PairSummary, SecondState, Verdict
from tests.hunt.adapter import conclude
from tests.planted import ids, summarise
from tests.synthetic import Plant, fleet
from tests.worlds import generate

MADE = fleet(Plant(pairs=6, bursts=2, burst_s=30, period_s=60, device_counter=False))
SPEC = MADE.plan.spec
BURSTS = summarise(MADE).bursts


def rates(burst: BurstSummary, *values: float | None) -> BurstSummary:
    """Return the burst with these pair rates. Use ``None`` for a missing pair."""

    def changed(pair: PairSummary, rate: float | None) -> PairSummary:
        missing = {"state": SecondState.LOST, "completeness_ratio": 0.0}
        received = {"state": SecondState.MEASURED, "completeness_ratio": 1.0}
        return pair.model_copy(
            update={"received_bits_per_second": rate, **(missing if rate is None else received)}
        )

    pairs = zip(burst.pairs[: len(values)], values, strict=True)
    return burst.model_copy(update={"pairs": tuple(changed(pair, rate) for pair, rate in pairs)})


def test_unseen_pair_uses_its_rate_in_other_bursts() -> None:
    here = rates(BURSTS[0], None, 100.0, 100.0, 100.0)
    before = rates(BURSTS[1], 400.0, 100.0, 100.0, 100.0)
    assert unseen_bits_per_second(SPEC, here, [before]) == pytest.approx(400.0)


def test_history_is_scaled_by_growth_of_recorded_pairs() -> None:
    here = rates(BURSTS[0], None, 100.0, 120.0, 90.0)
    before = rates(BURSTS[1], 400.0, 100.0, 100.0, 100.0)
    assert unseen_bits_per_second(SPEC, here, [before]) == pytest.approx(480.0)


def test_pair_without_history_is_predicted_from_others() -> None:
    equal = rates(BURSTS[0], None, 100.0, 100.0, 100.0)
    assert unseen_bits_per_second(SPEC, equal) == pytest.approx(100.0)
    # The deviation for ln 50, ln 100 and ln 200 is ln 2, and t (2 degrees) is 4.303.
    unlike = rates(BURSTS[0], None, 50.0, 100.0, 200.0)
    expected = 100.0 * math.exp(4.303 * math.log(2) * math.sqrt(4 / 3))
    assert unseen_bits_per_second(SPEC, unlike) == pytest.approx(expected, rel=1e-3)


def test_no_bound_with_too_few_recorded_pairs() -> None:
    assert unseen_bits_per_second(SPEC, rates(BURSTS[0], None, 100.0)) == math.inf


def test_paced_pair_is_bounded_by_its_pace() -> None:
    traffic = SPEC.traffic.model_copy(update={"stream_bits_per_second": 30, "streams_count": 4})
    paced = SPEC.model_copy(update={"traffic": traffic})
    assert unseen_bits_per_second(paced, rates(BURSTS[0], None, 50.0, 200.0)) == 120.0


def test_no_unseen_rate_if_all_pairs_are_recorded() -> None:
    assert unseen_bits_per_second(SPEC, rates(BURSTS[0], 1.0, 2.0)) == 0.0


def test_missing_large_pair_with_history_prevents_a_fail() -> None:
    """One pair is three times as large, but it has no record in one burst. There is no counter."""
    made = fleet(
        Plant(pairs=4, bursts=3, burst_s=60, period_s=120, device_counter=False, noise=0.01)
    )

    def thrice(amounts: Floats) -> Floats:
        return 3 * amounts

    large = made.told(
        lambda pair: replace(
            pair,
            client_tracks=tuple(
                replace(t, transferred_bytes=thrice(t.transferred_bytes))
                for t in pair.client_tracks
            ),
            server_tracks=tuple(
                replace(t, transferred_bytes=thrice(t.transferred_bytes))
                for t in pair.server_tracks
            ),
        ),
        [0],
    )
    first = large.evidence[0]
    lost = tuple(
        replace(p, report=None, client_tracks=(), server_test=None, server_tracks=())
        if p.pair_index == 0
        else p
        for p in first.pairs
    )
    missing = replace(large, evidence=(replace(first, pairs=lost), *large.evidence[1:]))
    fleet_received_bits_per_second = summarise(large).bursts[0].fleet_received_bits_per_second
    assert fleet_received_bits_per_second is not None
    result = summarise(
        missing.aiming(target_bits_per_second=fleet_received_bits_per_second, tolerance_ratio=0.05)
    )
    assert "target-open" in ids(result)
    assert result.verdict is Verdict.INCONCLUSIVE
    twice = summarise(
        missing.aiming(
            target_bits_per_second=2 * fleet_received_bits_per_second, tolerance_ratio=0.05
        )
    )
    assert twice.verdict is Verdict.FAIL


@pytest.mark.parametrize("seed", [1000002, 1000003, 1000006])
def test_device_count_of_missing_pair_prevents_a_fail(seed: int) -> None:
    assert conclude(generate("unheard-large-pair", seed).recording).verdict is Verdict.INCONCLUSIVE
