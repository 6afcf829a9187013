"""Unit tests for the event of a drill, without commands that are executed."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from broadside.coordinator.core.measure.experiments.drill import ExecutedEvent
from broadside.coordinator.core.plan.planner import plan
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.request_errors import BadStudy, UnknownRun
from broadside.coordinator.studies.events import AFTER_S, LATE_S, NEAR_S, Events, check_drill
from broadside.coordinator.studies.study import Drill, Study
from broadside.coordinator.studies.switch import Switch
from broadside.exchange.records.collection import Collection
from tests.unit.agent.doubles import MemoryTable
from tests.unit.coordinator.presences import NOW, Clock, fleet
from tests.unit.coordinator.studies.samples import study

SPEC = RunSpec(scenario="smoke", pairs_count=1)
SWITCH = Switch(rest="a", states={"a": ("/bin/a",), "b": ("/bin/b",)})
BY_HAND = Drill(at_s=10)
PLAN = plan(SPEC, fleet(1), NOW, "run-1")


def test_drill_has_exactly_one_event() -> None:
    switched = Drill(switch="fw", state="b", at_s=5)
    check_drill(switched, SPEC, None)
    check_drill(Drill(at_s=5), SPEC, ("reboot",))
    with pytest.raises(BadStudy, match="missing"):
        check_drill(Drill(at_s=5), SPEC, None)
    with pytest.raises(BadStudy, match="give one of the two"):
        check_drill(switched, SPEC, ("reboot",))


def test_event_needs_seconds_after_it_in_the_burst() -> None:
    latest = float(SPEC.burst_s - AFTER_S)
    check_drill(Drill(at_s=latest), SPEC, ("reboot",))
    with pytest.raises(BadStudy, match=f"set burst_s to {SPEC.burst_s + 1} at least"):
        check_drill(Drill(at_s=latest + 1), SPEC, ("reboot",))


class Place:
    """Events of one stored study, with commands that only note what they would execute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, question: Drill, **event: Any) -> None:
        self.clock = Clock()
        self.executed: list[tuple[str, ...]] = []
        self.shelf = Collection(MemoryTable(), "studies", Study)
        self.study = study(question, []).model_copy(update=event)
        self.noted: list[str] = []
        self.events = Events(self.read_plan, self.shelf, self.note, {"fw": SWITCH}, self.clock)
        monkeypatch.setattr("broadside.coordinator.studies.events.run_argv", self.execute)

    async def read_plan(self, run_id: str) -> Plan:
        if run_id != PLAN.run_id:
            raise UnknownRun(run_id)
        return PLAN

    async def note(self, switch: str, state: str | None) -> None:
        self.noted.append(switch)

    async def execute(self, argv: tuple[str, ...], timeout_s: float, name: str) -> tuple[int, str]:
        self.executed.append(argv)
        return 3, "said"

    async def at(self, seconds: float, run_id: str = "run-1") -> ExecutedEvent | None:
        """Check the study at a time relative to its event, and return the stored event."""
        burst = PLAN.bursts[0]
        question = self.study.spec.question
        assert isinstance(question, Drill)
        event_s = burst.omit_s + question.at_s + seconds
        self.clock.at = burst.planned_start_at + timedelta(seconds=event_s)
        await self.shelf.put(self.study.study_id, self.study)
        before = asyncio.all_tasks()
        await self.events.check(self.study, run_id)
        await asyncio.gather(*(asyncio.all_tasks() - before))
        stored = await self.shelf.read(self.study.study_id)
        assert stored is not None
        return stored.event


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Place]:
    return lambda question, **event: Place(monkeypatch, question, **event)


async def test_event_at_its_time_is_executed_and_stored(place: Callable[..., Place]) -> None:
    here = place(Drill(switch="fw", state="b", at_s=10))
    event = await here.at(0.0)
    assert event is not None
    assert (event.argv, event.exit_code, event.output) == (("/bin/b",), 3, "said")
    assert event.started_at == here.clock.at == event.planned_at
    assert here.executed == [("/bin/b",)]
    assert here.noted == ["fw"]


@pytest.mark.parametrize("seconds", [-NEAR_S - 0.1, -1000.0])
async def test_event_is_not_prepared_long_before_its_time(
    place: Callable[..., Place], seconds: float
) -> None:
    here = place(Drill(switch="fw", state="b", at_s=10))
    assert await here.at(seconds) is None
    assert here.executed == []


async def test_late_event_is_recorded_and_not_executed(place: Callable[..., Place]) -> None:
    here = place(Drill(switch="fw", state="b", at_s=10))
    event = await here.at(LATE_S + 4)
    assert event is not None
    assert event.problem == "no coordinator was running at its time, 5 s ago"
    assert event.started_at is None
    assert here.executed == []


async def test_undeclared_state_and_lost_command_are_problems(place: Callable[..., Place]) -> None:
    undeclared = place(Drill(switch="fw", state="c", at_s=10))
    event = await undeclared.at(0.0)
    assert event is not None
    assert "'fw' is not declared" in (event.problem or "")
    lost = place(BY_HAND)
    event = await lost.at(0.0)
    assert event is not None
    assert event.problem == "the process that had its command has ended"
    assert undeclared.executed == lost.executed == []


async def test_command_of_the_user_is_stored_without_secrets(place: Callable[..., Place]) -> None:
    here = place(BY_HAND)
    here.events.commands[here.study.study_id] = ("set", "Bearer hunter2", "x" * 400)
    event = await here.at(0.0)
    assert event is not None
    assert here.executed == [("set", "Bearer hunter2", "x" * 400)]
    assert "hunter2" not in " ".join(event.argv)
    assert len(event.argv[2]) == 300
    assert here.noted == []


async def test_event_is_executed_once(place: Callable[..., Place]) -> None:
    here = place(Drill(switch="fw", state="b", at_s=10))
    await here.at(0.0)
    await here.events.check(here.study, "run-1")
    recorded = place(BY_HAND, event=ExecutedEvent(planned_at=NOW))
    recorded.events.commands[recorded.study.study_id] = ("set",)
    await recorded.at(0.0)
    removed = place(BY_HAND)
    await removed.at(0.0, run_id="run-2")
    assert len(here.executed) == 1
    assert recorded.executed == removed.executed == []
