"""Tests for close ups that need processes, sockets or real time."""

import asyncio
import sys

from broadside.coordinator.studies.study import Drill, Study, StudySpec
from broadside.coordinator.studies.switch import Switch
from tests.unit.coordinator.studies import test_runner
from tests.unit.coordinator.studies.test_runner import Place
from tests.unit.coordinator.studies.test_study import LONG

# Fixture.
place = test_runner.place

PRINT = [sys.executable, "-c", "print('standby took over; $(id) SharedAccessKey=abc')"]


async def run_drill(place: Place, question: Drill, command: list[str] | None = None) -> Study:
    """Run a drill and return the study when the event has ended."""
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


async def test_drill_command_runs_once_without_shell(place: Place) -> None:
    study = await run_drill(place, Drill(at_s=5), PRINT)
    event = study.event
    assert event is not None
    assert event.exit_code == 0
    assert event.started_at is not None
    assert abs((event.started_at - event.planned_at).total_seconds()) <= 1.0
    assert event.output == "standby took over; $(id) SharedAccessKey=***"
    assert "abc" not in study.model_dump_json()


async def test_drill_event_can_be_a_switch_state(place: Place) -> None:
    study = await run_drill(place, Drill(at_s=5, switch="device", state="b"))
    assert study.event is not None
    assert (study.event.argv, study.event.exit_code) == (("false",), 1)
