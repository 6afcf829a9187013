"""Test that two competing coordinators fire each scheduled time once, on all coordinator tables.

Tests marked with :data:`one_table` use one table. They depend on the clock and use only table
features that ``test_table`` tests on all adapters.
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
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue, QueueRules
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import AgentState, Presence, Role
from broadside.exchange.ports import Entity
from broadside.exchange.records import Document
from broadside.exchange.rows import make_row, message_row
from tests.contract.adapters import COORDINATOR_TABLES, TABLES, Place
from tests.one_table import fabric_in
from tests.unit.coordinator.presences import Clock, presence

one_table = pytest.mark.parametrize("table_place", ["embedded"], indirect=True)

BEGIN = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
SPEC = RunSpec(scenario="smoke", pairs_count=1, burst_s=1, lead_s=1)


@pytest.fixture(params=COORDINATOR_TABLES)
def table_place(request: pytest.FixtureRequest) -> Place:
    return TABLES[request.param].make(request)


@dataclass(frozen=True)
class Member:
    """Coordinator with its connections."""

    fabric: Fabric
    coordinator: Coordinator
    schedules: Schedules


@dataclass(frozen=True)
class Site:
    """Coordinators on one table and one queue, with a simulated fleet."""

    clock: Clock
    members: tuple[Member, Member]

    @property
    def schedules(self) -> Schedules:
        return self.members[0].schedules

    async def add(self, name: str = "nightly", **changes: Any) -> None:
        values = {"name": name, "spec": SPEC, "cron": "* * * * *", "created_by": "tester"}
        now = dict.fromkeys(("created_at", "from_at", "settled_at"), self.clock.at)
        await self.schedules.add(Schedule.model_validate(values | now | changes))

    async def beat(self, **changes: object) -> None:
        """Publish four pairs, so that concurrent schedules do not need to share agents."""
        reported = {"beat_at": self.clock.at, "state": AgentState.IDLE} | changes
        for role, index in product((Role.CLIENT, Role.SERVER), range(1, 5)):
            agent: Presence = presence(role, index, **reported)
            await self.members[0].fabric.records.fleet.beat(agent)

    async def race(self, seconds: float = 0) -> None:
        """Advance the clock and run both schedulers concurrently, twice."""
        self.clock.forward(seconds)
        await self.beat()
        for _ in range(2):
            await asyncio.gather(*(member.schedules.tick() for member in self.members))

    async def history(self, name: str = "nightly") -> list[Firing]:
        return list((await self.schedules.read(name)).history)

    async def states(self) -> list[str]:
        return [row.state.value for row in await self.history()]

    async def run_ids(self) -> list[str]:
        return [
            run.run_id
            async for run in self.members[0].coordinator.fabric.records.private.list_runs(
                limit=1000
            )
        ]


@pytest.fixture
async def site(table_place: Place, tmp_path: Path) -> AsyncIterator[Site]:
    clock = Clock(BEGIN)

    def member() -> Member:
        queue = EmbeddedQueue(
            tmp_path / "queue",
            QueueRules(lock_s=60, deliveries_max_count=5, duplicates_s=600),
            busy_s=30,
        )
        fabric = fabric_in(queue, table_place.open_table())
        coordinator = Coordinator(fabric, now=clock)
        return Member(
            fabric=fabric,
            coordinator=coordinator,
            schedules=Schedules(fabric.private, coordinator, now=clock),
        )

    site = Site(clock=clock, members=(member(), member()))
    yield site
    for item in site.members:
        await item.fabric.close()


async def test_two_coordinators_fire_every_time_once(site: Site) -> None:
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
async def test_schedules_of_one_time_do_not_block_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test with a queue that needs more than a minute to send."""
    for name in ("one", "two"):
        await site.add(name, spec=SPEC.model_copy(update={"lead_s": 300}), runs_max_count=1)
    coordinator, queue = site.members[0].coordinator, site.members[0].fabric.queue
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
        assert list(await site.members[0].fabric.records.private.read_queued(run_id)) == [0]


@one_table
async def test_schedule_ends_after_its_last_run(site: Site) -> None:
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


async def test_unreadable_schedule_does_not_stop_others(site: Site) -> None:
    table = site.members[0].fabric.private
    await table.insert(make_row("schedules", "another", {"json": '{"name": "another"}'}))
    await site.add()
    await site.race(seconds=60)
    assert await site.states() == ["launched"]
    assert [view.schedule.name for view in await site.schedules.list()] == ["nightly"]


