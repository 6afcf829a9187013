"""A run over the Azure fabric while the services misbehave: nothing lost, nothing counted twice."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lab.azurite import Azurite
from lab.relay import Relay
from lab.servicebus.process import BrokerProcess
from lab.servicebus.queues import QueueSettings
from tests.live.site import Site, call, wait_for_fleet, wait_for_summary

pytestmark = pytest.mark.live

PAIRS_COUNT = 2
RATE = 20_000_000  # bit/s, one paced stream a pair
OVERRIDES = {
    "pairs_count": PAIRS_COUNT,
    "bursts_count": 1,
    "lead_s": 11,
    "traffic.streams_count": 1,
    "traffic.stream_bits_per_second": RATE,
}


@dataclass
class Services:
    broker: BrokerProcess
    tables: Relay


@contextmanager
def azure_site(folder: Path) -> Iterator[tuple[Site, Services]]:
    """Broker, and Azurite behind a relay; a site whose processes use them."""
    for name in ("broker", "azurite", "site"):
        (folder / name).mkdir()
    broker = BrokerProcess(
        folder / "broker", {"jobs": QueueSettings(lock_s=20, max_delivery_count=5)}, sas_key="k"
    )
    azurite = Azurite(folder / "azurite")
    try:
        broker.start()
        azurite.start()
        azurite.create_table("broadside")
        with Relay(azurite.port) as relay, Site(folder / "site") as site:
            address = f"http://127.0.0.1:{relay.port}/lab"
            site.environment |= {
                "BROADSIDE_FABRIC": "azure",
                "BROADSIDE_SERVICEBUS_CONNECTION_STRING": broker.connection_string,
                "BROADSIDE_TABLES_CONNECTION_STRING": azurite.connection_string(address),
            }
            yield site, Services(broker=broker, tables=relay)
    finally:
        azurite.stop()
        broker.stop()


def restart_broker(services: Services) -> None:
    services.broker.kill()
    time.sleep(1)
    services.broker.start()


def deliver_twice(services: Services) -> None:
    services.broker.ask("twice", queue="jobs", on=True)


def lose_upserts(services: Services) -> None:
    """Some requests never arrive, and of some that do the answer is lost."""
    services.tables.cut("PUT", "POST", count=6)
    services.tables.lose_answer("PUT", "POST", count=6)


def close_tables(services: Services) -> None:
    services.tables.refuse(503, for_s=20)


# name: length of the burst in s, and what happens when, in s from the planned start
FAULTS: dict[str, tuple[int, list[tuple[float, Callable[[Services], None]]]]] = {
    "broker killed before the claim and mid-run": (8, [(-8, restart_broker), (3, restart_broker)]),
    "all delivered twice, upserts cut and unanswered": (
        8,
        [(-9.5, deliver_twice), (2, lose_upserts)],
    ),
    "tables answer 503 for 20 s": (24, [(2, close_tables)]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_run_ends_whole(tmp_path: Path, fault: str) -> None:
    burst_s, strikes = FAULTS[fault]
    with azure_site(tmp_path) as (site, services):
        _, url = site.start_coordinator()
        site.start_fleet(PAIRS_COUNT)
        wait_for_fleet(url, 2 * PAIRS_COUNT)
        body = {"scenario": "smoke", "overrides": OVERRIDES | {"burst_s": burst_s}}
        run: dict[str, Any] = call(url, "POST", "/v1/runs", json=body)
        start = datetime.fromisoformat(run["bursts"][0]["planned_start_at"]).timestamp()
        for offset_s, strike in strikes:
            time.sleep(max(0.0, start + offset_s - time.time()))
            strike(services)
        summary = wait_for_summary(url, run["run_id"], timeout_s=burst_s + 90)
    assert summary["pairs_measured"] == PAIRS_COUNT, summary["findings"]
    assert summary["completeness_ratio"] == pytest.approx(1, abs=0.02)
    assert summary["fleet_received_bits_per_second"] == pytest.approx(PAIRS_COUNT * RATE, rel=0.1)
