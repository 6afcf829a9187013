"""Tests for the RTT baseline, which is that of the idle path if agents measure it."""

from dataclasses import replace

import pytest

from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import BurstSummary
from broadside.exchange.messages import IdleRtt
from tests.synthetic import Fleet, Plant, fleet

# This is seen for the complete burst, because the queue will not drain.
LOADED_S = 0.014
PLANT = Plant(pairs=4, bursts=1, burst_s=10, rtt_base_s=LOADED_S, firewall_bits_per_second=None)


def measured(made: Fleet) -> BurstSummary:
    return measure_burst(made.plan.spec, made.evidence[0], made.now).summary


def idle_of(made: Fleet, idle_s: float | None, pairs: set[int] | None = None) -> Fleet:
    """Return the fleet if this RTT is measured on the idle path."""
    idle = None
    if idle_s is not None:
        idle = IdleRtt(least_s=idle_s, median_s=idle_s, samples_count=9, how="connections")

    def changed(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None
        return replace(pair, report=pair.report.model_copy(update={"idle_rtt": idle}))

    return made.told(changed, pairs)


def test_idle_baseline_reveals_a_permanent_queue() -> None:
    burst = measured(idle_of(fleet(PLANT), 0.0001))
    flow = burst.flows[0]
    assert (flow.rtt_baseline_s, flow.rtt_baseline_how) == (0.0001, "idle")
    assert flow.buffer_delay_ratio == pytest.approx(LOADED_S / 0.0001, rel=0.1)
    assert [pair.rtt_idle_s for pair in burst.pairs] == [0.0001] * 4


@pytest.mark.parametrize("pairs", [None, {2}])
def test_without_idle_rtt_the_minimum_under_load_is_used(pairs: set[int] | None) -> None:
    burst = measured(idle_of(idle_of(fleet(PLANT), 0.0001), None, pairs))
    flow = burst.flows[0]
    assert (flow.rtt_baseline_s, flow.rtt_baseline_how) == (LOADED_S, None)
    unknown = range(4) if pairs is None else pairs
    assert all(burst.pairs[index].rtt_idle_s is None for index in unknown)


@pytest.mark.parametrize("ratio", [0.0, 0.7, 1.0, None])
def test_reports_the_egress_queue_ratio_by_end(ratio: float | None) -> None:
    def changed(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None
        assert pair.report.engine is not None
        engine = pair.report.engine.model_copy(update={"egress_queued_ratio": ratio})
        return replace(pair, report=pair.report.model_copy(update={"engine": engine}))

    pairs = measured(fleet(PLANT).told(changed)).pairs
    assert {pair.client_egress_queued_ratio for pair in pairs} == {ratio}
    assert {pair.server_egress_queued_ratio for pair in pairs} == {None}
