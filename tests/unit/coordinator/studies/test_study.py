"""Tests for staircase and drill studies."""

from typing import Any

import pytest
from pydantic import ValidationError

from broadside.coordinator.core.measure.experiments.drill import ExecutedEvent
from broadside.coordinator.core.measure.experiments.scale_out import Scaling
from broadside.coordinator.core.summary import DeviceFigure
from broadside.coordinator.request_errors import BadStudy
from broadside.coordinator.studies.conclude import conclude
from broadside.coordinator.studies.scale_out_reader import units_counted
from broadside.coordinator.studies.study import (
    Drill,
    Search,
    Staircase,
    StudyRequest,
    StudySpec,
    TrialResult,
)
from broadside.coordinator.studies.switch import Switch
from broadside.coordinator.studies.trials import describe_trial, next_trial, trials_count
from tests.unit.coordinator.studies.samples import drilled, grown, results
from tests.unit.coordinator.studies.test_runner import SPEC, Place, place

# The fixture needs to be imported here.
__all__ = ["place"]

LONG = SPEC.model_copy(update={"burst_s": 30})


def run_staircase(
    question: Staircase, *holds: tuple[int, float, bool | None]
) -> list[float | None]:
    """Return the offers for the given holds and for the next one."""
    study = StudySpec(name="s", question=question, spec=LONG)
    results: list[TrialResult] = []
    offers = []
    for index in range(len(holds) + 1):
        trial = next_trial(study, results)
        if trial is None:
            break
        offers.append(trial.offered_bits_per_second)
        if index < len(holds):
            steps, quiet_s, carried = holds[index]
            scaling = Scaling(steps_count=steps, quiet_s=quiet_s, carried=carried)
            offer = trial.offered_bits_per_second
            results.append(TrialResult(index=index, offered_bits_per_second=offer, scaling=scaling))
    return offers


def test_staircase_holds_load_until_carried_or_quiet() -> None:
    question = Staircase(offers_bits_per_second=(20e9, 60e9, 10e9), hold_s=60, settle_s=100)
    assert run_staircase(question, (0, 60, True), (0, 60, False)) == [20e9, 60e9, 60e9]
    # The load ends after two quiet holds. If there is a step, wait again.
    assert run_staircase(question, (0, 60, True), (0, 60, False), (0, 60, False))[-1] == 10e9
    assert run_staircase(question, (0, 60, True), (0, 60, False), (1, 30, False))[-1] == 60e9
    # If the load is lower, only a single hold is needed.
    done = run_staircase(question, (0, 60, True), (0, 60, True), (0, 60, True))
    assert done == [20e9, 60e9, 10e9]


def test_number_of_holds_at_full_load_is_limited() -> None:
    question = Staircase(hold_s=60, settle_s=1000, holds_max_count=3)
    assert run_staircase(question, *[(1, 5.0, None)] * 5) == [None] * 3
    study = StudySpec(name="s", question=question, spec=LONG)
    trial = next_trial(study, [])
    assert trial is not None
    assert trial.resolve("s", study).burst_s == 60
    assert trial.resolve("s", study).traffic.stream_bits_per_second is None
    assert describe_trial(study, TrialResult(index=0)) == {"hold": "all there is"}
    assert trials_count(study) == 3


