"""Measure the CPU seconds and the memory of a live snapshot with 1,000 pairs.

To run it, use ``python -m tests.bench.bench_live [pairs] [second]``. The burst has reached that
second. After this, all pairs upload every :data:`UPLOAD_S` seconds, a share of them in each second,
and viewers follow the feed. Only the process of the feed is measured, because the agents are in
another process. A snapshot is compared with the time to read and measure the whole burst.
"""

import asyncio
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from typing import Final

from broadside.coordinator.process_memory import collect_rarely, keep_one_heap
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.live_burst import LiveBurst
from broadside.coordinator.views.feeds import Feeds
from tests.bench.limit_rows import Row, show
from tests.bench.stored_fleet import START, embedded, plan_of, run_in_process, store, upload

PAIRS: Final = 1000
SECOND: Final = 1700
BURST_S: Final = 1800
UPLOAD_S: Final = 3
VIEWERS_COUNT: Final = 20
WATCHED_S: Final = 40
LOOKS_COUNT: Final = 9


def rows(pairs: int = PAIRS, second: int = SECOND) -> Iterator[Row]:
    """Yield the cost of one snapshot, and of a coordinator with viewers."""
    with tempfile.TemporaryDirectory() as folder:
        run_in_process(_fill, folder, pairs, second)
        check_s, total_s = run_in_process(_snapshots, folder, pairs, second)
    name = f"{pairs} pairs at second {second}"
    yield Row(
        name=f"{name}: a live look",
        value=check_s,
        unit="CPU-s",
        limit=0.15,
        peer="all read and measured",
        peer_value=total_s,
    )
    with tempfile.TemporaryDirectory() as folder:
        run_in_process(_fill, folder, pairs, second)
        context = multiprocessing.get_context("spawn")
        ready = context.Event()
        agents = context.Process(target=_agents, args=(folder, pairs, second, ready))
        agents.start()
        try:
            with context.Pool(1, initializer=_set_event, initargs=(ready,)) as pool:
                core, updates, peak_mb = pool.apply(_watched, (folder, pairs, second))
        finally:
            agents.terminate()
            agents.join()
    name = f"{name}, {VIEWERS_COUNT} viewers"
    yield Row(name=f"{name}: seconds a look", value=WATCHED_S / max(1, updates), unit="s", limit=2)
    yield Row(name=f"{name}: of a core", value=core, unit="", limit=0.6)
    yield Row(name=f"{name}: memory", value=peak_mb, unit="MB", limit=350)


async def _fill(folder: str, pairs: int, second: int) -> None:
    fabric, plan = embedded(folder), plan_of(pairs, BURST_S)
    await store(fabric, plan, until_s=second - UPLOAD_S)
    await upload(fabric, plan, until_s=second, from_s=second - UPLOAD_S)
    await fabric.close()


async def _upload_turn(folder: str, pairs: int, until_s: int) -> None:
    """Upload the rows of one second, from every third agent."""
    fabric, plan = embedded(folder), plan_of(pairs, BURST_S)
    turn = range(until_s % UPLOAD_S, pairs, UPLOAD_S)
    await upload(fabric, plan, until_s=until_s, from_s=until_s - UPLOAD_S, only=turn)
    await fabric.close()


async def _snapshots(folder: str, pairs: int, second: int) -> tuple[float, float]:
    """Return CPU seconds of a snapshot (median) and of the first one, which reads everything."""
    keep_one_heap()
    collect_rarely()
    fabric = embedded(folder)
    plan = plan_of(pairs, BURST_S)
    live = LiveBurst(fabric.records, plan, plan.bursts[0])
    took: list[float] = []
    for at_s in range(second, second + LOOKS_COUNT + 2):
        if at_s > second:
            await _upload_turn(folder, pairs, at_s)
        began_s = time.process_time()
        shown = await live.take_snapshot(None, START + timedelta(seconds=at_s + 0.5))
        took.append(time.process_time() - began_s)
    assert shown.known_s >= second - UPLOAD_S, shown.known_s
    await live.close()
    await fabric.close()
    return sorted(took[2:])[len(took[2:]) // 2], took[0]


def _agents(folder: str, pairs: int, second: int, ready: Event) -> None:
    ready.wait()
    began_s = time.monotonic()
    for at_s in range(second + 1, BURST_S):
        time.sleep(max(0.0, began_s + at_s - second - time.monotonic()))
        asyncio.run(_upload_turn(folder, pairs, at_s))


_READY: Event


def _set_event(ready: Event) -> None:
    global _READY
    _READY = ready


def _watched(folder: str, pairs: int, second: int) -> tuple[float, int, float]:
    """Return core share, number of snapshots and MB of a coordinator with a followed feed."""

    async def watch() -> tuple[float, int, float]:
        keep_one_heap()
        collect_rarely()
        fabric = embedded(folder)
        plan = plan_of(pairs, BURST_S)
        ahead = START + timedelta(seconds=second) - datetime.now(UTC)
        coordinator = Coordinator(fabric, now=lambda: datetime.now(UTC) + ahead)
        feeds = Feeds(coordinator)
        feed = await feeds.open(plan.run_id, None)
        seen = 0

        async def follow() -> None:
            nonlocal seen
            async for event in feed.follow(None):
                seen += event.name == "seconds"

        _READY.set()
        viewers = [asyncio.create_task(follow()) for _ in range(VIEWERS_COUNT)]
        # The first snapshot, which reads the whole burst, is complete after this time.
        await asyncio.sleep(WATCHED_S / 2)
        began_s, before = time.process_time(), seen
        await asyncio.sleep(WATCHED_S)
        took_s, checks = time.process_time() - began_s, (seen - before) // VIEWERS_COUNT
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)
        await feeds.close()
        await fabric.close()
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return took_s / WATCHED_S, checks, peak_mb

    return asyncio.run(watch())


if __name__ == "__main__":
    sys.exit(show(rows(*map(int, sys.argv[1:]))))
