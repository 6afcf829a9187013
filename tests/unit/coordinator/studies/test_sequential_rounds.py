"""Test that sequential studies stop when the answer is certain, and not before."""

import random
from typing import Any

import pytest
from pydantic import ValidationError

from broadside.coordinator.core.comparison.sequential import Decision
from broadside.coordinator.core.plan.early_stop_estimate import DeviceHistory
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.studies.conclude import conclude
from broadside.coordinator.studies.search import next_offer, search_answer
from broadside.coordinator.studies.sequential_rounds import expected_text
from broadside.coordinator.studies.study import (
    AB,
    Axis,
    Mode,
    Search,
    Sequential,
    StudyRequest,
    StudySpec,
    Sweep,
    TrialResult,
)
from broadside.coordinator.studies.trials import next_trial, trials_count

MODES = AB(a=Mode(name="off"), b=Mode(name="deny"))
STREAMS = Sweep(axes=(Axis(field="traffic.streams_count", values=(1, 8, 64)),))


def study_of(question: Any, **limits: Any) -> StudySpec:
    request = StudyRequest(
        question=question, spec={"scenario": "x"}, sequential=Sequential(**limits)
    )
    return request.study()


def run(
    study: StudySpec, rates: dict[str, float], scatter: float = 0.005, cost_usd: float | None = None
) -> list[TrialResult]:
    """Run all trials with a scatter around the rate of each alternative, and a drift."""
    source = random.Random(38)
    results: list[TrialResult] = []
    while (trial := next_trial(study, results)) is not None:
        [name] = trial.says.values()
        drift = 1 + 0.001 * trial.index
        results.append(
            TrialResult(
                index=trial.index,
                received_bits_per_second=rates[name] * drift * source.gauss(1, scatter),
                completeness_ratio=1.0,
                cost_usd=cost_usd,
            )
        )
    return results


def test_a_large_difference_ends_after_three_rounds() -> None:
    study = study_of(MODES)
    results = run(study, {"off": 92.1e9, "deny": 8.6e9})
    assert len(results) == 6
    conclusion = conclude(study, results)
    [compared] = conclusion.sequential
    assert compared.decision is Decision.DIFFERENT
    assert compared.ratio_low is not None
    assert compared.ratio_high is not None
    assert compared.ratio_low < 8.6 / 92.1 < compared.ratio_high
    assert conclusion.sentence.startswith("deny costs 90.7 % (")
    assert "certain after 3 rounds, at an error rate of 5.0 %" in conclusion.sentence


def test_no_difference_ends_within_the_margin_after_about_the_expected_number() -> None:
    study = study_of(MODES, margin_ratio=0.02, scatter_ratio=0.005)
    text = expected_text(study)
    assert text is not None
    assert "expected bursts: 6 for a large difference, about 12 for none" in text
    assert "at most 40 bursts" in text
    results = run(study, {"off": 90e9, "deny": 90e9})
    [compared] = conclude(study, results).sequential
    assert compared.decision is Decision.EQUIVALENT
    assert 6 <= len(results) <= 24


def test_the_expected_number_uses_the_scatter_of_earlier_bursts() -> None:
    study = study_of(MODES, margin_ratio=0.02)
    history = DeviceHistory(
        bursts_count=10,
        payload_bits_per_second=9e9,
        scatter_ratio=0.03,
        correlation=0.2,
        between_ratio=0.005,
    )
    assert "about 24 for none" in (expected_text(study) or "")
    assert "1.00 % between bursts (assumed)" in (expected_text(study) or "")
    text = expected_text(study, history) or ""
    assert "about 12 for none" in text
    assert "0.50 % between bursts (from 10 earlier bursts of this device)" in text
    given = study_of(MODES, margin_ratio=0.02, scatter_ratio=0.01)
    assert "1.00 % between bursts (given)" in (expected_text(given, history) or "")


def test_an_answer_that_is_not_certain_ends_at_the_limit_with_that_reason() -> None:
    study = study_of(MODES, margin_ratio=0.001, rounds_max_count=4)
    assert "above the limit" in (expected_text(study) or "")
    results = run(study, {"off": 90e9, "deny": 89.8e9}, scatter=0.02)
    assert len(results) == trials_count(study) == 8
    assert "not certain after 4 rounds" in conclude(study, results).sentence


def test_the_budget_ends_a_study_before_the_round_that_would_exceed_it() -> None:
    study = study_of(MODES, margin_ratio=0.0001, budget_usd=1000)
    results = run(study, {"off": 90e9, "deny": 90e9}, scatter=0.02, cost_usd=120.0)
    assert len(results) == 8
    notes = " ".join(conclude(study, results).notes)
    assert "the next round would exceed the budget of $1,000" in notes


def test_a_sweep_repeats_all_values_until_the_best_one_is_certain() -> None:
    study = study_of(STREAMS)
    results = run(study, {"1": 4e9, "8": 9e9, "64": 9.6e9})
    assert len(results) % 3 == 0
    assert 9 <= len(results) < trials_count(study) == 60
    conclusion = conclude(study, results)
    assert {one.a for one in conclusion.sequential} == {"64"}
    assert all(one.decision is Decision.DIFFERENT for one in conclusion.sequential)
    # The error rate is divided among the three pairs of values.
    assert conclusion.sequential[0].error_ratio == pytest.approx(0.05 / 3)


def test_every_second_round_of_a_sweep_is_reversed() -> None:
    study = study_of(STREAMS)
    values: list[str] = []
    results: list[TrialResult] = []
    for _ in range(6):
        trial = next_trial(study, results)
        assert trial is not None
        values += trial.says.values()
        results.append(TrialResult(index=trial.index))
    assert values == ["1", "8", "64", "64", "8", "1"]


def test_a_search_repeats_a_rate_until_its_loss_is_certain() -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=100e9, trials_max_count=200)
    sequential, spec = Sequential(rounds_max_count=12), RunSpec(scenario="x")
    source = random.Random(38)
    results: list[TrialResult] = []
    while (offer := next_offer(question, spec, results, sequential)) is not None:
        # Up to 40 Gbit/s there is a loss of 0.4 %, and more above. The limit is 1 %.
        loss = max(0.0, (0.004 if offer <= 40e9 else 0.03) + source.gauss(0, 0.001))
        results.append(
            TrialResult(
                index=len(results),
                offered_bits_per_second=offer,
                sent_bits_per_second=offer,
                received_bits_per_second=offer * (1 - loss),
                retransmit_ratio=loss,
                completeness_ratio=1.0,
            )
        )
    offers = [result.offered_bits_per_second for result in results]
    repeated = {offer: offers.count(offer) for offer in offers}
    assert min(repeated.values()) >= 3
    answer = search_answer(question, spec, results, sequential)
    assert answer.highest_bits_per_second is not None
    assert 40e9 * 0.97 <= answer.highest_bits_per_second <= 40e9
    assert answer.open_bits_per_second == ()
    text = expected_text(StudySpec(name="x", question=question, spec=spec, sequential=sequential))
    assert "expected bursts: 3 for each rate" in (text or "")


def test_other_questions_have_no_rounds() -> None:
    with pytest.raises(ValidationError, match="a drill has no rounds"):
        study_of({"kind": "drill"})
    with pytest.raises(ValidationError, match="are more than 200"):
        study_of(STREAMS, rounds_max_count=100)