class Died(BaseException):
    """Simulated immediate end of a coordinator."""


def die(*_: object, **__: object) -> Any:
    raise Died


@pytest.mark.parametrize("method_name", ["prepare", "release"])
async def test_dead_coordinator_is_replaced_during_firing(
    site: Site, monkeypatch: pytest.MonkeyPatch, method_name: str
) -> None:
    """Test a failure before the run is stored, and one after the row is set to launched."""
    await site.add(runs_max_count=1)
    failing, successor = site.members
    site.clock.forward(60)
    await site.beat()
    monkeypatch.setattr(failing.coordinator, method_name, die)
    with pytest.raises(Died):
        await failing.schedules.tick()
    assert await site.run_ids() == []
    await successor.schedules.tick()
    if method_name == "prepare":
        # The coordinator may only be slow.
        assert await site.run_ids() == []
        site.clock.forward(TAKEOVER_S + 1)
        await site.beat()
        await successor.schedules.tick()
    (row,) = await site.history()
    assert (row.state, [row.run_id]) == (FiringState.LAUNCHED, await site.run_ids())


def run_before_release(
    member: Member, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]
) -> list[str]:
    """Run ``work`` when a run is stored but cannot be seen yet, and return the run id."""
    prepare: Callable[..., Any] = member.coordinator.prepare
    hidden: list[str] = []

    async def prepare_then(*args: Any, **kwargs: Any) -> Any:
        plan = await prepare(*args, **kwargs)
        hidden.append(plan.run_id)
        await work()
        return plan

    monkeypatch.setattr(member.coordinator, "prepare", prepare_then)
    return hidden


