"""Tests for errors in a single run, which should not change other runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from broadside.coordinator.core.live.status import BurstPhase, BurstRows
from broadside.coordinator.core.run_spec import Plan, RunSpec, due_at
from broadside.coordinator.runs import leases
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.dispatch import Dispatch
from broadside.coordinator.views.burst_responses import list_bursts
from broadside.exchange import background
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Control
from broadside.exchange.ports import ExchangeUnavailable, Outgoing, QueueError
from broadside.exchange.records import RunHeader, RunOutcome, RunRecords
from broadside.exchange.records.burst_records import BurstRecords
from tests.unit.coordinator.presences import Clock, fleet

AWAY = ExchangeUnavailable("the queue is away")
SOAK = RunSpec(scenario="soak", pairs_count=1, bursts_count=2, burst_s=10, period_s=60, lead_s=30)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a longer timeout for renewals because the machine can be slow."""
    monkeypatch.setattr(leases, "LOOK_S", 60)


@pytest.fixture
async def fabric(fabric: Fabric) -> Fabric:
    for agent in fleet(2):
        await fabric.records.fleet.beat(agent)
    return fabric


def always(error: Exception) -> Callable[..., Awaitable[Any]]:
    """Return a function to replace a queue method. It will always raise this error."""

    async def fail(*_: object) -> Any:
        raise error

    return fail


