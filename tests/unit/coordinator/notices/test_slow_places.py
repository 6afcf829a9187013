"""Tests for the deadline of requests when the server is slow or will never finish."""

import asyncio
import datetime as dt

from broadside.coordinator.device.telemetry.polling import (
    PolledDevice,
    PolledEntry,
    PolledSource,
    PollResult,
)
from broadside.coordinator.notices.announcer import Announcer, NotDelivered, Notice
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.notices.test_announcer import ended_run


class _Stuck:
    """Receiver to block until it is released."""

    name = "stuck"

    def __init__(self) -> None:
        self.called, self.released = asyncio.Event(), asyncio.Event()

    async def deliver(self, notice: Notice) -> None:
        self.called.set()
        await self.released.wait()
        raise NotDelivered(f"{notice.header.run_id}: not delivered")


class _Quick:
    """Receiver to accept all notices."""

    name = "quick"

    def __init__(self) -> None:
        self.received: asyncio.Queue[str] = asyncio.Queue()

    async def deliver(self, notice: Notice) -> None:
        self.received.put_nowait(notice.header.run_id)


async def test_blocked_receiver_does_not_block_other_receivers(
    fabric: Fabric,
) -> None:
    run_id, now = await ended_run(fabric)
    stuck, quick = _Stuck(), _Quick()
    announcer = Announcer(fabric.records, [stuck, quick], lambda: now)
    serving = asyncio.create_task(announcer.run_forever(0.01))
    await stuck.called.wait()
    assert await asyncio.wait_for(quick.received.get(), 10) == run_id
    assert not stuck.released.is_set()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_endless_poll_is_reported_as_missing() -> None:
    """This can happen when an SNMP table has no end but each request is fast."""
    closed: list[bool] = []

    async def ask() -> PollResult:
        for _ in range(10_000):
            await asyncio.sleep(0.01)
        raise AssertionError("the poll was not stopped")

    entry = PolledEntry.model_validate({"device": "fw", "type": "snmp"})
    source = PolledSource(
        entry,
        PolledDevice(request=ask, name="fw", close=lambda: closed.append(True)),
        round_max_s=0.1,
    )
    async with asyncio.timeout(1):
        assert not await source.poll()
    assert closed == [True]
    telemetry = await source.query(
        dt.datetime.fromtimestamp(0, dt.UTC), dt.datetime.fromtimestamp(2**33, dt.UTC)
    )
    assert [issue.text for issue in telemetry.issues] == ["no complete answer within 0.1 s"]
