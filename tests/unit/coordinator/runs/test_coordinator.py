"""One run's trouble is its own: the care for the others goes on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.live.status import BurstPhase, BurstRows, due_at
from coordinator.core.plan.spec import Plan, RunSpec
from coordinator.runs import leases
from coordinator.runs.coordinator import Coordinator
from coordinator.runs.dispatch import Dispatch
from coordinator.views.burst_answers import list_bursts
from exchange import background
from exchange.fabric import Fabric, FabricSettings, open_fabric
from exchange.messages import Control
from exchange.ports import ExchangeUnavailable, Outgoing, QueueError
from exchange.records import RunHeader, RunOutcome, RunRecords
from exchange.records.burst_records import BurstRecords
from tests.unit.coordinator.presences import NOW, fleet

SOAK = RunSpec(scenario="soak", pairs_count=1, bursts_count=2, burst_s=10, period_s=60, lead_s=30)


class Clock:
    """Put forward by hand."""

    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> datetime:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine's renewals are waited for."""
    monkeypatch.setattr(leases, "LOOK_S", 60)


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[Fabric]:
    opened = open_fabric(FabricSettings(data_dir=tmp_path))
    for agent in fleet(2):
        await opened.records.fleet.beat(agent)
    yield opened
    await opened.close()


async def store_unreadable(fabric: Fabric, run_id: str, created_at: datetime) -> None:
    """A run with a plan that another Broadside wrote."""
    header = RunHeader(run_id=run_id, scenario="t", created_at=created_at, created_by="tests")
    control = Control(run_id=run_id, lease_until_at=created_at)
    await fabric.records.create_run(header, b'{"version": 99}', control)


async def store_over(fabric: Fabric, run_id: str, created_at: datetime) -> None:
    """A run that has its verdict."""
    over = RunOutcome(cancelled=False, verdict="pass", ended_at=created_at, completeness_ratio=1.0)
    header = RunHeader(
        run_id=run_id, scenario="t", created_at=created_at, created_by="tests", outcome=over
    )
    await fabric.records.private.show_run(header)


async def lease_until(fabric: Fabric, plan: Plan) -> datetime:
    control = await fabric.records.runs.read_control(plan.run_id)
    assert control is not None
    return control.lease_until_at


async def test_a_run_that_cannot_be_read_stops_no_other(fabric: Fabric, clock: Clock) -> None:
    """After a restart the older run's lease is held, and it is measured and judged."""
    plan = await Coordinator(fabric, now=clock).launch(SOAK, by="tests")
    await store_unreadable(fabric, "newer", clock.at + timedelta(seconds=1))
    clock.forward(20)
    heir = Coordinator(fabric, now=clock)
    await heir.tick()
    assert await lease_until(fabric, plan) == clock.at + timedelta(seconds=SOAK.lease_s)
    clock.at = due_at(plan.bursts[-1]) + timedelta(seconds=1)
    await heir.tick()
    summary = await heir.stored.summary(plan.run_id)
    assert summary is not None
    assert len(summary.bursts) == 2