def test_drill_is_a_run_with_fast_probes_and_two_bursts() -> None:
    study = StudySpec(name="s", question=Drill(at_s=10), spec=LONG)
    trial = next_trial(study, [])
    assert trial is not None
    run = trial.resolve("s", study)
    assert run.bursts_count == 2
    assert run.problems() == ()
    assert run.traffic.probe is not None
    assert run.traffic.probe.every_s == 0.02
    assert next_trial(study, [TrialResult(index=0)]) is None


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"switch": "idps"}, "switch, state: give both"),
        # It is not possible to set a command.
        ({"event": ["rm", "-rf", "/"]}, "event"),
    ],
)
def test_drill_request_cannot_contain_a_command(question: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Drill.model_validate(question)


async def test_drill_needs_exactly_one_event_and_time_after_it(place: Place) -> None:
    studies = place.studies({"device": Switch(rest="a", states={"a": ("true",)})})

    async def error_of(question: Drill, command: list[str] | None = None) -> str:
        spec = StudySpec(name="s", question=question, spec=LONG)
        with pytest.raises(BadStudy) as error:
            await studies.create(spec, by="me", command=command)
        return str(error.value)

    assert "missing; give a declared switch" in await error_of(Drill(at_s=10))
    assert "'other' is not declared" in await error_of(Drill(at_s=10, switch="other", state="a"))
    assert "no state b" in await error_of(Drill(at_s=10, switch="device", state="b"))
    both = await error_of(Drill(at_s=10, switch="device", state="a"), ["true"])
    assert "give one of the two" in both
    assert "set burst_s to 35 at least" in await error_of(Drill(at_s=25), ["true"])


async def test_coordinator_without_the_command_does_not_run_it(place: Place) -> None:
    owner, other = place.studies(), place.studies()
    spec = StudySpec(name="s", question=Drill(at_s=5), spec=LONG)
    study_id = (await owner.create(spec, by="me", command=["true"])).study_id
    # The other coordinator must not take over the study yet.
    await other.tick()
    assert (await owner.read(study_id)).locked_by == owner._name
    # Wait until the hold has expired.
    await place.pass_time(31)
    study = await place.until_ended(study_id, other)
    assert study.conclusion is not None
    assert "the event was not carried out: " in study.conclusion.sentence


def test_conclusion_names_an_event_that_did_not_run() -> None:
    spec = StudySpec(name="s", question=Drill(at_s=5), spec=LONG)
    assert "its time was not reached" in conclude(spec, []).sentence
    at = ExecutedEvent.model_validate(
        {"planned_at": "2026-11-23T12:00:00Z", "problem": "no such file"}
    )
    assert "no such file" in conclude(spec, [], event=at).sentence


def test_conclusion_sentences_of_staircase_and_drill() -> None:
    conclusion = grown().conclusion
    assert conclusion is not None
    assert conclusion.sentence == (
        "100 s from 20 Gbit/s to 77 Gbit/s of payload; about 5 steps of 11.4 +- 0 Gbit/s; "
        "pre-scale to 14 units for 150 Gbit/s"
    )
    assert "telemetry counted 2 to 7 units" in conclusion.notes
    drill = drilled().conclusion
    assert drill is not None
    assert drill.sentence.startswith(
        "the device was out for 1500 ms +- 20 by the probes of 1 of 2 pairs, "
        "from 12:01:00.000 UTC on, 0.00 s after the event began; payload fell from 10 Gbit/s to "
        "0 bit/s and reached 95 % again after 5.0 s, 4 GB short; 3.5 s of it were the "
        "recovery of TCP"
    )


@pytest.mark.parametrize("question", [Drill(at_s=5), Staircase()])
def test_incomplete_trial_is_used_and_noted(
    question: Drill | Staircase,
) -> None:
    spec = StudySpec(name="s", question=question, spec=LONG)
    notes = conclude(spec, results(1e9, completeness_ratio=0.75, silences_capped=True)).notes
    assert "trial 1: 75.0 % of it was measured, below the minimum of 95 %; used" in notes
    assert any("only the 32 longest silences" in n for n in notes)


@pytest.mark.parametrize(
    ("idle", "before"),
    # If there is no idle value, the minimum is used.
    [(1.0, 1.0), (None, 4.0)],
)
def test_units_before_come_from_the_idle_device(idle: float | None, before: float) -> None:
    first = DeviceFigure(mean=5.0, p95=6.0, min=4.0, max=6.0, idle=idle, covered_ratio=1.0)
    later = first.model_copy(update={"max": 7.0})
    assert units_counted([first, later]) == {"units_before_count": before, "units_after_count": 7.0}
    assert set(units_counted([]).values()) == {None}


@pytest.mark.parametrize(
    ("scenario", "goal", "loss"),
    [
        ("rfc9411-http-connections", {}, 0.00001),
        ("rfc9411-http-connections", {"shortfall_max_ratio": 0.02}, 0.02),
        ("connections-held", {}, 0.01),
    ],
)
def test_search_over_connections_keeps_the_threshold_of_the_scenario(
    scenario: str, goal: dict[str, float], loss: float
) -> None:
    load = "held_count" if scenario == "connections-held" else "connections_per_second"
    question = {"kind": "search", f"min_{load}": 100, f"max_{load}": 200, **goal}
    request = StudyRequest.model_validate({"question": question, "scenario": scenario})
    assert isinstance(found := request.study().question, Search)
    assert found.shortfall_max_ratio == loss


def test_search_over_a_rate_does_not_use_successful_requests() -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=2e9)
    assert question.with_success(0.999) == question
