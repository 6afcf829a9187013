"""Tests for the search over new and held connections, using simulated devices."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BottleneckName
from broadside.coordinator.request_errors import BadStudy
from broadside.coordinator.studies.conclude import conclude
from broadside.coordinator.studies.runner import _check_connections
from broadside.coordinator.studies.search import search_answer
from broadside.coordinator.studies.study import (
    FailingReason,
    Search,
    SearchResult,
    StudySpec,
    TrialResult,
)
from broadside.coordinator.studies.trials import next_trial

NEW = Search(min_connections_per_second=100, max_connections_per_second=4000)
HELD = Search(min_held_count=1000, max_held_count=9000, precision_ratio=0.01)


def make_spec(mode: str = "connect", **options: Any) -> RunSpec:
    traffic = {"engine": "connections", "options": {"mode": mode, **options}}
    return RunSpec.model_validate({"scenario": "search", "pairs_count": 2, "traffic": traffic})


def run_search(question: Search, cap: float, generator: float = 1e9) -> list[TrialResult]:
    """Search the limit of a device, with clients that make at most ``generator`` attempts."""
    study = StudySpec(name="s", question=question, spec=make_spec())
    results: list[TrialResult] = []
    while (trial := next_trial(study, results)) is not None:
        offered = trial.offered_connections_count
        assert offered is not None and trial.offered_bits_per_second is None
        made = min(offered, generator)
        limit = BottleneckName.OFFERED_LOAD if made <= cap else BottleneckName.FIREWALL
        results.append(
            TrialResult(
                index=trial.index,
                offered_connections_count=offered,
                connections_per_second=min(made, cap),
                connections_attempted_ratio=made / offered,
                success_ratio=min(1.0, cap / made),
                completeness_ratio=1.0,
                bottleneck=BottleneckName.GENERATOR if offered - made > made - cap else limit,
            )
        )
    return results


def answer_of(question: Search, results: list[TrialResult]) -> SearchResult:
    return search_answer(question, make_spec(), results)


@settings(max_examples=30, deadline=None)
@given(cap=st.floats(200, 3900))
def test_brackets_the_limit_of_the_device(cap: float) -> None:
    answer = answer_of(NEW, run_search(NEW, cap))
    assert answer.highest is not None and answer.lowest_failing is not None
    assert answer.highest * 0.99 <= cap < answer.lowest_failing * 0.99 * (1 + 1e-6)
    assert answer.highest_bits_per_second is None
    assert answer.lowest_failing_why is FailingReason.BROKE
    assert answer.lowest_failing_bottleneck is BottleneckName.FIREWALL
    assert answer.width_ratio is not None and answer.width_ratio <= 0.0202


def test_busy_generator_does_not_hide_the_limit_of_the_device() -> None:
    """At the highest load, the clients cannot make all attempts, and the device loses most."""
    answer = answer_of(NEW, run_search(NEW, cap=1000, generator=3000))
    assert answer.highest_connections_count == pytest.approx(1000, rel=0.03)
    assert answer.lowest_failing_why is FailingReason.BROKE
    assert answer.lowest_failing_bottleneck is BottleneckName.FIREWALL


def test_names_the_generator_at_the_limit_of_the_clients() -> None:
    results = run_search(NEW, cap=1e9, generator=1500)
    answer = answer_of(NEW, results)
    assert answer.highest_connections_count == pytest.approx(1500, rel=0.04)
    assert answer.lowest_failing_why is FailingReason.GENERATOR
    sentence = conclude(StudySpec(name="s", question=NEW, spec=make_spec()), results).sentence
    assert "connections/s was not offered: the generator was the limit" in sentence


@pytest.mark.parametrize(
    "limit", [BottleneckName.SERVER_BACKLOG, BottleneckName.CLIENT_CPU, BottleneckName.GENERATOR]
)
def test_failure_at_the_hosts_is_no_limit_of_the_device(limit: BottleneckName) -> None:
    results = [
        result.model_copy(update={"bottleneck": limit}) if result.success_ratio != 1 else result
        for result in run_search(NEW, cap=1000)
    ]
    assert answer_of(NEW, results).lowest_failing_why is FailingReason.GENERATOR


def test_conclusion_states_connections() -> None:
    results = run_search(HELD, cap=5000)
    study = StudySpec(name="s", question=HELD, spec=make_spec("hold"))
    sentence = conclude(study, results).sentence
    assert "held connections is the highest load that met a share of failed attempts" in sentence
    assert "did not meet them: the limit was the firewall" in sentence


def test_trials_divide_the_load_between_pairs() -> None:
    new = next_trial(StudySpec(name="s", question=NEW, spec=make_spec()), [])
    held = next_trial(StudySpec(name="s", question=HELD, spec=make_spec("hold")), [])
    assert new is not None and held is not None
    assert new.overrides["traffic.options.attempts_per_second"] == 2000
    assert held.overrides["traffic.options.held_count"] == 4500
    assert new.overrides["objective.success_min_ratio"] is None
    assert new.resolve("id", StudySpec(name="s", question=NEW, spec=make_spec())).problems() == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give the lowest and the highest load of one quantity"),
        ({"min_held_count": 1}, "min_held_count: give the lowest"),
        (
            {"min_held_count": 1, "max_held_count": 2, "min_bits_per_second": 1.0},
            "give the lowest and the highest load of one quantity",
        ),
        ({"min_held_count": 2, "max_held_count": 1}, "min_held_count: 2 is not below"),
    ],
)
def test_search_needs_both_ends_of_one_load(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Search(**fields)


@pytest.mark.parametrize(
    ("question", "spec", "message"),
    [
        (NEW, RunSpec(scenario="x"), "iperf3 does not count connections"),
        (NEW, make_spec("hold"), "hold has no connections_per_second"),
        (HELD, make_spec(), "connect has no held_count"),
        (HELD, make_spec("hold", attempts_per_second=100), "need 45 s to open"),
        (
            NEW.model_copy(update={"rtt_mean_max_s": 0.1}),
            make_spec(),
            "rtt_mean_max_s: connections have none",
        ),
    ],
)
def test_rejects_runs_that_cannot_answer(question: Search, spec: RunSpec, message: str) -> None:
    with pytest.raises(BadStudy, match=message):
        _check_connections(question, spec)


def _failing_result(index: int, offered: float, late_s: float | None) -> TrialResult:
    return TrialResult(
        index=index,
        offered_connections_count=offered,
        connections_per_second=offered * 0.9,
        connections_attempted_ratio=1.0,
        attempt_delay_max_s=late_s,
        success_ratio=0.9,
        completeness_ratio=1.0,
        bottleneck=BottleneckName.FIREWALL,
    )


def next_load(question: Search, results: list[TrialResult]) -> float | None:
    trial = next_trial(StudySpec(name="s", question=question, spec=make_spec()), results)
    return None if trial is None else trial.offered_connections_count


def test_failure_of_a_late_generator_is_repeated() -> None:
    """Attempts that are made at once after a stall can be rejected below the limit."""
    first = next_load(NEW, [])
    assert first == 4000
    late = _failing_result(0, first, 0.2)
    assert next_load(NEW, [late]) == first
    again = late.model_copy(update={"index": 1, "attempt_delay_max_s": 0.01, "success_ratio": 1.0})
    answer = answer_of(NEW, [late, again])
    assert (answer.highest, answer.lowest_failing, answer.open_connections_count) == (
        4000,
        None,
        (),
    )


def test_failure_that_stays_late_is_not_certain() -> None:
    results = [_failing_result(index, 4000, 0.2) for index in range(3)]
    assert next_load(NEW, results) != 4000
    answer = answer_of(NEW, results)
    assert (answer.lowest_failing, answer.lowest_failing_why) == (4000, FailingReason.GENERATOR)
    assert list(answer.open_connections_count) == [4000]
    sentence = conclude(StudySpec(name="s", question=NEW, spec=make_spec()), results).sentence
    assert "did not meet them, and the limit may be that of late clients" in sentence
    assert "the decision is not certain at 4,000 connections/s" in sentence


@pytest.mark.parametrize(
    ("question", "late_s", "success"),
    [
        # Not late, unknown, or a loss that no stall of this length in each second explains.
        (NEW, 0.04, 0.9),
        (NEW, None, 0.9),
        (NEW, 0.2, 0.5),
        # All goals are met.
        (NEW, 0.2, 1.0),
        # The number of held connections does not depend on their time.
        (HELD, 0.2, 0.9),
    ],
)
def test_other_trials_are_not_repeated(
    question: Search, late_s: float | None, success: float
) -> None:
    load = next_load(question, [])
    assert load is not None
    result = _failing_result(0, load, late_s).model_copy(update={"success_ratio": success})
    assert next_load(question, [result]) != load
    assert answer_of(question, [result]).open_connections_count == ()
