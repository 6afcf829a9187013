from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.run_spec import CounterRequirement
from broadside.coordinator.core.summary import RunSummary, Verdict, worse
from tests.planted import ids, summarise
from tests.synthetic import Break, Fleet, Plant, fleet

MINUTE = Plant(pairs=4, bursts=3, burst_s=60, period_s=120, start_spread_s=0.0)


def judge_run(made: Fleet, *, share: float, seal: bool = True, **promised: object) -> RunSummary:
    """Return the summary for a run whose payload rate is ``share`` times the limit."""
    made = made.aiming(
        target_bits_per_second=float(np.mean(made.truth.rates)) / share,
        tolerance_ratio=0,
        layer=Layer.PAYLOAD,
    )
    plan = made.plan.model_copy(update=promised)
    return summarise(replace(made, plan=plan.sealed() if seal else plan))


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(1.05, Verdict.PASS), (1.0, Verdict.INCONCLUSIVE), (0.95, Verdict.FAIL)],
)
def test_only_interval_beyond_the_limit_decides(share: float, verdict: Verdict) -> None:
    made = fleet(replace(MINUTE, device_counter=False))
    result = judge_run(made, share=share)
    assert result.verdict is verdict
    if verdict is Verdict.INCONCLUSIVE:
        assert "target-undecided" in ids(result)


@pytest.mark.parametrize(("fallen_s", "factor"), [(33, 0.65), (45, 0.75)])
@pytest.mark.parametrize(("times", "slow"), [(1.1, True), (0.97, False)])
def test_rate_after_a_drop_must_reach_the_limit(
    fallen_s: int, factor: float, times: float, slow: bool
) -> None:
    """The slowest part also includes time before the drop, so it reaches the limit."""
    broken = Break(burst=0, from_s=300 - fallen_s, length_s=fallen_s, factor=factor)
    made = fleet(replace(MINUTE, bursts=1, burst_s=300, device_counter=False, breaks=(broken,)))
    mean = 1 - (1 - factor) * fallen_s / 300
    result = judge_run(made, share=mean / (factor * times))
    assert "collapse" in ids(result)
    assert ("slow-stretch" in ids(result)) == slow
    assert result.verdict is not Verdict.PASS or not slow


def test_noise_does_not_excuse_slow_part_below_the_limit() -> None:
    """The slow part is 3 % below the limit, and the seconds scatter by 4 %."""
    slow = Break(burst=0, from_s=120, length_s=60, factor=0.95)
    made = fleet(
        replace(MINUTE, bursts=1, burst_s=300, device_counter=False, noise=0.1, breaks=(slow,))
    )
    assert "slow-stretch" in ids(judge_run(made, share=0.99 / 0.97))
    even = fleet(replace(MINUTE, bursts=1, burst_s=300, device_counter=False, noise=0.1))
    assert "slow-stretch" not in ids(judge_run(even, share=1.02))


def test_missing_rows_do_not_hide_a_slow_part() -> None:
    """If some pairs have no rows in the slow part, the mean will be higher."""
    slow = Break(burst=0, from_s=50, length_s=30, factor=0.7)
    plant = replace(MINUTE, pairs=20, bursts=1, burst_s=120, device_counter=False, breaks=(slow,))
    made = fleet(replace(plant, firewall_bits_per_second=None))

    def without(tracks: Sequence[IntervalColumns]) -> tuple[IntervalColumns, ...]:
        selected = (track.rows((track.start_s < 50) | (track.start_s >= 80)) for track in tracks)
        return tuple(selected)

    def fewer(pair: PairEvidence) -> PairEvidence:
        return replace(
            pair,
            client_tracks=without(pair.client_tracks),
            server_tracks=without(pair.server_tracks),
        )

    tampered = made.told(fewer, range(4))
    share = (1 - 0.3 * 30 / 120) / 0.74
    assert "slow-stretch" in ids(judge_run(made, share=share))
    result = judge_run(tampered, share=share)
    assert result.completeness_ratio >= result.bursts[0].completeness.completeness_ratio > 0.95
    assert "stretch-unproven" in ids(result)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "stretch-unproven" not in ids(judge_run(tampered, share=share * 1.5))


def test_no_run_slightly_below_the_limit_passes() -> None:
    for seed in range(40):
        made = fleet(replace(MINUTE, seed=seed, bursts=1, device_counter=False))
        assert judge_run(made, share=0.995).verdict is not Verdict.PASS


def test_burst_too_short_for_an_interval_is_inconclusive() -> None:
    made = fleet(replace(MINUTE, burst_s=3, bursts=1, device_counter=False))
    result = judge_run(made, share=2.0)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert ids(result) & {"interval-unknown", "no-window"}


