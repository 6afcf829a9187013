"""A run whose traffic another engine makes: what goes along, and what does not."""

from itertools import permutations
from typing import Any

import pytest

from coordinator import scenarios
from coordinator.core.plan.spec import RunSpec
from coordinator.scenarios import BadScenario
from coordinator.studies.conclude import conclude
from coordinator.studies.study import Axis, StudySpec, Sweep
from coordinator.studies.trial_engines import differences
from coordinator.studies.trials import planned_trials
from exchange.engines import engines
from exchange.messages import Direction
from tests.unit.coordinator.studies.samples import results

SMOKE = "smoke"  # iperf3


def swept(spec: RunSpec, **axes: tuple[Any, ...]) -> StudySpec:
    question = Sweep(
        axes=tuple(Axis(field=f"traffic.{name}", values=values) for name, values in axes.items())
    )
    study = StudySpec(name="s", question=question, spec=spec)
    return StudySpec.model_validate_json(study.model_dump_json())  # as it comes from the table


def resolved(study: StudySpec) -> list[RunSpec]:
    assert isinstance(study.question, Sweep)
    return [trial.resolve("x", study) for trial in planned_trials(study.question)]


@pytest.mark.parametrize(("first", "second"), [*permutations(engines(), 2)])
def test_every_engine_can_be_tried_in_the_place_of_every_other(first: str, second: str) -> None:
    spec = scenarios.load(SMOKE, {"traffic": {"engine": first}, "traffic.probe": "udp"})
    own, other = resolved(swept(spec, engine=(first, second)))
    assert own.traffic == spec.traffic
    assert other.traffic.engine == second
    assert other.traffic.direction == engines()[second].defaults.get("direction", "forward")
    assert other.traffic.probe == spec.traffic.probe


def test_what_was_set_goes_along_as_far_as_the_engine_takes_it() -> None:
    spec = scenarios.load(
        SMOKE,
        {
            "traffic.streams_count": 4,
            "traffic.window_bytes": 65536,
            "traffic.direction": "bidirectional",
            "objective.retransmit_max_ratio": 0.1,
            "objective.target_bits_per_second": 1e9,
        },
    )
    own, other = resolved(swept(spec, engine=("iperf3", "http")))
    assert own.objective == spec.objective
    assert other.traffic.streams_count == 4
    assert other.traffic.direction is Direction.REVERSE
    assert other.traffic.window_bytes is None
    assert other.objective.retransmit_max_ratio is None
    assert other.objective.target_bits_per_second == 1e9
    assert set(differences(spec, "http")) == {
        "traffic.direction: reverse",
        "traffic.window_bytes: none",
        "objective.retransmit_max_ratio: none",
    }


def test_from_a_download_to_streams() -> None:
    spec = scenarios.load("http-1mb")
    _, other = resolved(swept(spec, engine=("http", "iperf3")))
    assert other.traffic.direction is Direction.FORWARD
    assert other.traffic.options == {}
    assert other.objective.success_min_ratio is None


def test_a_field_that_is_swept_beside_the_engine_is_refused_where_it_does_not_belong() -> None:
    with pytest.raises(BadScenario, match=r"traffic\.window_bytes: http cannot do 65536"):
        resolved(swept(scenarios.load(SMOKE), engine=("http",), window_bytes=(65536,)))


def test_an_engine_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(BadScenario, match=r"traffic\.engine: 'quic' is none"):
        resolved(swept(scenarios.load(SMOKE), engine=("quic",)))


def test_engines_are_ranked_and_have_no_knee() -> None:
    study = swept(scenarios.load(SMOKE), engine=("http", "iperf3", "ftp"))
    said = conclude(study, results(0.9e9, 1.2e9, None))
    assert said.sentence == (
        "traffic.engine: most with iperf3 1.2 Gbit/s of payload; then http 900 Mbit/s, ftp unknown"
    )
    assert said.knees == ()
    assert "http: runs with traffic.direction: reverse" in said.notes


def test_engines_are_ranked_for_each_value_of_a_second_field() -> None:
    study = swept(scenarios.load(SMOKE), engine=("http", "iperf3"), streams_count=(1, 8))
    said = conclude(study, results(1e9, 2e9, 3e9, 1e9))
    assert said.sentence == (
        "traffic.engine with traffic.streams_count = 1: "
        "most with iperf3 3 Gbit/s of payload; then http 1 Gbit/s; "
        "traffic.engine with traffic.streams_count = 8: "
        "most with http 2 Gbit/s of payload; then iperf3 1 Gbit/s"
    )
