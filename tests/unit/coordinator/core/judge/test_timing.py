from collections.abc import Callable
from dataclasses import replace

import pytest

from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.exchange.messages import JobReport, ServerTest
from tests.planted import ids, summarise
from tests.synthetic import START, Plant, clock, fleet

Change = Callable[[PairEvidence], PairEvidence]
PLANT = Plant(pairs=30, bursts=1, burst_s=30, firewall_bits_per_second=None, device_counter=False)
MADE = fleet(PLANT, target_bits_per_second=100e9)
SPREAD = fleet(replace(PLANT, start_spread_s=0.6), target_bits_per_second=100e9)


def _unread(*names: str) -> Change:
    """Remove these clock readings at both ends."""

    def change(pair: PairEvidence) -> PairEvidence:
        report, test = pair.report, pair.server_test
        assert isinstance(report, JobReport)
        assert isinstance(test, ServerTest)
        claim = pair.claim
        if claim is not None and "clock_before" in names:
            claim = claim.model_copy(update={"clock": None})
        gone = dict.fromkeys(names)
        return replace(
            pair,
            claim=claim,
            report=report.model_copy(update=gone),
            server_test=test.model_copy(update=gone),
        )

    return change


def _judge_run(change: Change, count: int, *, promised: bool = True) -> RunSummary:
    plan = MADE.plan.model_copy(update={"clocks_promised": promised})
    return summarise(replace(MADE, plan=plan).told(change, range(count)))


@pytest.mark.parametrize(
    "names", [("clock_after",), ("clock_before",), ("clock_before", "clock_after")]
)
def test_fleet_without_clock_readings_is_inconclusive(names: tuple[str, ...]) -> None:
    summary = _judge_run(_unread(*names), 30)
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert "clock-readings-missing" in ids(summary)
    assert summary.bursts[0].clocks_read_ratio == 0


def test_one_missing_clock_reading_is_counted_but_passes() -> None:
    summary = _judge_run(_unread("clock_after"), 1)
    assert summary.verdict is Verdict.PASS
    assert summary.bursts[0].clocks_read_ratio == pytest.approx(29 / 30)


def test_import_passes_without_clock_readings() -> None:
    assert _judge_run(_unread("clock_before", "clock_after"), 30, promised=False).verdict is (
        Verdict.PASS
    )


def test_unread_and_shifted_clocks_count_together() -> None:
    """Two shifted clocks are too many, and removing one reading should not help."""

    def moved(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None
        after = pair.report.model_copy(update={"clock_after": clock(0.3, 0.301, START)})
        return replace(pair, report=after)

    assert _judge_run(moved, 2).verdict is Verdict.INCONCLUSIVE

    def half(pair: PairEvidence) -> PairEvidence:
        return _unread("clock_after")(pair) if pair.pair_index == 0 else moved(pair)

    assert _judge_run(half, 2).verdict is Verdict.INCONCLUSIVE


def test_large_start_spread_is_inconclusive_and_names_latest_pair() -> None:
    summary = summarise(SPREAD)
    result = next(finding for finding in summary.findings if finding.id == "start-spread")
    assert summary.verdict is Verdict.INCONCLUSIVE
    latest = max(summary.bursts[0].pairs, key=lambda pair: pair.start_error_s or 0.0)
    assert latest.pair in result.sentence


def test_allowed_start_spread_passes() -> None:
    assert summarise(SPREAD.aiming(start_spread_max_s=0.7)).verdict is Verdict.PASS
