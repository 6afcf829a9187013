"""Test the curve of leaked canaries, and what a mode still blocked."""

from typing import Any, Final

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.studies.conclude import conclude
from broadside.coordinator.studies.leak_curve import blocked_text, leak_curve
from broadside.coordinator.studies.study import (
    Inspection,
    StudyRequest,
    StudySpec,
    TrialResult,
)
from broadside.coordinator.studies.trials import describe_trial, next_trial, trials_count
from broadside.coordinator.views.charts.study_charts import chart_of, draw_study
from broadside.coordinator.views.report.study_tables import study_tables
from tests.unit.coordinator.studies.samples import IN_MODES, MODES, SPEC, results, study

OFFERS = (1e9, 2e9, 3e9)
KIND: Final = "inspection-under-load"
QUESTION = Inspection(kind=KIND, offers_bits_per_second=OFFERS, rounds_count=2)


def trial(offer: float, leak: float, low: float, high: float, **fields: Any) -> TrialResult:
    known = {
        "index": 0,
        "completeness_ratio": 1.0,
        "offered_bits_per_second": offer,
        "received_bits_per_second": offer * 0.98,
    }
    leaks = {"leak_ratio": leak, "leak_low_ratio": low, "leak_high_ratio": high}
    return TrialResult.model_validate(known | leaks | fields)


RISING = [trial(1e9, 0, 0, 0.01), trial(2e9, 0, 0, 0.01), trial(3e9, 0.4, 0.3, 0.5)]


def test_knee_is_the_first_load_above_the_interval_of_the_lowest_one() -> None:
    curve = leak_curve(RISING)
    assert [point.leak_ratio for point in curve.points] == [0, 0, 0.4]
    assert (curve.knee_from_bits_per_second, curve.knee_to_bits_per_second) == (2e9, 3e9)


def test_an_uncertain_rise_has_no_knee() -> None:
    curve = leak_curve([trial(1e9, 0, 0, 0.1), trial(2e9, 0.1, 0.05, 0.2)])
    assert curve.knee_to_bits_per_second is None


def test_the_worst_round_counts() -> None:
    (point,) = leak_curve([trial(1e9, 0, 0, 0.01), trial(1e9, 0.2, 0.1, 0.3)]).points
    assert point.leak_ratio == 0.2
    assert point.received_bits_per_second == pytest.approx(0.98e9)


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (RISING, "the device stops inspecting between 2 Gbit/s and 3 Gbit/s"),
        (RISING[:2], "no knee up to 2 Gbit/s"),
        (RISING[:1], "the leaked share is unknown"),
        (results(1e9, 2e9), "the leaked share is unknown"),
    ],
)
def test_conclusion_states_the_knee(done: list[TrialResult], text: str) -> None:
    spec = StudySpec(name="s", question=QUESTION, spec=SPEC)
    assert conclude(spec, done).sentence.startswith(text)


def test_loads_are_offered_in_turn_and_then_in_reverse() -> None:
    spec = StudySpec(name="s", question=QUESTION, spec=SPEC)
    assert trials_count(spec) == 6
    offers = []
    done: list[TrialResult] = []
    while (following := next_trial(spec, done)) is not None:
        offers.append(following.offered_bits_per_second)
        done.append(trial(following.offered_bits_per_second or 0.0, 0, 0, 0.01))
    assert offers == [*OFFERS, *reversed(OFFERS)]
    assert describe_trial(spec, done[0]) == {"offered": "1 Gbit/s"}


def test_loads_need_to_rise() -> None:
    with pytest.raises(ValueError, match="rising order"):
        Inspection(kind=KIND, offers_bits_per_second=(2e9, 1e9))


def test_the_study_is_stored_with_its_kind() -> None:
    stored = study(QUESTION, RISING)
    assert type(stored).model_validate_json(stored.to_json()) == stored


def test_the_study_needs_canaries() -> None:
    request = StudyRequest(question=QUESTION, scenario="inspection-under-load")
    with pytest.raises(scenarios.BadScenario, match=r"traffic\.canary\.consent"):
        request.study()
    agreed = {"traffic.canary.consent": "N. Owner"}
    request = StudyRequest(question=QUESTION, scenario="inspection-under-load", overrides=agreed)
    canary = request.study().spec.traffic.canary
    assert canary is not None
    assert canary.consent == "N. Owner"


def test_chart_has_the_share_and_its_interval() -> None:
    done = study(QUESTION, RISING)
    assert chart_of(done) == "inspection-under-load"
    figure = draw_study("inspection-under-load", done).figure
    assert len(figure.series) == 3
    assert figure.series[0].y == [0.0, 0.0, 40.0]


def test_table_of_modes_has_what_every_mode_still_blocked() -> None:
    assert "still blocked" not in next(study_tables(IN_MODES)).columns
    done = [
        one.model_copy(
            update={"leak_ratio": leak, "leak_low_ratio": 0.0, "leak_high_ratio": leak + 0.01}
        )
        for one, leak in zip(results(10e9, 9e9, 8e9), (0.8, 0.1, 0.0), strict=True)
    ]
    done = [one.model_copy(update={"index": index}) for index, one in enumerate(done)]
    compared = study(MODES, done)
    table = next(study_tables(compared))
    column = table.columns.index("still blocked")
    assert [row[column] for row in table.rows] == [
        "20.0 % (at least 19.0 %)",
        "90.0 % (at least 89.0 %)",
        "100.0 % (at least 99.0 %)",
    ]
    assert compared.conclusion is not None
    assert "; still blocked: deny 100.0 % (at least 99.0 %), " in compared.conclusion.sentence
    assert blocked_text(results(1e9)[0]) == "unknown"
