"""Tests for the conclusions of sweeps, A/B studies, matrices and searches."""

import pytest

from broadside.coordinator.core.comparison.group_comparison import Comparison, Group, compare
from broadside.coordinator.core.metrics import RECEIVED, Layer
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import Completeness, RunSummary, SecondState, Verdict
from broadside.coordinator.studies.conclude import comparison_wanted, conclude, result_of
from broadside.coordinator.studies.study import (
    AB,
    Axis,
    Matrix,
    Mode,
    Question,
    Search,
    StudySpec,
    Sweep,
    TrialResult,
)
from tests.unit.coordinator.presences import NOW

SPEC = RunSpec(scenario="smoke", pairs_count=4)
STREAMS = (1, 2, 4, 8, 16, 32, 64)
AB_QUESTION = AB(a=Mode(name="off"), b=Mode(name="deny"))


def study(question: Question) -> StudySpec:
    return StudySpec(name="s", question=question, spec=SPEC)


def results(rates: list[float | None], broken: tuple[int, ...] = ()) -> list[TrialResult]:
    return [
        TrialResult(
            index=index,
            run_id=f"run-{index}",
            verdict=Verdict.INCONCLUSIVE if index in broken else Verdict.PASS,
            completeness_ratio=0.5 if index in broken else 1.0,
            received_bits_per_second=rate,
            problem=None if rate is not None else "no agents",
        )
        for index, rate in enumerate(rates)
    ]


def test_sweep_finds_its_knee() -> None:
    question = Sweep(axes=(Axis(field="traffic.streams_count", values=STREAMS),))
    rates: list[float | None] = [min(n, 16) * 1e9 / 16 for n in STREAMS]
    text = conclude(study(question), results(rates))
    assert [knee.value for knee in text.knees] == [16] or [k.value for k in text.knees] == [8]
    assert text.knees[0].field == "traffic.streams_count"
    assert "the knee is at" in text.sentence


RISING: list[float | None] = [20e9, 30e9, 40e9, 40e9, 40e9, 40e9]


@pytest.mark.parametrize(
    ("values", "rates", "half_width", "conclusion"),
    [
        (
            (1, 2, 4, 8, 16, 64),
            [46.30e9, 46.37e9, 46.41e9, 46.35e9, 46.45e9, 46.38e9],
            0.01e9,
            "no knee; highest rate at 16: 46.45 Gbit/s",
        ),
        ((1, 2, 4, 8, 16, 64), RISING, 1e9, "the knee is at"),
        # The increase is not larger than the confidence intervals.
        ((1, 2, 4, 8, 16, 64), RISING, 12e9, "no knee"),
        (
            (1, 2, 4),
            [10e9, 40e9, 41e9],
            1e9,
            "knee unknown: at least 4",
        ),
        (
            (1, 2, 4, 4),
            [10e9, 40e9, 41e9, 41e9],
            1e9,
            "knee unknown: at least 4 different",
        ),
    ],
)
def test_sweep_reports_knee_no_knee_or_too_few_values(
    values: tuple[int, ...], rates: list[float | None], half_width: float, conclusion: str
) -> None:
    question = Sweep(axes=(Axis(field="traffic.streams_count", values=values),))
    measured = [
        result.model_copy(update={"received_half_width_bits_per_second": half_width})
        for result in results(rates)
    ]
    result = conclude(study(question), measured)
    assert f": {conclusion}" in result.sentence
    assert bool(result.knees) is conclusion.startswith("the knee")


def test_sweep_over_two_fields_finds_a_knee_per_second_value() -> None:
    question = Sweep(
        axes=(
            Axis(field="traffic.streams_count", values=STREAMS),
            Axis(field="traffic.window_bytes", values=(65536, 131072)),
        )
    )
    caps = {65536: 1e9, 131072: 2e9}
    rates: list[float | None] = [min(n * 0.25e9, caps[w]) for n in STREAMS for w in (65536, 131072)]
    text = conclude(study(question), results(rates))
    assert len(text.knees) == 2
    assert {knee.received_bits_per_second for knee in text.knees} == {1e9, 2e9}


def test_failed_trial_is_excluded_and_noted() -> None:
    question = Sweep(axes=(Axis(field="traffic.streams_count", values=(1, 2)),))
    text = conclude(study(question), results([1e9, None]))
    assert text.notes == ("trial 2: no agents",)
    assert "highest rate at 1" in text.sentence


def _compared(a: list[float], b: list[float]) -> Comparison:
    return compare(
        *(
            Group(
                name=name,
                observations=tuple({RECEIVED.name: r} for r in rates),
            )
            for name, rates in (("off", a), ("deny", b))
        )
    )


def test_ab_study_reports_the_cost_of_the_second_state() -> None:
    comparison = _compared([100e9, 101e9, 99e9], [22e9, 21.8e9, 22.2e9])
    text = conclude(study(AB_QUESTION), results([100e9, 22e9, 22e9, 100e9]), comparison)
    assert text.sentence.startswith("deny costs 78.0 % +- ")
    assert "chance" not in text.sentence


@pytest.mark.parametrize(
    ("bursts", "margin"),
    [(3, ": the two are equivalent within 16.5"), (2, "; there are only")],
)
def test_ab_study_of_equal_states_reports_chance(bursts: int, margin: str) -> None:
    """The means are 100 and 99.67 and the standard errors are 2.31 and 1.76."""
    comparison = _compared([100e9, 104e9, 96e9][:bursts], [99e9, 103e9, 97e9][:bursts])
    text = conclude(study(AB_QUESTION), results([1e9] * 4), comparison)
    assert f"may be chance{margin}" in text.sentence