async def test_bursts_that_are_closed_are_listed_without_their_rows(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a day of a thousand pairs those are a hundred thousand."""
    coordinator = Coordinator(fabric, now=clock)
    plan = await coordinator.launch(SOAK, by="tests")
    clock.at = due_at(plan.bursts[-1]) + timedelta(seconds=1)
    await coordinator.tick()
    heir = Coordinator(fabric, now=clock)

    async def unwanted(*_: object) -> BurstRows:
        raise AssertionError("a closed burst's rows were read")

    for name in ("read_claims", "read_reports", "read_changed"):
        monkeypatch.setattr(BurstRecords, name, unwanted)
    first, following = await list_bursts(heir, plan.run_id, limit=1, cursor=0)
    rest, none = await list_bursts(heir, plan.run_id, limit=9, cursor=following or 0)
    assert none is None
    entries = [*first, *rest]
    assert [entry.status.index for entry in entries] == [0, 1]
    assert {entry.status.phase for entry in entries} == {BurstPhase.OVER}
    assert (await list_bursts(heir, plan.run_id, limit=9, cursor=2))[0] == []


async def test_an_old_run_is_looked_after_however_many_came_after_it(
    fabric: Fabric, clock: Clock
) -> None:
    """A weekend's soak under a schedule of every few minutes."""
    plan = await Coordinator(fabric, now=clock).launch(SOAK, by="tests")
    for number in range(201):
        await store_over(fabric, f"later-{number}", clock.at + timedelta(seconds=1 + number))
    clock.forward(20)
    heir = Coordinator(fabric, now=clock)
    await heir.tick()
    assert await lease_until(fabric, plan) == clock.at + timedelta(seconds=SOAK.lease_s)
    clock.at = due_at(plan.bursts[-1]) + timedelta(seconds=1)
    await heir.tick()
    assert await heir.stored.summary(plan.run_id) is not None
    assert await fabric.records.private.list_open() == []


async def test_a_run_that_is_gone_is_not_looked_for_again(fabric: Fabric, clock: Clock) -> None:
    coordinator = Coordinator(fabric, now=clock)
    plan = await coordinator.launch(SOAK, by="tests")
    await fabric.records.drop_run(plan.run_id)
    heir = Coordinator(fabric, now=clock)
    await heir.tick()
    await heir.tick()
    assert plan.run_id not in await fabric.records.private.list_open()


async def test_what_the_queue_refuses_of_one_run_stops_no_other(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Coordinator(fabric, now=clock)
    older = await first.launch(SOAK, by="tests")
    clock.forward(1)
    await first.prepare(SOAK, by="tests", run_id="newer", listed=True)

    async def refused(*_: object) -> Any:
        raise QueueError("no")

    monkeypatch.setattr(fabric.queue, "send", refused)
    clock.forward(20)
    await Coordinator(fabric, now=clock).tick()
    assert await lease_until(fabric, older) == clock.at + timedelta(seconds=SOAK.lease_s)


async def test_a_run_is_judged_while_its_messages_cannot_be_taken_off(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they are taken off as soon as that can be done."""
    coordinator = Coordinator(fabric, now=clock)
    plan = await coordinator.launch(SOAK, by="tests")
    clock.forward(5)

    async def away(*_: object) -> Any:
        raise ExchangeUnavailable("the queue is away")

    with monkeypatch.context() as patch:
        patch.setattr(fabric.queue, "cancel", away)
        with pytest.raises(ExchangeUnavailable):
            await coordinator.cancel(plan.run_id, by="ann", reason="too dear")
        for _ in range(2):
            with pytest.raises(ExchangeUnavailable):
                await coordinator.tick()
    assert await coordinator.stored.summary(plan.run_id) is not None
    taken: list[int] = []

    async def cancel(numbers: Sequence[int]) -> int:
        taken.extend(numbers)
        return len(numbers)

    monkeypatch.setattr(fabric.queue, "cancel", cancel)
    await coordinator.tick()
    assert len(taken) == 2  # one pair, two bursts
    assert await fabric.records.private.list_open() == []


async def test_many_bursts_are_queued_over_several_looks(fabric: Fabric, clock: Clock) -> None:
    plan = await Coordinator(fabric, now=clock).prepare(SOAK, by="tests", run_id="soak-1")
    dispatch = Dispatch(fabric.queue, fabric.records, clock)
    for expected in ([0], [0, 1], [0, 1]):
        await dispatch.queue_bursts(plan, within_s=0)
        assert list(await fabric.records.private.read_queued(plan.run_id)) == expected


async def test_a_launch_that_takes_long_keeps_no_other_run_waiting(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(fabric, now=clock)
    older = await coordinator.launch(SOAK, by="tests")
    sending, go_on = asyncio.Event(), asyncio.Event()
    send = fabric.queue.send

    async def send_slowly(messages: Sequence[Outgoing]) -> Sequence[int]:
        sending.set()
        await go_on.wait()
        return await send(messages)

    monkeypatch.setattr(fabric.queue, "send", send_slowly)
    launch = asyncio.create_task(coordinator.launch(SOAK, by="tests", run_id="newer"))
    await sending.wait()
    clock.at = due_at(older.bursts[-1]) + timedelta(seconds=1)
    async with asyncio.timeout(10):
        await coordinator.tick()
    assert await coordinator.stored.summary(older.run_id) is not None
    go_on.set()
    await launch


async def test_a_released_run_is_queued_while_a_tick_is_busy(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst of a thousand pairs takes seconds to measure: a scheduled run would begin without
    its jobs."""
    coordinator = Coordinator(fabric, now=clock)
    sent = asyncio.Event()

    async def send(messages: Sequence[Outgoing]) -> Sequence[int]:
        sent.set()
        return [0] * len(messages)

    async def busy() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(fabric.queue, "send", send)
    monkeypatch.setattr(coordinator, "tick", busy)
    await coordinator.prepare(SOAK, by="tests", run_id="soak-1")
    loop = asyncio.create_task(coordinator.run_forever(0.01))
    await coordinator.release("soak-1")
    async with asyncio.timeout(10):
        await sent.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop


async def test_an_outage_is_told_after_every_run_was_looked_at(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Coordinator(fabric, now=clock)
    older = await first.launch(SOAK, by="tests")
    clock.forward(1)
    newer = await first.prepare(SOAK, by="tests", run_id="newer", listed=True)

    async def away(*_: object) -> Any:
        raise ExchangeUnavailable("the queue is away")

    monkeypatch.setattr(fabric.queue, "send", away)
    heir = Coordinator(fabric, now=clock)
    clock.forward(20)
    with pytest.raises(ExchangeUnavailable):
        await heir.tick()
    for plan in (older, newer):
        assert await lease_until(fabric, plan) == clock.at + timedelta(seconds=SOAK.lease_s)


async def test_a_control_row_that_cannot_be_read_costs_no_other_its_lease(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(fabric, now=clock)
    await coordinator.launch(SOAK, by="tests", run_id="bad")
    good = await coordinator.launch(SOAK, by="tests", run_id="good")
    renew = RunRecords.renew_lease

    async def renewed(records: RunRecords, run_id: str, until_at: datetime) -> Control:
        if run_id == "bad":
            raise ValueError("its row is no row")
        return await renew(records, run_id, until_at)

    monkeypatch.setattr(RunRecords, "renew_lease", renewed)
    clock.forward(20)
    await coordinator._leases.renew()
    assert await lease_until(fabric, good) == clock.at + timedelta(seconds=SOAK.lease_s)


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> dict[str, asyncio.Event]:
    """Set once a run's renewal was asked for three times; those of "bad" get no answer."""
    monkeypatch.setattr(leases, "LOOK_S", 0.05)
    asked = {name: asyncio.Event() for name in ("bad", "good")}
    counts = dict.fromkeys(asked, 0)
    renew = RunRecords.renew_lease

    async def counted(records: RunRecords, run_id: str, until_at: datetime) -> Control:
        counts[run_id] += 1
        if counts[run_id] == 3:
            asked[run_id].set()
        if run_id == "bad":
            await asyncio.Event().wait()
        clock.forward(20)
        return await renew(records, run_id, until_at)

    monkeypatch.setattr(RunRecords, "renew_lease", counted)
    return asked


async def test_a_control_row_that_does_not_answer_costs_no_other_its_lease(
    fabric: Fabric, clock: Clock, renewed: dict[str, asyncio.Event]
) -> None:
    coordinator = Coordinator(fabric, now=clock)
    for name in renewed:
        await coordinator.launch(SOAK, by="tests", run_id=name)
    keeping = asyncio.create_task(coordinator._leases.renew_forever())
    async with asyncio.timeout(10):
        await renewed["good"].wait()
        await coordinator.tick()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_renewal_without_an_answer_is_given_up_and_asked_for_again(
    fabric: Fabric,
    clock: Clock,
    renewed: dict[str, asyncio.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "RENEWALS_COUNT", 10_000)
    coordinator = Coordinator(fabric, now=clock)
    await coordinator.launch(SOAK, by="tests", run_id="bad")
    keeping = asyncio.create_task(coordinator._leases.renew_forever())
    async with asyncio.timeout(10):
        await renewed["bad"].wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


class Faulty:
    """A companion that fails as nobody expects."""

    def __init__(self) -> None:
        self.failed = False
        self.begun_again = asyncio.Event()

    async def run_forever(self, tick_s: float) -> None:
        if self.failed:
            self.begun_again.set()
        self.failed = True
        raise ValueError("a fault of ours")


async def test_a_companion_that_fails_is_begun_again_and_ends_nothing(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RESTART_PAUSE_S", 0.01)
    coordinator, faulty = Coordinator(fabric, now=clock), Faulty()
    coordinator.companions.append(faulty)
    loop = asyncio.create_task(coordinator.run_forever(0.01))
    async with asyncio.timeout(10):
        await faulty.begun_again.wait()
    assert not loop.done()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
