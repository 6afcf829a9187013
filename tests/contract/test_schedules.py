"""Test that two racing coordinators fire each scheduled time once, on every coordinator table.

Tests marked with :data:`one_table` use one table. They depend on the clock and use only table
features that ``test_table`` tests on each adapter.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.core.plan.schedule import Firing, FiringState, Schedule
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.request_errors import NameTaken, UnknownSchedule
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.schedules.firing import (
    FLEET_WAIT_S,
    HISTORY_COUNT,
    TAKEOVER_S,
    Schedules,
)
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import AgentState, Presence, Role
from broadside.exchange.ports import Entity
from broadside.exchange.records import Document
from broadside.exchange.rows import make_row, message_row
from tests.contract.adapters import OWN_TABLES, TABLES, Place
from tests.one_table import fabric_in
from tests.unit.coordinator.presences import Clock, presence

one_table = pytest.mark.parametrize("table_place", ["embedded"], indirect=True)

BEGIN = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
SPEC = RunSpec(scenario="smoke", pairs_count=1, burst_s=1, lead_s=1)


@pytest.fixture(params=OWN_TABLES)
def table_place(request: pytest.FixtureRequest) -> Place:
    return TABLES[request.param].make(request)


@dataclass(frozen=True)
class Twin:
    """One of the coordinators, with its own connections."""

    fabric: Fabric
    coordinator: Coordinator
    schedules: Schedules


@dataclass(frozen=True)
class Site:
    """Coordinators on one table and one queue, with a simulated fleet."""

    clock: Clock
    twins: tuple[Twin, Twin]

    @property
    def schedules(self) -> Schedules:
        return self.twins[0].schedules

    async def add(self, name: str = "nightly", **changes: Any) -> None:
        values = {"name": name, "spec": SPEC, "cron": "* * * * *", "created_by": "tester"}
        now = dict.fromkeys(("created_at", "from_at", "settled_at"), self.clock.at)
        await self.schedules.add(Schedule.model_validate(values | now | changes))

    async def beat(self, **changes: object) -> None:
        """Publish four pairs, so that concurrent schedules need not share agents."""
        reported = {"beat_at": self.clock.at, "state": AgentState.IDLE} | changes
        for role, index in product((Role.CLIENT, Role.SERVER), range(1, 5)):
            agent: Presence = presence(role, index, **reported)
            await self.twins[0].fabric.records.fleet.beat(agent)

    async def race(self, seconds: float = 0) -> None:
        """Advance the clock and run both schedulers concurrently, twice."""
        self.clock.forward(seconds)
        await self.beat()
        for _ in range(2):
            await asyncio.gather(*(twin.schedules.tick() for twin in self.twins))

    async def history(self, name: str = "nightly") -> list[Firing]:
        return list((await self.schedules.read(name)).history)

    async def states(self) -> list[str]:
        return [row.state.value for row in await self.history()]

    async def run_ids(self) -> list[str]:
        return [
            run.run_id
            async for run in self.twins[0].coordinator.fabric.records.private.list_runs(limit=1000)
        ]


@pytest.fixture
async def site(table_place: Place, tmp_path: Path) -> AsyncIterator[Site]:
    clock = Clock(BEGIN)

    def twin() -> Twin:
        queue = EmbeddedQueue(
            tmp_path / "queue", lock_s=60, deliveries_max_count=5, duplicates_s=600, busy_s=30
        )
        fabric = fabric_in(queue, table_place.open_table())
        coordinator = Coordinator(fabric, now=clock)
        return Twin(
            fabric=fabric,
            coordinator=coordinator,
            schedules=Schedules(fabric.private, coordinator, now=clock),
        )

    site = Site(clock=clock, twins=(twin(), twin()))
    yield site
    for item in site.twins:
        await item.fabric.close()


async def test_two_coordinators_fire_twenty_instants_twenty_times(site: Site) -> None:
    await site.add()
    for _ in range(20):
        await site.race(seconds=60)
    rows = await site.history()
    assert [row.state for row in rows] == [FiringState.LAUNCHED] * 20
    assert len({row.instant_at for row in rows}) == 20
    assert sorted(row.run_id or "" for row in rows) == sorted(await site.run_ids())
    assert len(set(await site.run_ids())) == 20
    view = await site.schedules.read("nightly")
    assert view.schedule.runs_count == 20
    assert view.next_at[0] == site.clock.at.replace(second=0) + timedelta(minutes=1)


@one_table
async def test_schedules_of_one_instant_do_not_wait_for_each_others_jobs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test with a queue that needs more than a minute for a send."""
    for name in ("one", "two"):
        await site.add(name, spec=SPEC.model_copy(update={"lead_s": 300}), runs_max_count=1)
    coordinator, queue = site.twins[0].coordinator, site.twins[0].fabric.queue
    send = queue.send

    async def send_slowly(messages: Any) -> Any:
        site.clock.forward(61)
        return await send(messages)

    monkeypatch.setattr(queue, "send", send_slowly)
    site.clock.forward(60)
    await site.beat()
    await site.schedules.tick()
    for name in ("one", "two"):
        assert [row.state for row in await site.history(name)] == [FiringState.LAUNCHED]
    await coordinator.tick()
    for run_id in await site.run_ids():
        assert list(await site.twins[0].fabric.records.private.read_queued(run_id)) == [0]