def test_ab_study_selects_runs_by_state() -> None:
    wanted = comparison_wanted(study(AB_QUESTION), results([1.0, 2.0, 3.0, 4.0]))
    assert wanted is not None
    assert wanted.a.run_ids == ("run-0", "run-3")
    assert wanted.b.run_ids == ("run-1", "run-2")


def test_state_without_a_run_is_not_compared() -> None:
    assert comparison_wanted(study(AB_QUESTION), results([1.0])) is None
    assert "cannot be compared" in conclude(study(AB_QUESTION), results([1.0])).sentence


def test_conclusions_of_scaled_lab_are_at_real_scale() -> None:
    scaled = SPEC.model_copy(update={"scale": 100.0})
    modes = (Mode(name="off"), Mode(name="deny"))
    rates: list[float | None] = [46e9, 40e9, 40e9, 46e9]
    measured = _compared([0.46e9, 0.46e9], [0.40e9, 0.40e9])
    for question in (
        AB_QUESTION,
        Matrix(modes=modes, rounds_count=2),
        Sweep(axes=(Axis(field="traffic.streams_count", values=(1, 2, 4, 8)),)),
    ):
        text = conclude(
            StudySpec(name="s", question=question, spec=scaled), results(rates), measured
        )
        assert "46 Gbit/s" in text.sentence or "43 Gbit/s" in text.sentence
        assert text.sentence.endswith(" (at real scale; the lab is at 1:100)")
    assert "scale" not in conclude(study(AB_QUESTION), results(rates), measured).sentence


HALF = "50.0 % of it was measured, below the minimum of 95 %"


def test_incomplete_trial_is_not_compared() -> None:
    done = results([10e9, 4e9, 4e9, 5e9], broken=(3,))
    wanted = comparison_wanted(study(AB_QUESTION), done)
    assert wanted is not None
    assert wanted.a.run_ids == ("run-0",)
    text = conclude(study(AB_QUESTION), done, _compared([10e9], [4e9, 4e9]))
    assert text.notes == (f"trial 4: {HALF}; not used",)
    assert "there are only 1 and 2 bursts, and three of each are needed" in text.sentence


def test_state_with_only_incomplete_trials_is_not_compared() -> None:
    done = results([5e9, 4e9, 4e9, 5e9], broken=(0, 3))
    assert comparison_wanted(study(AB_QUESTION), done) is None
    text = conclude(study(AB_QUESTION), done)
    assert text.sentence == "off and deny cannot be compared: no trial of off is complete"


def test_incomplete_trial_is_not_part_of_the_mean() -> None:
    question = Matrix(modes=(Mode(name="ids"), Mode(name="plain")), rounds_count=2)
    text = conclude(study(question), results([8e9, 9e9, 4e9, 9e9], broken=(2,)))
    assert text.sentence == "payload by mode: plain 9 Gbit/s, ids 8 Gbit/s"
    assert text.notes == (f"trial 3: {HALF}; not used",)
    text = conclude(study(question), results([8e9, 9e9, 4e9, 9e9], broken=(0, 2)))
    assert text.sentence == "the modes cannot be compared: only plain has a complete trial"


def test_incomplete_trial_is_excluded_from_sweep() -> None:
    question = Sweep(axes=(Axis(field="traffic.streams_count", values=(1, 2, 4)),))
    text = conclude(study(question), results([1e9, 2e9, 9e9], broken=(2,)))
    assert "highest rate at 2" in text.sentence
    assert text.notes == (f"trial 3: {HALF}; not used",)
    text = conclude(study(question), results([1e9, 2e9, 9e9], broken=(0, 1, 2)))
    assert text.sentence.startswith("the sweep has no result: no trial is complete")


def test_search_with_only_incomplete_trials_has_no_result() -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=2e9, trials_max_count=2)
    text = conclude(study(question), results([1e9, 1e9], broken=(0, 1)))
    assert text.sentence.startswith("the search has no result: no trial is complete")
    assert text.notes[0] == f"trial 1: {HALF}; counted as lost"


def test_matrix_ranks_modes_and_names_unknown_mode() -> None:
    question = Matrix(modes=(Mode(name="ids"), Mode(name="plain"), Mode(name="tls")))
    text = conclude(study(question), results([1e9, 9e9, None]))
    assert text.sentence.index("plain") < text.sentence.index("ids")
    assert "tls unknown" in text.sentence


def test_states_that_differ_in_translation_change_the_test() -> None:
    trials = results([4e9, 3e9, 3e9, 4e9])
    translated = [
        one.model_copy(update={"seen_units_count": 4.0 if one.index in (1, 2) else None})
        for one in trials
    ]
    notes = conclude(study(AB_QUESTION), translated).notes
    assert any("translates source addresses in deny (4 units) only" in note for note in notes)
    everywhere = [one.model_copy(update={"seen_units_count": 4.0}) for one in trials]
    for same in (trials, everywhere):
        assert not any("translates" in note for note in conclude(study(AB_QUESTION), same).notes)


def test_trial_cpu_cost_comes_from_the_run_summary() -> None:
    summary = RunSummary(
        run_id="run-1",
        scenario="smoke",
        computed_at=NOW,
        scale=100.0,
        target_bits_per_second=None,
        target_layer=Layer.IP,
        pairs_planned=4,
        pairs_measured=4,
        bursts_planned=1,
        verdict=Verdict.PASS,
        completeness_ratio=1.0,
        completeness=Completeness.of({SecondState.MEASURED: 40}),
        client_cpu_s_per_gigabyte=1.25,
    )
    trial = result_of(0, summary)
    # The value is per gigabyte, so it does not depend on the scale.
    assert trial.client_cpu_s_per_gigabyte == 1.25
    assert trial.server_cpu_s_per_gigabyte is None
