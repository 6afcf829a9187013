"""Loads that are held until a device has settled, and events that are carried out once."""

import asyncio
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from broadside.coordinator.core.measure.experiments.drill import ExecutedEvent
from broadside.coordinator.core.measure.experiments.scale_out import Scaling
from broadside.coordinator.core.summary import DeviceFigure
from broadside.coordinator.request_errors import BadStudy
from broadside.coordinator.studies.conclude import conclude
from broadside.coordinator.studies.drill_text import drilled as words_of_drill
from broadside.coordinator.studies.scale_out_reader import units_counted
from broadside.coordinator.studies.study import Drill, Staircase, Study, StudySpec, TrialResult
from broadside.coordinator.studies.switch import Switch
from broadside.coordinator.studies.trials import describe_trial, next_trial, trials_count
from tests.unit.coordinator.studies.samples import drill, drilled, grown, results
from tests.unit.coordinator.studies.test_runner import SPEC, Place, place

__all__ = ["place"]  # the fixture

LONG = SPEC.model_copy(update={"burst_s": 30})
SAY = [sys.executable, "-c", "print('standby took over; $(id) SharedAccessKey=abc')"]


def held(question: Staircase, *told: tuple[int, float, bool | None]) -> list[float | None]:
    """The offers of all holds, when those so far told this; the last is the next one."""
    study = StudySpec(name="s", question=question, spec=LONG)
    results: list[TrialResult] = []
    offers = []
    for index in range(len(told) + 1):
        trial = next_trial(study, results)
        if trial is None:
            break
        offers.append(trial.offered_bits_per_second)
        if index < len(told):
            steps, quiet_s, carried = told[index]
            scaling = Scaling(steps_count=steps, quiet_s=quiet_s, carried=carried)
            offer = trial.offered_bits_per_second
            results.append(TrialResult(index=index, offered_bits_per_second=offer, scaling=scaling))
    return offers


def test_a_load_is_held_until_the_device_carries_it_or_has_been_quiet() -> None:
    question = Staircase(offers_bits_per_second=(20e9, 60e9, 10e9), hold_s=60, settle_s=100)
    assert held(question, (0, 60, True), (0, 60, False)) == [20e9, 60e9, 60e9]
    # Quiet over two holds; a step begins the wait anew
    assert held(question, (0, 60, True), (0, 60, False), (0, 60, False))[-1] == 10e9
    assert held(question, (0, 60, True), (0, 60, False), (1, 30, False))[-1] == 60e9
    # Down is held once, and that is the end
    done = held(question, (0, 60, True), (0, 60, True), (0, 60, True))
    assert done == [20e9, 60e9, 10e9]


def test_one_step_is_all_there_is_and_holds_are_bounded() -> None:
    question = Staircase(hold_s=60, settle_s=1000, holds_max_count=3)
    assert held(question, *[(1, 5.0, None)] * 5) == [None] * 3
    study = StudySpec(name="s", question=question, spec=LONG)
    trial = next_trial(study, [])
    assert trial is not None
    assert trial.resolve("s", study).burst_s == 60
    assert trial.resolve("s", study).traffic.stream_bits_per_second is None
    assert describe_trial(study, TrialResult(index=0)) == {"hold": "all there is"}
    assert trials_count(study) == 3


