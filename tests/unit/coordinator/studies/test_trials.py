"""Tests for the trials of a study and the run specifications created from them."""

from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from broadside.coordinator import scenarios
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.scenarios import BadScenario
from broadside.coordinator.studies.conclude import conclude
from broadside.coordinator.studies.study import (
    AB,
    Axis,
    Matrix,
    Mode,
    Question,
    Search,
    StudyRequest,
    StudySpec,
    Sweep,
    TrialResult,
    differences,
)
from broadside.coordinator.studies.trials import next_trial, planned_trials, trials_count
from broadside.exchange.engines import engines, offered_bits_per_second
from broadside.exchange.messages import Direction
from tests.unit.coordinator.studies.samples import results

SPEC = RunSpec(scenario="smoke", pairs_count=4, labels={"site": "lab"})


def make_spec(question: Question, spec: RunSpec = SPEC) -> StudySpec:
    return StudySpec(name="s", question=question, spec=spec)


@given(
    first=st.lists(st.integers(1, 128), min_size=1, max_size=6, unique=True),
    second=st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True),
)
def test_sweep_over_two_fields_tests_all_combinations_once(
    first: list[int], second: list[int]
) -> None:
    question = Sweep(
        axes=(
            Axis(field="traffic.streams_count", values=tuple(first)),
            Axis(field="pairs_count", values=tuple(second)),
        )
    )
    tried = [
        (trial.overrides["traffic.streams_count"], trial.overrides["pairs_count"])
        for trial in planned_trials(question)
    ]
    assert tried == list(product(first, second))


@pytest.mark.parametrize(
    ("question", "modes"),
    [
        (AB(a=Mode(name="off"), b=Mode(name="deny"), rounds_count=2), "off deny deny off"),
        (Matrix(modes=(Mode(name="plain"), Mode(name="ids")), rounds_count=2), "plain ids"),
    ],
)
def test_order_of_modes_in_ab_and_matrix_studies(question: AB | Matrix, modes: str) -> None:
    assert [trial.mode for trial in planned_trials(question)] == modes.split() * 2


def test_trials_are_planned_in_order_until_the_end() -> None:
    study = make_spec(AB(a=Mode(name="a"), b=Mode(name="b")))
    results: list[TrialResult] = []
    indexes = []
    while (trial := next_trial(study, results)) is not None:
        indexes.append(trial.index)
        results.append(TrialResult(index=trial.index, problem="no agents"))
    assert indexes == [0, 1, 2, 3]
    assert trials_count(study) == 4


def test_trial_changes_fields_and_adds_labels() -> None:
    study = make_spec(Sweep(axes=(Axis(field="traffic.streams_count", values=(1, 16)),)))
    trial = next_trial(study, [TrialResult(index=0)])
    assert trial is not None
    spec = trial.resolve("the-study", study)
    assert spec.traffic.streams_count == 16
    assert spec.pairs_count == SPEC.pairs_count
    assert spec.labels == {
        "site": "lab",
        "study": "the-study",
        "trial": "002",
        "traffic.streams_count": "16",
    }


def test_rejects_unknown_field_by_name() -> None:
    study = make_spec(Sweep(axes=(Axis(field="traffic.strem", values=(1,)),)))
    with pytest.raises(BadScenario, match=r"traffic\.strem: no such field"):
        planned_trials(study.question)[0].resolve("x", study)  # type: ignore[arg-type]


def test_search_divides_rate_over_streams_and_has_no_target() -> None:
    study = make_spec(Search(min_bits_per_second=1e9, max_bits_per_second=64e9))
    trial = next_trial(study, [])
    assert trial is not None
    run = trial.resolve("x", study)
    streams = run.pairs_count * run.traffic.streams_count
    assert run.traffic.stream_bits_per_second == pytest.approx(64e9 / streams)
    assert run.objective.target_bits_per_second is None