@contextlib.asynccontextmanager
async def going(work: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run this in the background for a test. It should not take more than ten seconds."""
    task = asyncio.create_task(work)
    async with asyncio.timeout(10):
        yield task
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def store_unreadable(fabric: Fabric, run_id: str, created_at: datetime) -> None:
    """Store a run with a plan from another version."""
    header = RunHeader(run_id=run_id, scenario="t", created_at=created_at, created_by="tests")
    control = Control(run_id=run_id, lease_until_at=created_at)
    await fabric.records.create_run(header, b'{"version": 99}', control)


async def store_over(fabric: Fabric, run_id: str, created_at: datetime) -> None:
    """Store a run with a verdict."""
    over = RunOutcome(cancelled=False, verdict="pass", ended_at=created_at, completeness_ratio=1.0)
    header = RunHeader(
        run_id=run_id, scenario="t", created_at=created_at, created_by="tests", outcome=over
    )
    await fabric.records.private.show_run(header)


async def is_renewed(fabric: Fabric, plan: Plan, at: datetime) -> None:
    control = await fabric.records.runs.read_control(plan.run_id)
    assert control is not None
    assert control.lease_until_at == at + timedelta(seconds=SOAK.lease_s)


@pytest.mark.parametrize("beside", ["an unreadable one", "201 that are over"])
async def test_run_is_continued_despite_newer_runs(
    fabric: Fabric, clock: Clock, beside: str
) -> None:
    """After a restart, a coordinator has to renew the lease and judge the run.

    There can be 201 newer runs if a schedule is used for a weekend.
    """
    plan = await Coordinator(fabric, now=clock).launch(SOAK, by="tests")
    unreadable = beside.startswith("an")
    if unreadable:
        await store_unreadable(fabric, "newer", clock.at + timedelta(seconds=1))
    for number in range(0 if unreadable else 201):
        await store_over(fabric, f"later-{number}", clock.at + timedelta(seconds=1 + number))
    clock.forward(20)
    heir = Coordinator(fabric, now=clock)
    await heir.tick()
    await is_renewed(fabric, plan, clock.at)
    clock.at = due_at(plan.bursts[-1]) + timedelta(seconds=1)
    await heir.tick()
    summary = await heir.stored.summary(plan.run_id)
    assert summary is not None
    assert len(summary.bursts) == 2
    assert await fabric.records.private.list_open() == ["newer"] * unreadable


async def test_lists_closed_bursts_without_reading_rows(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There can be a hundred thousand rows for a day, so they are not read."""
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


async def test_does_not_search_again_for_a_removed_run(fabric: Fabric, clock: Clock) -> None:
    coordinator = Coordinator(fabric, now=clock)
    plan = await coordinator.launch(SOAK, by="tests")
    await fabric.records.drop_run(plan.run_id)
    heir = Coordinator(fabric, now=clock)
    await heir.tick()
    await heir.tick()
    assert plan.run_id not in await fabric.records.private.list_open()


@pytest.mark.parametrize("error", [QueueError("no"), AWAY], ids=["refused", "away"])
async def test_queue_failure_of_one_run_does_not_stop_other_leases(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The outage is raised when all runs are done."""
    first = Coordinator(fabric, now=clock)
    older = await first.launch(SOAK, by="tests")
    clock.forward(1)
    newer = await first.prepare(SOAK, by="tests", run_id="newer", listed=True)
    monkeypatch.setattr(fabric.queue, "send", always(error))
    clock.forward(20)
    heir = Coordinator(fabric, now=clock)
    if error is AWAY:
        with pytest.raises(ExchangeUnavailable):
            await heir.tick()
    else:
        await heir.tick()
    for plan in (older, newer):
        await is_renewed(fabric, plan, clock.at)


async def test_judges_a_cancelled_run_while_its_messages_cannot_be_removed(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are removed when this is possible again."""
    coordinator = Coordinator(fabric, now=clock)
    plan = await coordinator.launch(SOAK, by="tests")
    clock.forward(5)

    with monkeypatch.context() as patch:
        patch.setattr(fabric.queue, "cancel", always(AWAY))
        with pytest.raises(ExchangeUnavailable):
            await coordinator.cancel(plan.run_id, by="ann", reason="too dear")
        for _ in range(2):
            with pytest.raises(ExchangeUnavailable):
                await coordinator.tick()
    assert await coordinator.stored.summary(plan.run_id) is not None
    removed: list[int] = []

    async def cancel(numbers: Sequence[int]) -> int:
        removed.extend(numbers)
        return len(numbers)

    monkeypatch.setattr(fabric.queue, "cancel", cancel)
    await coordinator.tick()
    # One message per burst.
    assert len(removed) == 2
    assert await fabric.records.private.list_open() == []


async def test_queues_many_bursts_over_several_passes(fabric: Fabric, clock: Clock) -> None:
    plan = await Coordinator(fabric, now=clock).prepare(SOAK, by="tests", run_id="soak-1")
    dispatch = Dispatch(fabric.queue, fabric.records, clock)
    for expected in ([0], [0, 1], [0, 1]):
        await dispatch.queue_bursts(plan, within_s=0)
        assert list(await fabric.records.private.read_queued(plan.run_id)) == expected


async def test_slow_launch_does_not_delay_other_runs(
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


async def test_queues_a_released_run_during_a_long_tick(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a large burst is measured, this run should not have to wait for its jobs."""
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
    async with going(coordinator.run_forever(0.01)):
        await coordinator.release("soak-1")
        await sent.wait()


async def test_unreadable_control_row_does_not_stop_other_leases(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(fabric, now=clock)
    await coordinator.launch(SOAK, by="tests", run_id="bad")
    good = await coordinator.launch(SOAK, by="tests", run_id="good")
    renew = RunRecords.renew_lease

    async def renewed(records: RunRecords, run_id: str, until_at: datetime) -> Control:
        if run_id == "bad":
            raise ValueError("invalid row")
        return await renew(records, run_id, until_at)

    monkeypatch.setattr(RunRecords, "renew_lease", renewed)
    clock.forward(20)
    await coordinator._leases.renew()
    await is_renewed(fabric, good, clock.at)


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> dict[str, asyncio.Event]:
    """Set an event when a run has been renewed three times. Do not answer for "bad"."""
    monkeypatch.setattr(leases, "LOOK_S", 0.05)
    fields = {name: asyncio.Event() for name in ("bad", "good")}
    counts = dict.fromkeys(fields, 0)
    renew = RunRecords.renew_lease

    async def counted(records: RunRecords, run_id: str, until_at: datetime) -> Control:
        counts[run_id] += 1
        if counts[run_id] == 3:
            fields[run_id].set()
        if run_id == "bad":
            await asyncio.Event().wait()
        clock.forward(20)
        return await renew(records, run_id, until_at)

    monkeypatch.setattr(RunRecords, "renew_lease", counted)
    return fields


async def test_blocked_control_row_does_not_stop_other_leases(
    fabric: Fabric, clock: Clock, renewed: dict[str, asyncio.Event]
) -> None:
    coordinator = Coordinator(fabric, now=clock)
    for name in renewed:
        await coordinator.launch(SOAK, by="tests", run_id=name)
    async with going(coordinator._leases.renew_forever()):
        await renewed["good"].wait()
        await coordinator.tick()


async def test_retries_a_renewal_after_a_timeout(
    fabric: Fabric,
    clock: Clock,
    renewed: dict[str, asyncio.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "RENEWALS_COUNT", 10_000)
    coordinator = Coordinator(fabric, now=clock)
    await coordinator.launch(SOAK, by="tests", run_id="bad")
    async with going(coordinator._leases.renew_forever()):
        await renewed["bad"].wait()


class Faulty:
    """Companion that will always raise an error."""

    def __init__(self) -> None:
        self.failed = False
        self.restarted = asyncio.Event()

    async def run_forever(self, tick_s: float) -> None:
        if self.failed:
            self.restarted.set()
        self.failed = True
        raise ValueError("a fault of ours")


async def test_restarts_a_failed_companion_without_other_effects(
    fabric: Fabric, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RESTART_PAUSE_S", 0.01)
    coordinator, faulty = Coordinator(fabric, now=clock), Faulty()
    coordinator.companions.append(faulty)
    async with going(coordinator.run_forever(0.01)) as loop:
        await faulty.restarted.wait()
        assert not loop.done()