def test_a_drill_is_one_run_with_fine_probes_and_a_burst_of_new_sessions() -> None:
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
    ("question", "said"),
    [
        ({"switch": "idps"}, "switch, state: give both"),
        ({"event": ["rm", "-rf", "/"]}, "event"),  # no field takes a command
    ],
)
def test_a_drill_that_is_asked_for_takes_no_text_to_run(
    question: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        Drill.model_validate(question)


async def test_a_drill_needs_one_event_that_leaves_time_behind_it(place: Place) -> None:
    studies = place.studies({"device": Switch(rest="a", states={"a": ("true",)})})

    async def refused(question: Drill, command: list[str] | None = None) -> str:
        spec = StudySpec(name="s", question=question, spec=LONG)
        with pytest.raises(BadStudy) as error:
            await studies.create(spec, by="me", command=command)
        return str(error.value)

    assert "missing; give a declared switch" in await refused(Drill(at_s=10))
    assert "'other' is not declared" in await refused(Drill(at_s=10, switch="other", state="a"))
    assert "no state b" in await refused(Drill(at_s=10, switch="device", state="b"))
    both = await refused(Drill(at_s=10, switch="device", state="a"), ["true"])
    assert "give one of the two" in both
    assert "set burst_s to 35 at least" in await refused(Drill(at_s=25), ["true"])


async def carried_out(place: Place, question: Drill, command: list[str] | None = None) -> Study:
    """The study once its event is on record as over."""
    switch = Switch(rest="a", states={"a": ("true",), "b": ("false",)})
    studies = place.studies({"device": switch})
    spec = StudySpec(name="s", question=question, spec=LONG)
    study_id = (await studies.create(spec, by="me", command=command)).study_id
    await studies.tick()
    burst = (await place.coordinator.stored.read_plan(f"{study_id}-001")).bursts[0]
    due_s = (burst.planned_start_at - place.clock()).total_seconds() + question.at_s
    await place.pass_time(due_s - 0.1)
    await studies.tick()
    for _ in range(500):
        study = await studies.read(study_id)
        if study.event is not None and (study.event.ended_at or study.event.problem):
            return study
        await asyncio.sleep(0.02)
    raise AssertionError("no event")


async def test_an_own_command_runs_once_without_a_shell_and_is_dated(place: Place) -> None:
    study = await carried_out(place, Drill(at_s=5), SAY)
    ran = study.event
    assert ran is not None
    assert ran.exit_code == 0
    assert ran.started_at is not None
    assert abs((ran.started_at - ran.planned_at).total_seconds()) <= 1.0
    assert ran.said == "standby took over; $(id) SharedAccessKey=***"
    assert "abc" not in study.model_dump_json()


async def test_a_switchs_state_is_an_event_and_the_device_is_put_to_rest(place: Place) -> None:
    study = await carried_out(place, Drill(at_s=5, switch="device", state="b"))
    assert study.event is not None
    assert (study.event.argv, study.event.exit_code) == (("false",), 1)


async def test_who_has_not_the_command_does_not_invent_one(place: Place) -> None:
    requested, other = place.studies(), place.studies()
    spec = StudySpec(name="s", question=Drill(at_s=5), spec=LONG)
    study_id = (await requested.create(spec, by="me", command=["true"])).study_id
    await other.tick()  # it is held by who has the command
    assert (await requested.read(study_id)).held_by == requested._name
    await place.pass_time(31)  # who is gone by now
    study = await place.until_ended(study_id, other)
    assert study.conclusion is not None
    assert "the event was not carried out: " in study.conclusion.sentence


def test_an_event_that_never_came_is_no_drill() -> None:
    spec = StudySpec(name="s", question=Drill(at_s=5), spec=LONG)
    assert "its time was not reached" in conclude(spec, []).sentence
    at = ExecutedEvent.model_validate(
        {"planned_at": "2026-11-23T12:00:00Z", "problem": "no such file"}
    )
    assert "no such file" in conclude(spec, [], event=at).sentence


def test_the_answers_in_words() -> None:
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
def test_what_is_looked_into_is_not_left_out_and_more_may_have_been_cut(
    question: Drill | Staircase,
) -> None:
    spec = StudySpec(name="s", question=question, spec=LONG)
    notes = conclude(spec, results(1e9, completeness_ratio=0.75, silences_capped=True)).notes
    assert (
        "trial 1: 75.0 % of it was measured, below the minimum of 95 %; used all the same" in notes
    )
    assert any("only the 32 longest silences" in n for n in notes)


@pytest.mark.parametrize(("cut_count", "carry"), [(8, "0 %"), (4, "unknown")])
def test_where_every_session_was_cut_the_old_ones_carry_nothing(cut_count: int, carry: str) -> None:
    """Nobody records seconds then: of what others carry nothing is known."""
    [dip] = drill().flows
    cut = drill(cut_count=cut_count, flows=(dip.model_copy(update={"old_ratio": None}),))
    sentence = words_of_drill(cut.event, cut).sentence
    assert f"{cut_count} of 8 sessions were cut" in sentence
    assert f"old sessions carry {carry} of the earlier level and new ones 98 %" in sentence


@pytest.mark.parametrize(("count", "more"), [(3, ")"), (5, " and 2 more)")])
def test_pairs_that_are_cut_and_not_named_are_counted(count: int, more: str) -> None:
    names = tuple(f"pair-00{number}" for number in range(1, count + 1))
    result = drill(cut_count=8, cut_pairs=names)
    sentence = words_of_drill(result.event, result).sentence
    assert f"were cut (of pair-001, pair-002, pair-003{more}" in sentence


@pytest.mark.parametrize(
    ("idle", "before"),
    [(1.0, 1.0), (None, 4.0)],  # the window begins once the device has grown
)
def test_units_before_are_those_of_the_idle_device(idle: float | None, before: float) -> None:
    lock = DeviceFigure(mean=5.0, p95=6.0, min=4.0, max=6.0, idle=idle, covered_ratio=1.0)
    later = lock.model_copy(update={"max": 7.0})
    assert units_counted([lock, later]) == {"units_before_count": before, "units_after_count": 7.0}
    assert set(units_counted([]).values()) == {None}
