"""Test event streams over a real table with shared reads, resuming, ending and disconnecting."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.core.live.status import RunStatus
from broadside.coordinator.request_errors import TooManyViewers, UnknownRun
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.import_storage import store_table
from broadside.coordinator.runs.stored_runs import StoredRuns
from broadside.coordinator.scenarios import load
from broadside.coordinator.views.feeds import Feed, FeedEvent, Feeds
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import (
    AgentState,
    ClockReading,
    ClockSource,
    Flow,
    Interval,
    Job,
    Presence,
    Role,
    Side,
    Track,
)
from broadside.exchange.outage_log import utc_now
from tests.unit.coordinator.imports.small_tables import fleet, parse

pytestmark = pytest.mark.live


class Counting(StoredRuns):
    """Stored runs that count the status reads."""

    reads_count = 0

    async def status(self, run_id: str) -> RunStatus:
        self.reads_count += 1
        return await super().status(run_id)


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Coordinator]:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path))
    yield Coordinator(fabric)
    await fabric.close()


async def launched(coordinator: Coordinator) -> str:
    """Launch a run on a simulated fleet, with a burst that begins at once."""
    now = utc_now()
    clock = ClockReading(
        source=ClockSource.CHRONY, read_at=now, synchronised=True, offset_s=0.0, bound_s=0.001
    )
    for index in range(2):
        for role in Role:
            await coordinator.fabric.records.fleet.beat(
                Presence(
                    agent_id=f"{role}{index}",
                    role=role,
                    state=AgentState.IDLE,
                    beat_at=now,
                    started_at=now,
                    address="127.0.0.1",
                    ports=(5201 + index,) if role is Role.SERVER else (),
                    broadside_version="0",
                    engine_version="3.18",
                    gate=True,
                    clock=clock,
                )
            )
    spec = load("smoke", {"lead_s": 1, "burst_s": 20})
    return (await coordinator.launch(spec, by="test")).run_id


async def upload(coordinator: Coordinator, run_id: str, until_s: int) -> None:
    """Store a megabyte per second for both clients, up to ``until_s``."""
    plan = await coordinator.stored.read_plan(run_id)
    burst = plan.bursts[0]
    for job in plan.jobs(burst):
        await coordinator.fabric.records.bursts.save_seconds(job, (_track(job, until_s),), ())


def _track(job: Job, until_s: int) -> Track:
    intervals = [
        Interval(start_s=float(second), end_s=second + 1.0, transferred_bytes=1_000_000)
        for second in range(until_s)
    ]
    return Track(
        side=Side.CLIENT,
        flow=Flow.UP,
        first_data_at_s=job.planned_start_at.timestamp(),
        intervals=tuple(intervals),
    )


async def receive(feed: Feed, last_event_id: str | None, enough: str) -> list[FeedEvent]:
    """Return the events for a viewer, up to the end of the poll with an event named ``enough``."""
    received: list[FeedEvent] = []
    stream = feed.follow(last_event_id)
    async with asyncio.timeout(20):
        async for event in stream:
            received.append(event)
            if event.id is not None and any(item.name == enough for item in received):
                break
    await stream.aclose()
    return received


def seconds(events: list[FeedEvent]) -> list[int]:
    lines: list[dict[str, Any]] = [json.loads(e.data) for e in events if e.name == "seconds"]
    return [second for item in lines for second in item["second"]]


async def test_viewers_share_reads_and_can_resume(
    coordinator: Coordinator,
) -> None:
    coordinator.stored = counting = Counting(coordinator.fabric.records)
    run_id = await launched(coordinator)
    feeds = Feeds(coordinator)
    feed = await feeds.open(run_id, None)
    assert await feeds.open(run_id, None) is feed
    begin_at = (await coordinator.stored.read_plan(run_id)).bursts[0].planned_start_at
    await asyncio.sleep(max(0.0, (begin_at - utc_now()) / timedelta(seconds=1)) + 0.1)
    await upload(coordinator, run_id, 5)
    counting.reads_count = 0
    first = await asyncio.gather(*(receive(feed, None, "seconds") for _ in range(20)))
    assert all(seconds(item) == [0, 1, 2, 3, 4] for item in first)
    # The limit should apply to all twenty viewers together.
    assert counting.reads_count <= 2
    assert {event.name for event in first[0]} >= {"status", "seconds", "figures"}
    # If all viewers have disconnected, there should be no more reads.
    checks = counting.reads_count
    await asyncio.sleep(1.5)
    assert (feeds.viewers_count, counting.reads_count) == (0, checks)
    # A viewer should be able to resume and receive only new events.
    await upload(coordinator, run_id, 7)
    again = await receive(feed, first[0][-1].id, "seconds")
    assert set(seconds(again)) >= {5, 6}
    assert 0 not in seconds(again)
    # If the id is from another coordinator's feed, the events should start from the beginning.
    from_start = await receive(feed, "other.99", "seconds")
    assert set(seconds(from_start)) >= {0, 6}
    begun = [[event.name for event in events].count("begin") for events in (again, from_start)]
    assert begun == [0, 1]


async def test_late_viewer_receives_the_current_time(coordinator: Coordinator) -> None:
    feed = await Feeds(coordinator).open(await launched(coordinator), None)
    early = feed.follow(None)
    await anext(early)
    for _ in range(3):
        await asyncio.sleep(0.7)
        requested_at = utc_now()
        (status,) = [e for e in await receive(feed, None, "status") if e.name == "status"]
        assert requested_at <= datetime.fromisoformat(json.loads(status.data)["now"]) <= utc_now()
    await early.aclose()


async def test_stream_ends_with_the_verdict(
    coordinator: Coordinator,
) -> None:
    run_id = (await store_table(coordinator.fabric.records, parse(fleet(3, 2)), utc_now())).run_id
    feeds = Feeds(coordinator)
    feed = await feeds.open(run_id, 1)
    async with asyncio.timeout(20):
        received = [event async for event in feed.follow(None)]
    assert received[-1].name == "summary"
    assert json.loads(received[-1].data)["run_id"] == run_id
    assert len(seconds(received)) > 200
    status = next(json.loads(event.data) for event in received if event.name == "status")
    assert (status["burst"]["burst"], status["bursts_over_count"]) == (2, 2)
    # No event should be left for a viewer that has received all events.
    async with asyncio.timeout(20):
        assert [event async for event in feed.follow(received[-1].id)] == []


async def test_waiting_for_a_verdict_reads_no_status(
    coordinator: Coordinator,
) -> None:
    coordinator.stored = counting = Counting(coordinator.fabric.records)
    feeds = Feeds(coordinator)
    of_imported = await store_table(coordinator.fabric.records, parse(fleet(3, 2)), utc_now())
    async with asyncio.timeout(20):
        reported = await feeds.verdict(of_imported.run_id)
    assert reported is not None
    assert reported.run_id == of_imported.run_id
    waits = asyncio.create_task(feeds.verdict(await launched(coordinator)))
    await asyncio.sleep(1.5)
    assert (waits.done(), counting.reads_count, feeds.viewers_count) == (False, 0, 0)
    await feeds.close()
    async with asyncio.timeout(5):
        assert await waits is None


async def test_stopping_coordinator_ends_all_streams(coordinator: Coordinator) -> None:
    run_id = await launched(coordinator)
    feeds = Feeds(coordinator)
    feed = await feeds.open(run_id, None)

    async def follow() -> int:
        return len([event async for event in feed.follow(None)])

    viewers = [asyncio.create_task(follow()) for _ in range(3)]
    async with asyncio.timeout(60):
        while feeds.viewers_count < 3:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.05)
    await feeds.close()
    async with asyncio.timeout(5):
        assert all(count > 0 for count in await asyncio.gather(*viewers))
    assert feeds.viewers_count == 0


async def test_limits_viewers_and_rejects_unknown_runs(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from broadside.coordinator.request_errors import UnknownBurst

    run_id = await launched(coordinator)
    feeds = Feeds(coordinator)
    with pytest.raises(UnknownRun):
        await feeds.open("nothing", None)
    with pytest.raises(UnknownBurst, match="burst 9"):
        await feeds.open(run_id, 8)
    monkeypatch.setattr("broadside.coordinator.views.feeds.VIEWERS_MAX_COUNT", 1)
    feed = await feeds.open(run_id, None)
    stream = feed.follow(None)
    await anext(stream)
    with pytest.raises(TooManyViewers, match="1 event streams"):
        await feeds.open(run_id, None)
    await stream.aclose()
    await feeds.open(run_id, None)
