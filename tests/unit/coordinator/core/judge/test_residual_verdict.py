from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.judge.reconciliation.residual_causes import UNSEEN_BY_BYTES
from broadside.coordinator.core.measure.records.evidence import CounterRecord, PairEvidence
from broadside.coordinator.core.summary import RunSummary, Verdict
from tests.planted import ids, summarise
from tests.synthetic import Fleet, Plant, fleet

PLANT = Plant(pairs=6, bursts=3, burst_s=60, period_s=150, grain_s=10, lag_s=30, noise=0.01)


def made() -> tuple[Fleet, CounterRecord]:
    built = fleet(PLANT, target_bits_per_second=30e9)
    assert built.device_counter is not None
    return built, built.device_counter


def judge_run(built: Fleet, device_counter: CounterRecord) -> RunSummary:
    return summarise(replace(built, device_counter=device_counter))


def test_valid_run_states_limits_of_byte_comparison() -> None:
    built, device_counter = made()
    summary = judge_run(built, device_counter)
    assert summary.verdict is Verdict.PASS
    (text,) = [finding for finding in summary.findings if finding.id == "unseen-by-bytes"]
    assert UNSEEN_BY_BYTES in text.sentence


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6])
def test_bypass_compensated_by_foreign_traffic_is_inconclusive(share: float) -> None:
    built, device_counter = made()
    busy = np.median(device_counter.bytes[device_counter.bytes > 0.9 * device_counter.bytes.max()])
    hidden = replace(device_counter, bytes=device_counter.bytes * (1 - share) + share * busy)
    summary = judge_run(built, hidden)
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert ids(summary) >= {"residual", "foreign-traffic", "bypass"}


def test_residual_interval_beyond_the_limit_is_inconclusive() -> None:
    """Foreign traffic is intermittent, so the residual is small but uncertain."""
    built, device_counter = made()
    rng = np.random.default_rng(1)
    bursty = np.repeat(rng.random(len(device_counter) // 6 + 1) < 0.5, 6)[: len(device_counter)]
    foreign = 0.2 * device_counter.bytes.max() * bursty
    summary = judge_run(built, replace(device_counter, bytes=device_counter.bytes + foreign))
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert "residual" in ids(summary)


def test_unknown_lag_is_inconclusive() -> None:
    built, device_counter = made()
    steady = np.full(len(device_counter), float(np.median(device_counter.bytes)) + 1e9)
    summary = judge_run(built, replace(device_counter, bytes=steady))
    assert summary.verdict is Verdict.INCONCLUSIVE
    reconciliation = summary.reconciliation
    assert reconciliation is not None
    assert reconciliation.lag_s is None


@pytest.mark.parametrize("value", [-1.0, np.inf])
def test_impossible_counter_values_are_inconclusive(value: float) -> None:
    built, device_counter = made()
    reported = device_counter.bytes.copy()
    reported[3] = value
    summary = judge_run(built, replace(device_counter, bytes=reported))
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert "device-counter-invalid" in ids(summary)


def outlasted(after_s: int) -> tuple[Fleet, CounterRecord, NDArray[np.float64]]:
    """Return a fleet, its counter, and foreign bytes in each bin after the bursts.

    Foreign traffic has 6 % of the rate in a full bin.
    """
    built = fleet(replace(PLANT, period_s=600), target_bits_per_second=30e9)
    device_counter = built.device_counter
    assert device_counter is not None
    level = 0.06 * float(
        np.median(device_counter.bytes[device_counter.bytes > 0.9 * device_counter.bytes.max()])
    )
    others = np.zeros(len(device_counter))
    for burst in built.plan.bursts:
        from_s = burst.planned_end_at.timestamp() + PLANT.lag_s
        before_s = np.minimum(device_counter.end_s, from_s + after_s)
        others += (
            np.clip(before_s - np.maximum(device_counter.start_s, from_s), 0, None) / 10 * level
        )
    return built, device_counter, others


@pytest.mark.parametrize(
    ("after_s", "verdict"),
    [(0, Verdict.PASS), (15, Verdict.INCONCLUSIVE), (40, Verdict.INCONCLUSIVE)],
)
def test_traffic_after_bursts_may_have_hidden_a_bypass(after_s: int, verdict: Verdict) -> None:
    """Foreign traffic replaces a 6 % bypass and starts with each burst.

    If it stops 40 s later, it can be seen in the bins after the burst. If it stops 15 s later, it
    is only in half a bin, and the rate is estimated from the bin before.
    """
    built, device_counter, others = outlasted(after_s)
    assert others.any() == bool(after_s)
    summary = judge_run(built, replace(device_counter, bytes=device_counter.bytes + others))
    assert summary.verdict is verdict
    assert ("residual" in ids(summary)) == bool(after_s)


def test_extra_sender_rows_do_not_explain_traffic_after_bursts() -> None:
    """Foreign traffic stops after 15 seconds, and the senders record one second more."""
    built, device_counter, others = outlasted(15)

    def longer(pair: PairEvidence) -> PairEvidence:
        tracks = []
        for track in pair.client_tracks:
            more = track.transferred_bytes.copy()
            more[-2] += more[:-1].mean()
            tracks.append(replace(track, transferred_bytes=more))
        return replace(pair, client_tracks=tuple(tracks))

    summary = judge_run(
        built.told(longer), replace(device_counter, bytes=device_counter.bytes + others)
    )
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert "residual" in ids(summary)
