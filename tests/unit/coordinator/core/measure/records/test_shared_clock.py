"""Tests for ends that share the clock of one kernel, which is not set by a time server."""

from dataclasses import replace

import pytest

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.clock_readings import on_shared_clock
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.exchange.messages import ClockReading, ClockSource
from tests.planted import ids
from tests.synthetic import START, Plant, fleet

MADE = fleet(Plant(pairs=4, bursts=1), target_bits_per_second=20e9)


def run_summary(*boots: str) -> RunSummary:
    """Return a run on hosts with the given boot ids. The plan will use the clock of ``laptop``."""
    plan = MADE.plan.model_copy(update={"shared_boot_id": "laptop"})
    pairs = [_read_by(pair, boot) for pair, boot in zip(MADE.evidence[0].pairs, boots, strict=True)]
    burst = replace(MADE.evidence[0], pairs=on_shared_clock(pairs, plan.shared_boot_id))
    return summarise_run(plan, [measure_burst(plan.spec, burst, MADE.now)], None, MADE.now)


def _read_by(pair: PairEvidence, boot_id: str) -> PairEvidence:
    assert pair.report is not None
    assert pair.server_test is not None
    reading = ClockReading(
        source=ClockSource.ADJTIMEX, read_at=START, synchronised=False, boot_id=boot_id
    )
    both = {"clock_before": reading, "clock_after": reading}
    return replace(
        pair,
        claim=pair.claim and pair.claim.model_copy(update={"clock": reading}),
        report=pair.report.model_copy(update=both),
        server_test=pair.server_test.model_copy(update=both),
    )


def test_ends_of_one_host_have_no_clock_offset() -> None:
    summary = run_summary("laptop", "laptop", "laptop", "laptop")
    assert summary.verdict is Verdict.PASS
    assert summary.bursts[0].clock_bound_max_s == 0
    assert "clocks-shared" in ids(summary)
    assert "clocks-self-reported" not in ids(summary)


@pytest.mark.parametrize("boots", [("laptop", "laptop", "laptop", "other"), ("other",) * 4])
def test_end_on_another_host_disables_the_shared_clock(boots: tuple[str, ...]) -> None:
    summary = run_summary(*boots)
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert "clocks-unproven" in ids(summary)
