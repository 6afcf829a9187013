"""Tests for checking the invariants of stored runs."""

from dataclasses import replace

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.summary import Completeness, SecondState
from tests.invariants import Stored, broken
from tests.planted import EXPECTED, measure, plant
from tests.synthetic import Plant, fleet


def stored(planted: Plant) -> Stored:
    run = fleet(planted)
    summary = summarise_run(run.plan, measure(run), run.device_counter, run.now)
    return Stored(
        plan=run.plan,
        summary=summary,
        claims={
            evidence.burst.index: {
                pair.pair_index: pair.claim for pair in evidence.pairs if pair.claim is not None
            }
            for evidence in run.evidence
        },
        reports={
            evidence.burst.index: {
                pair.pair_index: pair.report for pair in evidence.pairs if pair.report is not None
            }
            for evidence in run.evidence
        },
    )


def test_synthetic_runs_have_no_violations() -> None:
    for kind in EXPECTED:
        assert broken(stored(plant(kind, 7))) == [], kind


def test_reports_second_counted_twice() -> None:
    right = stored(Plant(pairs=3, bursts=1, device_counter=False))
    [burst] = right.summary.bursts
    wrong = burst.model_copy(update={"completeness": Completeness.of({SecondState.MEASURED: 91})})
    summary = right.summary.model_copy(update={"bursts": (wrong,)})
    text = broken(Stored(plan=right.plan, summary=summary))
    assert any("states add up to 91 of 90" in line for line in text)


def test_reports_wrong_sum_of_pairs_with_an_unknown_rate() -> None:
    right = stored(Plant(pairs=3, bursts=1, device_counter=False))
    [burst] = right.summary.bursts
    first, *others = burst.pairs
    unknown = first.model_copy(update={"received_bits_per_second": None})
    wrong = burst.model_copy(update={"pairs": (unknown, *others)})
    summary = right.summary.model_copy(update={"bursts": (wrong,)})
    [text] = broken(replace(right, summary=summary))
    assert "bit/s together, the fleet" in text


def test_reports_lost_burst_and_duplicate_pair() -> None:
    right = stored(Plant(pairs=3, bursts=2, device_counter=False))
    first = right.summary.bursts[0]
    doubled = first.model_copy(update={"pairs": (*first.pairs[:2], first.pairs[0])})
    summary = right.summary.model_copy(update={"bursts": (doubled,)})
    text = broken(Stored(plan=right.plan, summary=summary))
    assert any("bursts on record are [0]" in line for line in text)
    assert any("not the planned ones, each once" in line for line in text)


def test_reports_result_of_another_agent() -> None:
    right = stored(Plant(pairs=3, bursts=1, device_counter=False))
    reports = {
        0: {
            index: report.model_copy(update={"agent_id": "stranger"})
            for index, report in right.reports[0].items()
        }
    }
    text = broken(
        Stored(plan=right.plan, summary=right.summary, claims=right.claims, reports=reports)
    )
    assert len([line for line in text if "reported by stranger" in line]) == 3
