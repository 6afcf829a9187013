"""Test thousands of invalid messages in the queue during a burst, with real processes."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import JobPhase, Role
from broadside.exchange.ports import Outgoing, QueueCounts
from tests.attack.on_agents import BODIES
from tests.live.live_site import Site, call, wait_for_fleet, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

# This should be more than a request can list or purge.
COUNT: Final = 3_000
POLL_INTERVAL_S: Final = 3.0
# Use this limit only to detect a hang. An idle machine will need a fraction of it.
DEAD_LETTERED_S: Final = 240.0
# Invalid messages of the maximum size would need 2 GB.
BODY_MAX_BYTES: Final = 20_000


async def _poison(site: Site) -> None:
    fabric = open_fabric(FabricSettings(data_dir=site.folder / "data"))
    expires_at = datetime.now(UTC) + timedelta(minutes=30)
    bodies = [body[:BODY_MAX_BYTES] for body in BODIES.values()]
    await fabric.queue.send(
        [
            Outgoing(
                body=bodies[number % len(bodies)],
                message_id=f"poison-{number}",
                expires_at=expires_at,
            )
            for number in range(COUNT)
        ]
    )
    await fabric.close()


async def _counts(site: Site) -> QueueCounts:
    fabric = open_fabric(FabricSettings(data_dir=site.folder / "data"))
    counts = await fabric.queue.counts()
    await fabric.close()
    return counts


async def _running_count(site: Site, run_id: str) -> int:
    fabric = open_fabric(FabricSettings(data_dir=site.folder / "data"))
    claims = await fabric.records.bursts.read_claims(run_id, 0)
    await fabric.close()
    return sum(claim.phase is JobPhase.RUNNING for claim in claims.values())


def test_burst_is_complete_while_invalid_messages_are_dead_lettered(site: Site) -> None:
    _, url = site.start_coordinator()
    site.start_fleet(2)
    site.start_agent(Role.CLIENT, "c3")
    wait_for_fleet(url, 5)
    overrides = {
        "pairs_count": 2,
        "bursts_count": 1,
        "burst_s": 20,
        "lead_s": 10,
        "traffic.streams_count": 1,
        "traffic.stream_bits_per_second": 5_000_000,
    }
    run = call(url, "POST", "/v1/runs", json={"scenario": "smoke", "overrides": overrides})
    run_id = run["run_id"]
    wait_for("both pairs", lambda: asyncio.run(_running_count(site, run_id)) == 2)
    asyncio.run(_poison(site))
    assert asyncio.run(_running_count(site, run_id)) == 2, "the burst was over before the poison"
    summary = wait_for_summary(url, run_id, timeout_s=180)
    [burst] = summary["bursts"]
    assert [pair["state"] for pair in burst["pairs"]] == ["measured", "measured"]
    assert burst["completeness_ratio"] == 1.0

    began_s = time.monotonic()
    counts = asyncio.run(_counts(site))
    while counts.dead_count != COUNT and time.monotonic() - began_s < DEAD_LETTERED_S:
        # Reads need to take the lock of the queue.
        time.sleep(POLL_INTERVAL_S)
        counts = asyncio.run(_counts(site))
    assert counts == QueueCounts(active_count=0, scheduled_count=0, dead_count=COUNT)
    print(f"{COUNT} dead-lettered within {time.monotonic() - began_s:.0f} s of the verdict")  # noqa: T201
    assert all(process.poll() is None for process in site.agents.values()), "an agent ended"
    letters = call(url, "GET", "/v1/deadletters?limit=1000")
    assert all(letter["reason"] and letter["advice"] for letter in letters)
    wait_for_fleet(url, 5)
    purged = site.run("deadletters", "purge", "--all", "--api", url, timeout_s=120)
    assert purged.stdout == f"deleted {COUNT} dead letters\n", purged.stderr