@one_table
async def test_a_schedule_ends_after_its_runs(site: Site) -> None:
    await site.add(runs_max_count=3)
    for left in (3, 2, 1):
        (listed,) = await site.schedules.list()
        view = await site.schedules.read("nightly")
        assert len(listed.next_at) == len(view.next_at) == left
        await site.race(seconds=60)
    await site.race(seconds=60)
    view = await site.schedules.read("nightly")
    assert (view.state, view.next_at, view.schedule.runs_count) == ("ended", (), 3)
    assert len(await site.run_ids()) == 3


async def test_a_schedule_that_cannot_be_read_stops_no_other(site: Site) -> None:
    table = site.twins[0].fabric.private
    await table.insert(make_row("schedules", "another", {"json": '{"name": "another"}'}))
    await site.add()
    await site.race(seconds=60)
    assert await site.states() == ["launched"]
    assert [view.schedule.name for view in await site.schedules.list()] == ["nightly"]


class Died(BaseException):
    """Simulated immediate end of a coordinator."""


def die(*_: object, **__: object) -> Any:
    raise Died


@pytest.mark.parametrize("verb", ["prepare", "release"])
async def test_a_coordinator_that_dies_while_it_fires_is_replaced(
    site: Site, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Test a failure before the run is stored, and one after the row has state launched."""
    await site.add(runs_max_count=1)
    dying, heir = site.twins
    site.clock.forward(60)
    await site.beat()
    monkeypatch.setattr(dying.coordinator, verb, die)
    with pytest.raises(Died):
        await dying.schedules.tick()
    assert await site.run_ids() == []
    await heir.schedules.tick()
    if verb == "prepare":
        # The coordinator may only be slow.
        assert await site.run_ids() == []
        site.clock.forward(TAKEOVER_S + 1)
        await site.beat()
        await heir.schedules.tick()
    (row,) = await site.history()
    assert (row.state, [row.run_id]) == (FiringState.LAUNCHED, await site.run_ids())


def then(twin: Twin, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> list[str]:
    """Execute ``work`` after a run is stored but not yet visible, and return the run's id."""
    prepare: Callable[..., Any] = twin.coordinator.prepare
    hidden: list[str] = []

    async def prepare_then(*args: Any, **kwargs: Any) -> Any:
        plan = await prepare(*args, **kwargs)
        hidden.append(plan.run_id)
        await work()
        return plan

    monkeypatch.setattr(twin.coordinator, "prepare", prepare_then)
    return hidden


@pytest.mark.parametrize("paused", [True, False])
async def test_what_a_dead_coordinator_had_stored_goes_with_an_instant_that_is_missed(
    site: Site, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    """Test that the hidden run is removed, because it is in no list."""
    await site.add(cron="*/10 * * * *")
    dying, heir = site.twins
    hidden = then(dying, monkeypatch, die)
    site.clock.forward(570)
    await site.beat()
    with pytest.raises(Died):
        await dying.schedules.tick()
    records = heir.fabric.records
    assert await records.read_run(hidden[0]) is not None
    if paused:
        await site.schedules.pause("nightly")
    site.clock.forward(TAKEOVER_S + 1 if paused else 70)
    await heir.schedules.tick()
    assert await site.states() == ["missed"]
    assert await records.read_run(hidden[0]) is None
    assert await records.runs.read_control(hidden[0]) is None


async def test_a_coordinator_that_was_only_slow_does_not_launch_a_second_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that the run of the slow coordinator is never shown after a takeover."""
    await site.add(runs_max_count=1)
    slow, heir = site.twins
    stored, go_on = asyncio.Event(), asyncio.Event()

    async def rest() -> None:
        stored.set()
        await go_on.wait()

    hidden = then(slow, monkeypatch, rest)
    site.clock.forward(60)
    await site.beat()
    firing = asyncio.create_task(slow.schedules.tick())
    await stored.wait()
    # A prepared run is not visible.
    assert await site.run_ids() == []
    site.clock.forward(TAKEOVER_S + 1)
    await site.beat()
    await heir.schedules.tick()
    (won,) = await site.run_ids()
    records = heir.fabric.records
    # The coordinator that took over has dropped it.
    assert await records.read_run(hidden[0]) is None
    await records.private.save_document(
        hidden[0],
        Document.PRICE,
        b"{}",
        # The slow coordinator was still writing this row.
    )
    go_on.set()
    await firing
    await site.race(seconds=1)
    assert await site.run_ids() == [won]
    assert [row.run_id for row in await site.history()] == [won]
    assert (
        await records.private.read_document(hidden[0], Document.PRICE) is None
        # The slow coordinator itself has removed it.
    )


async def test_a_run_of_a_schedule_that_is_removed_while_it_fires_is_dropped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.add()
    one, other = site.twins
    hidden = then(one, monkeypatch, lambda: other.schedules.remove("nightly"))
    site.clock.forward(60)
    await site.beat()
    await site.schedules.tick()
    assert len(hidden) == 1
    assert await site.twins[0].fabric.records.read_run(hidden[0]) is None


@one_table
@pytest.mark.parametrize("apart_s", [1, 60, 86_400])
async def test_of_a_long_history_only_the_newest_rows_are_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, apart_s: int
) -> None:
    instants = [BEGIN - timedelta(seconds=apart_s * back) for back in reversed(range(1500))]
    await site.add(created_at=instants[0])
    table = site.twins[0].fabric.private
    fired = [
        Firing(instant_at=at, state=FiringState.MISSED, noted_at=at, reason="nobody")
        for at in instants
    ]
    rows = [message_row("fired.nightly", f"{row.instant_at:%Y%m%dT%H%M%SZ}", row) for row in fired]
    for start in range(0, len(rows), 100):
        await table.batch(rows[start : start + 100])
    read: list[str] = []
    scan: Callable[..., AsyncIterator[Entity]] = table.scan

    async def counted(*args: Any, **kwargs: Any) -> AsyncIterator[Entity]:
        async for row in scan(*args, **kwargs):
            read.append(row.row_key)
            yield row

    monkeypatch.setattr(table, "scan", counted)
    assert await site.history() == fired[-HISTORY_COUNT:]
    assert len(read) < 600


@one_table
async def test_overlap_skips_queues_or_cancels(site: Site) -> None:
    long = SPEC.model_copy(update={"burst_s": 90})
    for overlap in ("skip", "queue", "cancel"):
        await site.add(overlap, spec=long, overlap=overlap, runs_max_count=2)
    # At 12:01 each schedule starts its first run, which ends at 12:02:56 at the latest.
    await site.race(seconds=30)
    await site.race(seconds=60)
    first = {name: (await site.history(name))[0].run_id for name in ("skip", "queue", "cancel")}
    skipped = (await site.history("skip"))[1]
    assert (skipped.state, skipped.run_id) == (FiringState.SKIPPED, None)
    assert skipped.reason == f"run {first['skip']} is not over"
    waiting = (await site.history("queue"))[1]
    assert (waiting.state, waiting.reason) == (
        FiringState.WAITING,
        f"run {first['queue']} is not over",
    )
    control = await site.twins[0].fabric.records.runs.read_control(first["cancel"] or "")
    assert control is not None
    assert control.cancelled_by == "schedule cancel"
    assert "schedule cancel: its instant 2026-11-20 12:02:00Z is due" in (
        control.cancel_reason or ""
    )
    await site.race(seconds=2)
    assert [row.state for row in await site.history("cancel")] == [FiringState.LAUNCHED] * 2
    # At 12:02:57 the queued run starts.
    await site.race(seconds=55)
    assert [row.state for row in (await site.history("queue"))[:2]] == [FiringState.LAUNCHED] * 2


@one_table
async def test_what_the_fleet_cannot_carry_is_refused_once_and_says_why(site: Site) -> None:
    await site.add(runs_max_count=1)
    site.clock.forward(30)
    await site.schedules.tick()
    # Agents need a moment after the end of a run.
    assert await site.states() == ["waiting"]
    site.clock.forward(FLEET_WAIT_S + 1)
    await site.schedules.tick()
    (row,) = await site.history()
    assert row.state is FiringState.REFUSED
    assert "0 client agents are live" in (row.reason or "")
    await site.race(seconds=50)
    # The next scheduled time is independent.
    assert await site.states() == ["refused", "launched"]


@one_table
async def test_what_is_over_its_budget_is_refused_at_once(site: Site) -> None:
    target = {"objective": {"target_bits_per_second": 180e9}, "budget_usd": 1}
    await site.add(spec=SPEC.model_validate(SPEC.model_dump() | target), cron="*/10 * * * *")
    await site.race(seconds=600)
    (row,) = await site.history()
    assert row.state is FiringState.REFUSED
    assert "above its budget of $1.00" in (row.reason or "")
    assert await site.run_ids() == []


@one_table
async def test_instants_without_a_coordinator_are_on_record_and_the_newest_may_run_late(
    site: Site,
) -> None:
    await site.add(cron="*/10 * * * *")
    await site.add("late", cron="*/10 * * * *", missed="run-late", missed_limit_s=600)
    await site.race(seconds=35 * 60)
    assert await site.states() == ["missed"] * 3
    late = await site.history("late")
    assert [row.state.value for row in late] == ["missed", "missed", "launched"]
    assert "is used instead" in (late[0].reason or "")


@one_table
async def test_a_paused_schedule_fires_nothing_and_makes_up_for_nothing(site: Site) -> None:
    await site.add(cron="*/10 * * * *")
    await site.schedules.pause("nightly")
    await site.race(seconds=1800)
    assert await site.history() == []
    assert (await site.schedules.resume("nightly")).state == "active"
    await site.race(seconds=1)
    assert await site.history() == []
    await site.race(seconds=600)
    assert await site.states() == ["launched"]


@one_table
async def test_a_yearly_schedule_fires_and_is_resumed_after_its_instant(site: Site) -> None:
    new_year = datetime(2027, 1, 1, 2, tzinfo=UTC)
    await site.add(cron="0 2 1 1 *")
    await site.add("paused", cron="0 2 1 1 *")
    await site.schedules.pause("paused")
    await site.race(seconds=(new_year - site.clock.at).total_seconds())
    assert await site.states() == ["launched"]
    assert (await site.schedules.resume("paused")).state == "active"
    assert await site.history("paused") == []


async def test_a_name_is_taken_once_and_free_again_once_removed(site: Site) -> None:
    await site.add()
    with pytest.raises(NameTaken):
        await site.add()
    await site.race(seconds=60)
    (run_id,) = await site.run_ids()
    await site.schedules.remove("nightly")
    for verb in (site.schedules.read, site.schedules.pause, site.schedules.remove):
        with pytest.raises(UnknownSchedule):
            await verb("nightly")
    await site.add()
    assert await site.history() == []
    assert await site.run_ids() == [run_id]


async def test_a_changed_schedule_keeps_its_past_and_fires_by_its_new_cron(site: Site) -> None:
    await site.add()
    await site.beat()
    # The time is then after 12:01.
    site.clock.forward(40)
    await site.schedules.tick()
    before = await site.schedules.read("nightly")
    assert len(before.history) == 1
    now = dict.fromkeys(("created_at", "from_at", "settled_at"), site.clock.at)
    values = {"name": "nightly", "spec": SPEC, "cron": "*/30 * * * *", "created_by": "another"}
    changed = Schedule.model_validate(values | now)
    after = await site.schedules.replace(changed)
    assert after.next_at[0] == BEGIN.replace(minute=30, second=0)
    assert after.schedule.created_by == "tester"
    assert after.schedule.created_at == before.schedule.created_at
    assert (await site.schedules.read("nightly")).history == before.history
    with pytest.raises(UnknownSchedule):
        await site.schedules.replace(changed.model_copy(update={"name": "unheard-of"}))