@pytest.mark.parametrize("direction", Direction)
def test_fleet_rate_equals_the_offered_rate(
    direction: Direction,
) -> None:
    traffic = SPEC.traffic.model_copy(update={"direction": direction})
    study = make_spec(
        Search(min_bits_per_second=1e9, max_bits_per_second=64e9),
        SPEC.model_copy(update={"traffic": traffic}),
    )
    trial = next_trial(study, [])
    assert trial is not None
    run = trial.resolve("x", study)
    offered = offered_bits_per_second(run.traffic)
    assert offered is not None
    assert offered * run.pairs_count == pytest.approx(trial.offered_bits_per_second)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AB(a=Mode(name="x"), b=Mode(name="x")), "name two states"),
        (lambda: Matrix(modes=(Mode(name="x"), Mode(name="x"))), "name each mode once"),
        (
            lambda: Sweep(axes=(Axis(field="f", values=(1,)), Axis(field="f", values=(2,)))),
            "name two fields",
        ),
        (lambda: Search(min_bits_per_second=2.0, max_bits_per_second=1.0), "is not below"),
    ],
)
def test_rejects_questions_without_a_choice(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(ValidationError, match=message):
        build()


def sweep_request(*values: object) -> StudyRequest:
    axis = {"field": "traffic.streams_count", "values": list(values)}
    return StudyRequest.model_validate(
        {"scenario": "smoke", "question": {"kind": "sweep", "axes": [axis]}}
    )


def test_rejects_duplicate_sweep_value_at_launch() -> None:
    for twice in (4, 4.0):
        with pytest.raises(ValidationError, match=r"traffic\.streams_count: 4(\.0)? occurs twice"):
            sweep_request(1, 4, 8, twice)
    assert sweep_request(1, 4, 8).study().question.kind == "sweep"
    # Allowed in a study which was stored already.
    Axis(field="traffic.streams_count", values=(4, 4))


# This scenario uses iperf3.
SMOKE = "smoke"


def swept(spec: RunSpec, **axes: tuple[Any, ...]) -> StudySpec:
    question = Sweep(
        axes=tuple(Axis(field=f"traffic.{name}", values=values) for name, values in axes.items())
    )
    # Use JSON because this is how it is stored.
    return StudySpec.model_validate_json(make_spec(question, spec).model_dump_json())


def resolved(study: StudySpec) -> list[RunSpec]:
    assert isinstance(study.question, Sweep)
    return [trial.resolve("x", study) for trial in planned_trials(study.question)]


@pytest.mark.parametrize(("first", "second"), [*permutations(engines(), 2)])
def test_sweep_can_replace_any_engine_with_any_other(first: str, second: str) -> None:
    spec = scenarios.load(SMOKE, {"traffic": {"engine": first}, "traffic.probe": "udp"})
    first_spec, second_spec = resolved(swept(spec, engine=(first, second)))
    assert first_spec.traffic == spec.traffic
    assert second_spec.traffic.engine == second
    assert second_spec.traffic.direction == engines()[second].defaults.get("direction", "forward")
    assert second_spec.traffic.probe == spec.traffic.probe


def test_engine_change_preserves_supported_settings() -> None:
    spec = scenarios.load(
        SMOKE,
        {
            "traffic.streams_count": 4,
            "traffic.window_bytes": 65536,
            "traffic.direction": "bidirectional",
            "objective.retransmit_max_ratio": 0.1,
            # Telemetry does not depend on the engine.
            "objective.device_cpu_p95_max_ratio": 0.8,
            "objective.target_bits_per_second": 1e9,
        },
    )
    first_spec, second_spec = resolved(swept(spec, engine=("iperf3", "http")))
    assert second_spec.objective.device_cpu_p95_max_ratio == 0.8
    assert first_spec.objective == spec.objective
    assert second_spec.traffic.streams_count == 4
    assert second_spec.traffic.direction is Direction.REVERSE
    assert second_spec.traffic.window_bytes is None
    assert second_spec.objective.retransmit_max_ratio is None
    assert second_spec.objective.target_bits_per_second == 1e9
    assert set(differences(spec, "http")) == {
        "traffic.direction: reverse",
        "traffic.window_bytes: none",
        "objective.retransmit_max_ratio: none",
    }


def test_change_from_http_download_to_iperf3() -> None:
    spec = scenarios.load("http-1mb")
    _, second_spec = resolved(swept(spec, engine=("http", "iperf3")))
    assert second_spec.traffic.direction is Direction.FORWARD
    assert second_spec.traffic.options == {}
    assert second_spec.objective.success_min_ratio is None


def test_rejects_swept_field_that_the_engine_does_not_support() -> None:
    with pytest.raises(BadScenario, match=r"traffic\.window_bytes: engine http .* 65536"):
        resolved(swept(scenarios.load(SMOKE), engine=("http",), window_bytes=(65536,)))


def test_rejects_unknown_engine_by_name() -> None:
    with pytest.raises(BadScenario, match=r"traffic\.engine: 'quic' is none"):
        resolved(swept(scenarios.load(SMOKE), engine=("quic",)))


def test_engines_are_ranked_without_a_knee() -> None:
    study = swept(scenarios.load(SMOKE), engine=("http", "iperf3", "ftp"))
    text = conclude(study, results(0.9e9, 1.2e9, None))
    assert text.sentence == (
        "traffic.engine: highest payload rate with iperf3 1.2 Gbit/s; "
        "then http 900 Mbit/s, ftp unknown"
    )
    assert text.knees == ()
    assert "http: runs with traffic.direction: reverse" in text.notes


def test_engines_are_ranked_per_value_of_a_second_field() -> None:
    study = swept(scenarios.load(SMOKE), engine=("http", "iperf3"), streams_count=(1, 8))
    text = conclude(study, results(1e9, 2e9, 3e9, 1e9))
    assert text.sentence == (
        "traffic.engine with traffic.streams_count = 1: "
        "highest payload rate with iperf3 3 Gbit/s; then http 1 Gbit/s; "
        "traffic.engine with traffic.streams_count = 8: "
        "highest payload rate with http 2 Gbit/s; then iperf3 1 Gbit/s"
    )
