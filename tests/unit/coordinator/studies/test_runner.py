"""Tests for the study runner, using an embedded table and a simulated clock."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import PrivateAttr

from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.device.telemetry.lab import LabEntry, LabSource
from broadside.coordinator.request_errors import BadStudy, UnknownRun
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.studies import runner
from broadside.coordinator.studies.runner import FEASIBLE_WITHIN_S, HOLD_S, QUIET_WITHIN_S, Studies
from broadside.coordinator.studies.study import (
    AB,
    Axis,
    Mode,
    Question,
    Search,
    Sequential,
    Study,
    StudySpec,
    Sweep,
    Trial,
    TrialResult,
)
from broadside.coordinator.studies.switch import Switch, SwitchError
from broadside.coordinator.studies.trials import next_trial
from broadside.coordinator.views.feeds import Feeds
from broadside.exchange.engines import traffic_of
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Protocol, Traffic
from broadside.exchange.rows import make_row
from tests.unit.coordinator.presences import NOW, Clock, fleet

SPEC = RunSpec.model_validate(
    {"scenario": "test", "pairs_count": 2, "burst_s": 2, "lead_s": 5, "bursts_count": 1}
)
OFF_OR_DENY = AB(a=Mode(name="off"), b=Mode(name="deny"), switch="idps")
TWO_SIZES = Sweep(axes=(Axis(field="traffic.streams_count", values=(1, 2)),))


class RecordingSwitch(Switch):
    """Switch to record all states. It fails if the state is in ``broken``."""

    broken: tuple[str, ...] = ()
    _states_set: list[str] = PrivateAttr(default_factory=list)

    @property
    def states_set(self) -> list[str]:
        return self._states_set

    async def set(self, state: str) -> None:
        if state in self.broken:
            raise SwitchError(f"state {state!r}: exit 1: no")
        self._states_set.append(state)


def a_switch(**changes: Any) -> RecordingSwitch:
    states = {"off": ("true",), "deny": ("true",)}
    return RecordingSwitch.model_validate({"rest": "off", "states": states} | changes)


class Place:
    """Fabric with two idle pairs, shared by any number of coordinators."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.clock = fabric, Clock()
        self.coordinator = Coordinator(fabric, now=self.clock)
        self.ports_busy_until_at = NOW
        self.carriers: list[Studies] = []

    def studies(self, switches: Mapping[str, Switch] | None = None) -> Studies:
        """Create a coordinator and return the study runner."""
        again = Coordinator(self.fabric, now=self.clock)
        studies = Studies(again, Feeds(again), self.fabric.private, switches, now=self.clock)
        self.carriers.append(studies)
        return studies

    async def begun(
        self, question: Question, switch: Switch | None = None, **more: Any
    ) -> tuple[Studies, str]:
        """Create a study and return the runner and id."""
        studies = self.studies({} if switch is None else {"idps": switch})
        return studies, (await studies.create(spec(question, **more), by="me")).study_id

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock, write heartbeats and close runs if they have ended."""
        self.clock.forward(seconds)
        for presence in fleet(4):
            beat = presence.model_copy(update={"beat_at": self.clock.at, "echo_port": 9})
            if self.clock.at < self.ports_busy_until_at:
                beat = beat.model_copy(update={"ports": ()})
            await self.fabric.records.fleet.beat(beat)
        await self.coordinator.tick()

    async def run_count(self) -> int:
        return len([run async for run in self.coordinator.fabric.records.private.list_runs()])

    async def until_ended(self, study_id: str, *carriers: Studies) -> Study:
        """Call the runners every 5 s until the study has ended."""
        for _ in range(100):
            await self.pass_time(5)
            for studies in carriers:
                await studies.tick()
            study = await carriers[0].read(study_id)
            if study.ended_at is not None:
                return study
        raise AssertionError("the study does not end")


@pytest.fixture
async def place(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    # There is no need to wait because the clock is simulated.
    monkeypatch.setattr("broadside.coordinator.views.feeds.POLL_S", 0.0)
    place = Place(fabric)
    await place.pass_time(0)
    yield place
    for studies in place.carriers:
        await studies.close()


def spec(question: Question, **changes: Any) -> StudySpec:
    return StudySpec(name="test", question=question, spec=SPEC, **changes)


async def test_a_budget_below_the_first_round_is_rejected(place: Place) -> None:
    studies = place.studies()
    question = OFF_OR_DENY.model_copy(update={"switch": None})
    run = SPEC.model_copy(update={"burst_s": 300, "device": {"sku": "premium"}})

    def with_budget(budget_usd: float) -> StudySpec:
        sequential = Sequential(budget_usd=budget_usd)
        return spec(question, sequential=sequential).model_copy(update={"spec": run})

    with pytest.raises(BadStudy, match="less than the cost of one round, at least"):
        await studies.create(with_budget(0.01), by="me")
    study = await studies.create(with_budget(10_000), by="me")
    assert study.expected is not None
    assert "between bursts (assumed)" in study.expected


async def test_trials_run_once_and_the_study_concludes(place: Place) -> None:
    studies, study_id = await place.begun(TWO_SIZES)
    study = await place.until_ended(study_id, studies)
    assert [result.run_id for result in study.results] == [f"{study_id}-001", f"{study_id}-002"]
    assert await place.run_count() == 2
    assert study.problem is None
    assert study.conclusion is not None
    # There was no agent to take the jobs.
    assert "no trial is complete" in study.conclusion.sentence


async def test_run_feed_triggers_the_next_step(place: Place) -> None:
    studies, study_id = await place.begun(TWO_SIZES)
    # This will not tick during the test.
    carrying = asyncio.create_task(studies.run_forever(tick_s=3600))
    async with asyncio.timeout(20):
        while not (await studies.read(study_id)).results:
            await place.pass_time(1)
    carrying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await carrying


async def test_unreadable_study_does_not_stop_other_studies(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = place.fabric.private
    await table.insert(make_row("studies", "20200101-unreadable", {"json": "{}"}))
    studies = place.studies()
    bad_id = (await studies.create(spec(TWO_SIZES), by="me")).study_id
    good_id = (await studies.create(spec(TWO_SIZES), by="me")).study_id
    step = studies._step

    async def faulty(study: Study) -> None:
        if study.study_id == bad_id:
            raise ValueError("the run summary has another version")
        await step(study)

    monkeypatch.setattr(studies, "_step", faulty)
    study = await place.until_ended(good_id, studies)
    assert len(study.results) == 2


@pytest.mark.parametrize("steps", range(6))
async def test_another_coordinator_continues_after_any_step(place: Place, steps: int) -> None:
    switch = a_switch()
    first, study_id = await place.begun(OFF_OR_DENY, switch)
    for _ in range(steps):
        await place.pass_time(5)
        await first.tick()
    second = place.studies({"idps": switch})
    study = await place.until_ended(study_id, second)
    assert [result.index for result in study.results] == [0, 1, 2, 3]
    assert await place.run_count() == 4
    # A state can be set twice if there are two coordinators, but not be skipped.
    changes = [
        b for a, b in zip(["", *switch.states_set], switch.states_set, strict=False) if a != b
    ]
    assert changes == ["off", "deny", "off"]


async def test_only_one_of_two_coordinators_runs_the_study(place: Place) -> None:
    switch = a_switch()
    first, other = (place.studies({"idps": switch}) for _ in range(2))
    study_id = (await first.create(spec(OFF_OR_DENY), by="me")).study_id
    study = await place.until_ended(study_id, first, other)
    assert len(study.results) == 4
    assert switch.states_set == ["off", "deny", "off"]
    assert await place.run_count() == 4


async def test_returning_coordinator_does_not_use_its_old_state(
    place: Place,
) -> None:
    switch = a_switch()
    first, second = (place.studies({"idps": switch}) for _ in range(2))
    question = OFF_OR_DENY.model_copy(update={"rounds_count": 2})
    study_id = (await first.create(spec(question), by="me")).study_id
    await place.pass_time(1)
    # The state is set to off.
    await first.tick()
    while len((await second.read(study_id)).results) < 3:
        await place.pass_time(HOLD_S + 1)
        # The state is set to deny for two trials.
        await second.tick()
    await place.until_ended(study_id, first)
    assert switch.states_set == ["off", "deny", "off", "deny", "off"]


async def test_other_coordinator_waits_until_the_study_is_released(place: Place) -> None:
    first, other = place.studies(), place.studies()
    study_id = (await first.create(spec(TWO_SIZES), by="me")).study_id
    await first.tick()
    stored_by = (await first.read(study_id)).locked_by
    await place.pass_time(HOLD_S - 1)
    await other.tick()
    assert (await first.read(study_id)).locked_by == stored_by
    await place.pass_time(2)
    await other.tick()
    assert (await first.read(study_id)).locked_by not in (None, stored_by)


async def test_failed_switch_ends_the_study_and_resets_the_device(place: Place) -> None:
    switch = a_switch(broken=("deny",))
    studies, study_id = await place.begun(OFF_OR_DENY, switch)
    study = await place.until_ended(study_id, studies)
    assert study.problem == "trial 2: state 'deny': exit 1: no"
    assert len(study.results) == 1
    assert switch.states_set == ["off", "off"]
    assert await place.run_count() == 1


async def test_failed_reset_of_the_device_is_reported(place: Place) -> None:
    studies, study_id = await place.begun(OFF_OR_DENY, a_switch(broken=("off",)))
    study = await place.until_ended(study_id, studies)
    assert study.problem is not None
    assert "the device was not reset to off: state 'off': exit 1: no" in study.problem


async def test_cancelled_study_cancels_its_run_and_resets_device(place: Place) -> None:
    switch = a_switch()
    question = OFF_OR_DENY.model_copy(update={"a": Mode(name="deny"), "b": Mode(name="off")})
    studies, study_id = await place.begun(question, switch)
    await studies.tick()
    await studies.cancel(study_id, by="you", reason="enough")
    study = await place.until_ended(study_id, studies)
    assert (study.cancelled_by, study.cancel_reason) == ("you", "enough")
    assert (await place.coordinator.stored.status(f"{study_id}-001")).cancel_reason == "enough"
    with pytest.raises(UnknownRun):
        await place.coordinator.stored.status(f"{study_id}-002")
    assert switch.states_set == ["deny", "off"]


async def test_studies_with_the_same_switch_run_one_after_the_other(place: Place) -> None:
    switch = a_switch()
    studies, first = await place.begun(OFF_OR_DENY, switch)
    other = place.studies({"idps": switch})
    await studies.tick()
    second = (await other.create(spec(OFF_OR_DENY), by="you")).study_id
    await other.tick()
    waits = await other.read(second)
    assert waits.waits_for == f"study {first}, which uses the switch idps"
    await place.until_ended(first, studies, other)
    assert switch.states_set[:3] == ["off", "deny", "off"]
    done = await place.until_ended(second, other)
    assert (done.waits_for, len(done.results)) == (None, 4)
    assert switch.states_set[3:] == ["off", "deny", "off"]
    assert all(not result.concurrent_run_ids for result in done.results)


async def test_cancelled_waiting_study_does_not_switch_the_device(
    place: Place,
) -> None:
    switch = a_switch()
    studies = place.studies({"idps": switch})
    await studies.create(spec(OFF_OR_DENY), by="me")
    await studies.tick()
    second = (await studies.create(spec(OFF_OR_DENY), by="you")).study_id
    await studies.cancel(second, by="you", reason="too long")
    await studies.tick()
    assert (await studies.read(second)).ended_at is not None
    assert switch.states_set == ["off"]


async def test_infeasible_trial_does_not_switch_the_device(place: Place) -> None:
    switch = a_switch()
    question = OFF_OR_DENY.model_copy(
        update={"b": Mode(name="deny", overrides={"pairs_count": 50})}
    )
    studies, study_id = await place.begun(question, switch)
    study = await place.until_ended(study_id, studies)
    assert [result.problem is None for result in study.results] == [True, False, False, True]
    assert switch.states_set == ["off"]


async def test_device_is_switched_after_other_runs_end(place: Place) -> None:
    switch = a_switch()
    studies = place.studies({"idps": switch})
    other = await place.coordinator.launch(SPEC, by="you", run_id="other")
    study_id = (await studies.create(spec(OFF_OR_DENY), by="me")).study_id
    await studies.tick()
    until_at = other.bursts[-1].planned_end_at
    text = f"run other, which sends traffic until {until_at:%H:%M:%SZ}"
    assert (await studies.read(study_id)).waits_for == text
    assert switch.states_set == []
    study = await place.until_ended(study_id, studies)
    assert all(not result.concurrent_run_ids for result in study.results)
    assert len(switch.states_set) == 3


async def test_wait_reason_is_cleared_when_the_trial_starts(place: Place) -> None:
    studies = place.studies()
    place.ports_busy_until_at = NOW + timedelta(seconds=10)
    await place.pass_time(1)
    study_id = (await studies.create(spec(TWO_SIZES), by="me")).study_id
    await studies.tick()
    assert "0 free ports" in ((await studies.read(study_id)).waits_for or "")
    await place.pass_time(10)
    await studies.tick()
    assert await place.run_count() == 1
    assert (await studies.read(study_id)).waits_for is None


async def test_waits_for_a_long_run_that_uses_the_ports(place: Place) -> None:
    switch = a_switch()
    studies = place.studies({"idps": switch})
    long = SPEC.model_copy(update={"burst_s": 3 * int(FEASIBLE_WITHIN_S)})
    other = await place.coordinator.launch(long, by="you", run_id="other")
    place.ports_busy_until_at = other.bursts[-1].planned_end_at
    study_id = (await studies.create(spec(OFF_OR_DENY), by="me")).study_id
    study = await place.until_ended(study_id, studies)
    assert [result.problem for result in study.results] == [None] * 4


async def test_endless_other_run_is_reported_as_problem(place: Place) -> None:
    switch = a_switch()
    studies = place.studies({"idps": switch})
    long = SPEC.model_copy(update={"burst_s": 9 * int(QUIET_WITHIN_S)})
    await place.coordinator.launch(long, by="you", run_id="other")
    study_id = (await studies.create(spec(OFF_OR_DENY), by="me")).study_id
    for _ in range(4 * 2 + 1):
        await place.pass_time(QUIET_WITHIN_S)
        await studies.tick()
    study = await studies.read(study_id)
    assert ["run other, which sends" in (result.problem or "") for result in study.results] == [
        True
    ] * 4
    assert switch.states_set == []


async def test_concurrent_run_is_noted(place: Place) -> None:
    studies, study_id = await place.begun(OFF_OR_DENY, a_switch())
    await place.pass_time(1)
    await studies.tick()
    await place.coordinator.launch(SPEC, by="you", run_id="other")
    study = await place.until_ended(study_id, studies)
    assert [result.concurrent_run_ids for result in study.results] == [("other",), (), (), ()]
    assert study.conclusion is not None
    assert "trial 1: other runs sent traffic during it: other" in study.conclusion.notes


async def test_study_fails_without_a_declared_switch(place: Place) -> None:
    _, study_id = await place.begun(OFF_OR_DENY, a_switch())
    study = await place.until_ended(study_id, place.studies())
    assert study.problem == "trial 1: switch 'idps' is not declared to this coordinator"
    assert await place.run_count() == 0


async def test_large_sweep_is_checked_only_in_part(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take minutes to check each of the 10,000 trials."""
    tried: list[int] = []

    def counted(spec: StudySpec, results: Sequence[TrialResult]) -> Trial | None:
        tried.append(len(results))
        return next_trial(spec, results)

    monkeypatch.setattr(runner, "CHECKED_MAX_COUNT", 10)
    monkeypatch.setattr(runner, "next_trial", counted)
    wide = tuple(range(1, 101))
    axes = (
        Axis(field="traffic.streams_count", values=wide),
        Axis(field="burst_s", values=tuple(30 + value for value in wide)),
    )
    await place.begun(Sweep(axes=axes))
    assert tried == list(range(10))