def test_compares_device_rate_with_the_limit() -> None:
    """With a 25 % bypass, only the fleet reaches the limit."""
    made = fleet(replace(MINUTE, bypass=1, foreign_ratio=0.0))
    result = judge_run(made.aiming(residual_max_ratio=0.9), share=1.1)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "device-unproven" in ids(result)


def test_absent_promised_counter_makes_run_inconclusive() -> None:
    made = fleet(replace(MINUTE, device_counter=False))
    result = judge_run(
        made, share=1.2, ledger=CounterRequirement(source="azure-monitor Throughput")
    )
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.findings[0].id == "device-counter-missing"


def test_low_counter_coverage_of_a_burst_is_inconclusive() -> None:
    made = fleet(MINUTE)
    assert made.device_counter is not None
    known = made.device_counter.bytes.copy()
    last = made.plan.bursts[-1].planned_start_at.timestamp() + made.truth.lag_s
    inside = (made.device_counter.start_s >= last + 20) & (made.device_counter.end_s <= last + 30)
    assert inside.any()
    known[inside] = np.nan
    promise = CounterRequirement(source="lab")
    assert judge_run(made, share=1.5, ledger=promise).verdict is Verdict.PASS
    result = judge_run(
        replace(made, device_counter=replace(made.device_counter, bytes=known)),
        share=1.5,
        ledger=promise,
    )
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "device-counter-sparse" in ids(result)


@pytest.mark.parametrize(("before_s", "verdict"), [(0, "inconclusive"), (8, "pass")])
def test_counter_that_begins_with_the_traffic_is_inconclusive(before_s: int, verdict: str) -> None:
    made = fleet(MINUTE)
    device_counter = made.device_counter
    assert device_counter is not None
    begun_s = made.plan.bursts[0].planned_start_at.timestamp()
    selected = device_counter.end_s > begun_s - before_s
    cut = replace(
        device_counter,
        start_s=device_counter.start_s[selected],
        end_s=device_counter.end_s[selected],
        bytes=device_counter.bytes[selected],
    )
    result = judge_run(replace(made, device_counter=cut), share=1.5)
    assert result.verdict == verdict
    assert ("device-counter-late" in ids(result)) == (verdict != "pass")


def test_run_without_promised_counter_reports_it_first() -> None:
    result = judge_run(fleet(replace(MINUTE, device_counter=False)), share=1.2)
    assert result.verdict is Verdict.PASS
    assert result.findings[0].id == "fleet-alone"


def test_altered_plan_is_inconclusive() -> None:
    made = fleet(replace(MINUTE, device_counter=False))
    result = judge_run(made, share=1.2, seal=False, seal_sha256="0" * 64)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.findings[0].id == "plan-altered"


def test_verdict_includes_seal_and_decision_rule() -> None:
    result = judge_run(fleet(replace(MINUTE, device_counter=False)), share=1.2)
    assert result.plan_sha256 is not None
    assert len(result.plan_sha256) == 64
    assert result.decision_rule == "guarded-acceptance"
    assert result.limit_bits_per_second == result.target_bits_per_second


def test_widely_scattered_bursts_do_not_pass_together() -> None:
    """All bursts are above the limit, but the mean has a wide interval."""
    made = fleet(replace(MINUTE, device_counter=False, drift_per_hour=-6.0))
    lowest = min(made.truth.rates) / float(np.mean(made.truth.rates))
    result = judge_run(made, share=1.03 / lowest)
    assert {burst.verdict for burst in result.bursts} == {Verdict.PASS}
    assert result.verdict is Verdict.INCONCLUSIVE


def test_worse_verdict_of_several() -> None:
    assert worse([]) is Verdict.INCONCLUSIVE
    assert worse([Verdict.PASS, Verdict.MEASURED]) is Verdict.MEASURED
    assert worse([Verdict.MEASURED, Verdict.INCONCLUSIVE]) is Verdict.INCONCLUSIVE
    assert worse([Verdict.FAIL, Verdict.INCONCLUSIVE]) is Verdict.FAIL


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.FAIL), (1.03, Verdict.INCONCLUSIVE)])
def test_received_bytes_above_sent_bytes_are_no_evidence(factor: float, verdict: Verdict) -> None:
    """The received rows are 3 % too large. This can be one block per stream."""
    plant = replace(MINUTE, streams=64, device_counter=False, noise=0.005, pair_bits_per_second=5e7)
    made = fleet(replace(plant, firewall_bits_per_second=None, nic_bits_per_second=None))

    def larger(pair: PairEvidence) -> PairEvidence:
        tracks = (
            replace(track, transferred_bytes=np.round(track.transferred_bytes * factor))
            for track in pair.server_tracks
        )
        return replace(pair, server_tracks=tuple(tracks))

    result = judge_run(made.told(larger), share=0.985)
    assert result.verdict is verdict
    assert ("target-above-sent" in ids(result)) == (verdict is Verdict.INCONCLUSIVE)