@pytest.mark.parametrize("paused", [True, False])
async def test_hidden_run_is_removed_when_its_time_is_missed(
    site: Site, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    """Test that the hidden run will be removed, because it is not in any list."""
    await site.add(cron="*/10 * * * *")
    failing, successor = site.members
    hidden = run_before_release(failing, monkeypatch, die)
    site.clock.forward(570)
    await site.beat()
    with pytest.raises(Died):
        await failing.schedules.tick()
    records = successor.fabric.records
    assert await records.read_run(hidden[0]) is not None
    if paused:
        await site.schedules.pause("nightly")
    site.clock.forward(TAKEOVER_S + 1 if paused else 70)
    await successor.schedules.tick()
    assert await site.states() == ["missed"]
    assert await records.read_run(hidden[0]) is None
    assert await records.runs.read_control(hidden[0]) is None


async def test_slow_coordinator_does_not_launch_a_second_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that the run from the slow coordinator will not be shown after a takeover."""
    await site.add(runs_max_count=1)
    slow, successor = site.members
    stored, release = asyncio.Event(), asyncio.Event()

    async def wait_for_release() -> None:
        stored.set()
        await release.wait()

    hidden = run_before_release(slow, monkeypatch, wait_for_release)
    site.clock.forward(60)
    await site.beat()
    firing = asyncio.create_task(slow.schedules.tick())
    await stored.wait()
    # A prepared run cannot be seen.
    assert await site.run_ids() == []
    site.clock.forward(TAKEOVER_S + 1)
    await site.beat()
    await successor.schedules.tick()
    (launched_id,) = await site.run_ids()
    records = successor.fabric.records
    # The coordinator that took over has dropped it.
    assert await records.read_run(hidden[0]) is None
    await records.private.save_document(
        hidden[0],
        Document.PRICE,
        b"{}",
        # The slow coordinator was still writing this row.
    )
    release.set()
    await firing
    await site.race(seconds=1)
    assert await site.run_ids() == [launched_id]
    assert [row.run_id for row in await site.history()] == [launched_id]
    assert (
        await records.private.read_document(hidden[0], Document.PRICE) is None
        # The slow coordinator has removed it.
    )


async def test_run_of_a_removed_schedule_is_dropped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.add()
    one, other = site.members
    hidden = run_before_release(one, monkeypatch, lambda: other.schedules.remove("nightly"))
    site.clock.forward(60)
    await site.beat()
    await site.schedules.tick()
    assert len(hidden) == 1
    assert await site.members[0].fabric.records.read_run(hidden[0]) is None


@one_table
@pytest.mark.parametrize("interval_s", [1, 60, 86_400])
async def test_only_the_newest_rows_of_a_long_history_are_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, interval_s: int
) -> None:
    instants = [BEGIN - timedelta(seconds=interval_s * back) for back in reversed(range(1500))]
    await site.add(created_at=instants[0])
    table = site.members[0].fabric.private
    fired = [
        Firing(instant_at=at, state=FiringState.MISSED, noted_at=at, reason="no coordinator")
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
    # At 12:01 all schedules start their first run, which will end at 12:02:56 at the latest.
    await site.race(seconds=30)
    await site.race(seconds=60)
    first = {name: (await site.history(name))[0].run_id for name in ("skip", "queue", "cancel")}
    skipped = (await site.history("skip"))[1]
    assert (skipped.state, skipped.run_id) == (FiringState.SKIPPED, None)
    assert skipped.reason == f"run {first['skip']} has not ended"
    waiting = (await site.history("queue"))[1]
    assert (waiting.state, waiting.reason) == (
        FiringState.WAITING,
        f"run {first['queue']} has not ended",
    )
    control = await site.members[0].fabric.records.runs.read_control(first["cancel"] or "")
    assert control is not None
    assert control.cancelled_by == "schedule cancel"
    assert "schedule cancel: its start time 2026-11-20 12:02:00Z is due" in (
        control.cancel_reason or ""
    )
    await site.race(seconds=2)
    assert [row.state for row in await site.history("cancel")] == [FiringState.LAUNCHED] * 2
    # At 12:02:57 the queued run will start.
    await site.race(seconds=55)
    assert [row.state for row in (await site.history("queue"))[:2]] == [FiringState.LAUNCHED] * 2


@one_table
async def test_infeasible_run_is_refused_once_with_a_reason(site: Site) -> None:
    await site.add(runs_max_count=1)
    site.clock.forward(30)
    await site.schedules.tick()
    # Agents need a moment when a run has ended.
    assert await site.states() == ["waiting"]
    site.clock.forward(FLEET_WAIT_S + 1)
    await site.schedules.tick()
    (row,) = await site.history()
    assert row.state is FiringState.REFUSED
    assert "0 client agents are live" in (row.reason or "")
    await site.race(seconds=50)
    # The next scheduled time does not depend on it.
    assert await site.states() == ["refused", "launched"]


@one_table
async def test_run_above_its_budget_is_refused_immediately(site: Site) -> None:
    target = {"objective": {"target_bits_per_second": 180e9}, "budget_usd": 1}
    await site.add(spec=SPEC.model_validate(SPEC.model_dump() | target), cron="*/10 * * * *")
    await site.race(seconds=600)
    (row,) = await site.history()
    assert row.state is FiringState.REFUSED
    assert "above its budget of $1.00" in (row.reason or "")
    assert await site.run_ids() == []


@one_table
async def test_missed_times_are_recorded_and_the_newest_may_run_late(
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
async def test_paused_schedule_does_not_fire_later(site: Site) -> None:
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
async def test_yearly_schedule_fires_and_resumes(site: Site) -> None:
    new_year = datetime(2027, 1, 1, 2, tzinfo=UTC)
    await site.add(cron="0 2 1 1 *")
    await site.add("paused", cron="0 2 1 1 *")
    await site.schedules.pause("paused")
    await site.race(seconds=(new_year - site.clock.at).total_seconds())
    assert await site.states() == ["launched"]
    assert (await site.schedules.resume("paused")).state == "active"
    assert await site.history("paused") == []


async def test_name_is_unique_and_free_after_removal(site: Site) -> None:
    await site.add()
    with pytest.raises(NameTaken):
        await site.add()
    await site.race(seconds=60)
    (run_id,) = await site.run_ids()
    await site.schedules.remove("nightly")
    for method_name in (site.schedules.read, site.schedules.pause, site.schedules.remove):
        with pytest.raises(UnknownSchedule):
            await method_name("nightly")
    await site.add()
    assert await site.history() == []
    assert await site.run_ids() == [run_id]


async def test_changed_schedule_preserves_its_history(site: Site) -> None:
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
        await site.schedules.replace(changed.model_copy(update={"name": "unknown"}))