@pytest.mark.parametrize("stop", [False, True])
async def test_infeasible_trial_waits_and_then_fails(place: Place, stop: bool) -> None:
    question = Sweep(axes=(Axis(field="pairs_count", values=(50, 2)),))
    studies, study_id = await place.begun(question, stop_on_failure=stop)
    await studies.tick()
    await place.pass_time(FEASIBLE_WITHIN_S - 1)
    await studies.tick()
    waits = await studies.read(study_id)
    assert waits.results == ()
    assert "pairs_count: 50 pairs requested" in (waits.waits_for or "")
    study = await place.until_ended(study_id, studies)
    problems = [result.problem for result in study.results]
    assert problems[0] is not None
    assert "pairs_count" in problems[0]
    assert problems[1:] == ([] if stop else [None])
    assert (study.problem is not None) == stop


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            OFF_OR_DENY.model_copy(update={"switch": "dns"}),
            "question.switch: 'dns' is not declared",
        ),
        (
            OFF_OR_DENY.model_copy(update={"b": Mode(name="alert")}),
            "question.switch: 'idps' has no state alert; give one of off, deny",
        ),
    ],
)
async def test_rejects_study_with_undeclared_switch_or_state(
    place: Place, question: AB, message: str
) -> None:
    studies = place.studies({"idps": a_switch()})
    with pytest.raises(BadStudy, match=message):
        await studies.create(spec(question), by="me")
    assert await studies.newest(limit=5) == ([], None)


