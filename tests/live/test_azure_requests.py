"""Compare the computed load to the requests of a small run, using the stubs' logs."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broadside.lab.broker_process import BrokerProcess
from broadside.lab.servicebus.queues import QueueSettings
from tests.contract.recorded_azure import Answers, Asked, RecordedAzure
from tests.docs_build import azure_limits_page
from tests.live.live_site import Site, call, wait_for_fleet, wait_for_summary
from tests.live.started import started

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
SCRIPT = vars(azure_limits_page)
ANSWERS = ROOT / "tests/contract/azure_answers.toml"
PAIRS = 2
IDLE_S = 10.0
SPEC = {
    "pairs_count": PAIRS,
    "bursts_count": 1,
    "burst_s": 10,
    "lead_s": 12,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "traffic.streams_count": 1,
    "traffic.stream_bits_per_second": 20_000_000,
}


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Requests while idle, and from a launch to its verdict."""

    idle: Sequence[Asked]
    idle_s: float
    run: Sequence[Asked]
    run_s: float
    queue: Counter[str]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "broker").mkdir()
    settings = {"jobs": QueueSettings(lock_s=20, max_delivery_count=5)}
    with (
        started(BrokerProcess(folder / "broker", settings)) as broker,
        RecordedAzure(Answers(ANSWERS)) as azure,
        Site(folder) as site,
    ):
        azure.create("control", "results", "private", "raw")
        site.environment |= {
            "BROADSIDE_FABRIC": "azure",
            "BROADSIDE_SERVICEBUS_CONNECTION_STRING": broker.connection_string,
            "BROADSIDE_SERVICEBUS_QUEUE": "jobs",
            "BROADSIDE_TABLES_CONNECTION_STRING": azure.connection_string,
            "BROADSIDE_BLOBS_CONNECTION_STRING": azure.connection_string,
            "BROADSIDE_BLOBS_CONTAINER": "raw",
        }
        _, url = site.start_coordinator()
        site.start_fleet(PAIRS)
        wait_for_fleet(url, 2 * PAIRS)
        azure.asked.clear()
        began_s = time.monotonic()
        time.sleep(IDLE_S)
        idle = tuple(azure.asked)
        idle_s = time.monotonic() - began_s
        before = Counter(broker.ask("asked"))
        azure.asked.clear()
        began_s = time.monotonic()
        run: dict[str, Any] = call(
            url, "POST", "/v1/runs", json={"scenario": "smoke", "overrides": SPEC}
        )
        summary = wait_for_summary(url, run["run_id"], 120)
        run_s = time.monotonic() - began_s
        assert summary["pairs_measured"] == PAIRS, summary["findings"]
        queue = Counter(broker.ask("asked")) - before
        yield Counted(idle=idle, idle_s=idle_s, run=tuple(azure.asked), run_s=run_s, queue=queue)


def requests_to(log: Sequence[Asked], table: str, partition: str, *methods: str) -> list[Asked]:
    return [
        request
        for request in log
        if request.what == table
        and str(request.partition).startswith(partition)
        and (not methods or request.method in methods)
    ]


def test_idle_coordinator_stays_within_documented_requests(counted: Counted) -> None:
    local = requests_to(counted.idle, "private", "")
    assert local, "the coordinator must poll for runs"
    assert len(local) <= SCRIPT["IDLE_PER_S"] * (counted.idle_s + 2)
    assert not requests_to(counted.idle, "control", "", "GET"), "agents without a job poll nothing"


def test_coordinator_with_run_stays_within_documented_requests(counted: Counted) -> None:
    text = SCRIPT["RUN_PER_S"]
    fields = {
        "private": requests_to(counted.run, "private", ""),
        "results": requests_to(counted.run, "results", "burst", "GET"),
        "control": requests_to(counted.run, "control", "", "PUT", "POST", "MERGE"),
    }
    waiting = {"private": SCRIPT["IDLE_PER_S"], "results": 0, "control": 0}
    for table, log in fields.items():
        assert log, table
        assert len(log) <= (text[table] + waiting[table]) * counted.run_s, table


def test_agents_and_queue_send_documented_requests(counted: Counted) -> None:
    text = SCRIPT["loads"](PAIRS)
    polls = requests_to(counted.run, "control", "run", "GET")
    per_s, _ = text["control: one copy of the control row"]
    # Use a factor of two for the digests and the coordinator. An agent also reads once at the
    # claim and once at the end.
    assert len(polls) <= 2 * per_s * counted.run_s + 8 * 2 * PAIRS
    written = requests_to(counted.run, "results", "burst", "PUT", "POST")
    claims, _ = text["results: the burst, claims"]
    end, _ = text["results: the burst, its end"]
    rows_count = sum(request.rows_count for request in written)
    # A claim has several phases. Seconds are written again with every upload, at the shortest
    # upload interval.
    assert claims + PAIRS <= rows_count <= 3 * claims + end + PAIRS * SPEC["burst_s"]
    assert counted.queue["sent"] == counted.queue["delivered"] == PAIRS
    assert counted.queue["settled"] == PAIRS
    assert counted.queue["told"] == 0, "messages were peeked"