async def test_study_with_a_switch_is_invalid_if_none_is_declared(place: Place) -> None:
    with pytest.raises(BadStudy, match=r"'idps' is not declared \(declared: none\)") as error:
        await place.studies({}).create(spec(OFF_OR_DENY), by="me")
    assert error.value.status == 422


UDP = SPEC.traffic.model_copy(update={"protocol": Protocol.UDP, "stream_bits_per_second": 1})


@pytest.mark.parametrize(
    ("thresholds", "traffic", "message"),
    [
        (
            {"rtt_mean_max_s": 0.01},
            UDP,
            "rtt_mean_max_s: 0.01: iperf3 over udp does not measure the RTT",
        ),
        (
            {"residual_max_ratio": 0.01},
            SPEC.traffic,
            "question.residual_max_ratio: 0.01: this coordinator has no",
        ),
        *(
            ({}, traffic_of(engine=name), rf"^traffic\.engine: {name} .*set iperf3$")
            # These engines do not support rate control.
            for name in ("http", "https", "ftp")
        ),
    ],
)
async def test_rejects_search_for_unmeasured_threshold_or_rate(
    place: Place, thresholds: dict[str, float], traffic: Traffic, message: str
) -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=2e9).model_copy(
        update=thresholds
    )
    study_spec = StudySpec(
        name="test", question=question, spec=SPEC.model_copy(update={"traffic": traffic})
    )
    with pytest.raises(BadStudy, match=message):
        await place.studies().create(study_spec, by="me")


async def test_accepts_search_for_measured_thresholds(place: Place) -> None:
    thresholds = {"rtt_mean_max_s": 0.01, "residual_max_ratio": 0.01}
    question = Search(min_bits_per_second=1e9, max_bits_per_second=2e9).model_copy(
        update=thresholds
    )
    source = LabSource(LabEntry(type="lab", device="lab", file=Path("none")))
    coordinator = Coordinator(place.fabric, [source], now=place.clock)
    studies = Studies(coordinator, Feeds(coordinator), place.fabric.private, now=place.clock)
    assert (await studies.create(spec(question), by="me")).ended_at is None
