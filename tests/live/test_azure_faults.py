"""Test runs over the Azure fabric during faults of the services.

No data should be lost or counted twice. A single fleet executes all runs in sequence. The faults
should be reported in the summaries.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from broadside.lab import azure_services
from broadside.lab.broker_process import BrokerProcess
from broadside.lab.relay import Relay
from broadside.lab.servicebus.queues import QueueSettings
from tests.live.live_site import Site, call, wait_for_fleet, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

PAIRS_COUNT = 2
# The unit is bit/s, for one paced stream per pair.
RATE = 20_000_000
OVERRIDES = {
    "pairs_count": PAIRS_COUNT,
    "bursts_count": 1,
    # The agents need this time to reconnect if a broker restarts during a launch.
    "lead_s": 20,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "traffic.streams_count": 1,
    "traffic.stream_bits_per_second": RATE,
}


@dataclass
class Services:
    site: Site
    # The URL of the coordinator.
    url: str
    broker: BrokerProcess
    tables: Relay


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Run broker, Azurite with a relay before its tables, and a fleet to use them."""
    folder = tmp_path_factory.mktemp("faults")
    queue = QueueSettings(lock_s=20, max_delivery_count=5)
    with (
        azure_services.standing(folder / "azure", queue=queue) as azure,
        Relay(azure.azurite.port) as relay,
        Site(folder) as site,
    ):
        site.environment |= azure.fabric(relay) | {"BROADSIDE_AGENT_RAW": "all"}
        _, url = site.start_coordinator()
        site.start_fleet(PAIRS_COUNT)
        wait_for_fleet(url, 2 * PAIRS_COUNT)
        yield Services(site=site, url=url, broker=azure.broker, tables=relay)


def kill_broker(services: Services) -> None:
    services.broker.kill()


def start_broker(services: Services) -> None:
    # The queue should not be available for this time.
    time.sleep(2)
    services.broker.start()


def restart_broker(services: Services) -> None:
    kill_broker(services)
    start_broker(services)


def deliver_twice(services: Services) -> None:
    services.broker.ask("twice", queue="jobs", on=True)


def lose_upserts(services: Services) -> None:
    """Drop some requests, and drop the responses of some others."""
    services.tables.cut("PUT", "POST", count=6)
    services.tables.lose_answer("PUT", "POST", count=6)


def close_tables(services: Services) -> None:
    services.tables.refuse(503, for_s=20)


Strike = Callable[[Services], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Burst with faults before its launch, during the launch and at times after its start.

    Attributes:
        burst_s: Duration of the burst.
        strikes: Seconds after the planned start, with the fault.
        findings: Expected findings by id, with words of their sentences.
    """

    burst_s: int
    before: Strike | None = None
    beside: Strike | None = None
    strikes: tuple[tuple[float, Strike], ...]
    findings: dict[str, tuple[str, ...]]


CASES = {
    "broker killed before the claim and mid-run": Case(
        burst_s=6,
        before=kill_broker,
        beside=start_broker,
        strikes=((2, restart_broker),),
        findings={
            "queue-away": (
                "The queue did not answer",
                "of 4 agents between",
                "no record is missing",
            ),
            # The text is "between", or "from ... on" if there was no further request before
            # the verdict.
            "coordinator-queue-away": ("The queue did not answer the coordinator",),
        },
    ),
    "all delivered twice, upserts cut and unanswered": Case(
        burst_s=6,
        before=deliver_twice,
        strikes=((1, lose_upserts),),
        findings={
            "duplicates-dropped": ("dropped", "no job ran twice"),
            "table-away": ("The table did not answer", "of 4 agents", "no record is missing"),
        },
    ),
    "tables answer 503 for 20 s": Case(
        # All reports will arrive while writes fail, for longer than an attempt takes.
        burst_s=8,
        strikes=((1, close_tables),),
        findings={
            "table-away": (
                "The table did not answer",
                "of 4 agents between",
                "no record is missing",
            ),
            "writes-spooled": ("records of", "waited on disk between", "reports arrived late"),
            "coordinator-table-away": ("The table did not answer the coordinator between",),
        },
    ),
}


def carried_out(services: Services, case: Case) -> dict[str, Any]:
    """Launch a burst, inject the faults and wait for the verdict."""
    if case.before is not None:
        case.before(services)
    body = {"scenario": "smoke", "overrides": OVERRIDES | {"burst_s": case.burst_s}}
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(call, services.url, "POST", "/v1/runs", json=body)
        if case.beside is not None:
            case.beside(services)
    run: dict[str, Any] = launched.result()
    start = datetime.fromisoformat(run["bursts"][0]["planned_start_at"]).timestamp()
    for offset_s, strike in case.strikes:
        time.sleep(max(0.0, start + offset_s - time.time()))
        strike(services)
    return wait_for_summary(services.url, run["run_id"], timeout_s=case.burst_s + 90)


@pytest.mark.parametrize("name", CASES)
def test_run_is_complete_and_reports_the_fault(services: Services, name: str) -> None:
    case = CASES[name]
    began_at = time.time()
    summary = carried_out(services, case)
    assert summary["pairs_measured"] == PAIRS_COUNT, summary["findings"]
    assert summary["completeness_ratio"] == pytest.approx(1, abs=0.02)
    assert summary["fleet_received_bits_per_second"] == pytest.approx(PAIRS_COUNT * RATE, rel=0.1)
    sentences = {finding["id"]: finding["sentence"] for finding in summary["findings"]}
    for finding_id, parts in case.findings.items():
        sentence = sentences.get(finding_id, "not reported")
        assert [part for part in parts if part not in sentence] == [], sentence
    for outage in summary["bursts"][0]["outages"]:
        from_s, to_s = (
            datetime.fromisoformat(outage[end] or outage["from_at"]).timestamp()
            for end in ("from_at", "to_at")
        )
        assert began_at - 60 < from_s <= to_s < time.time()
    recomputed = call(services.url, "GET", f"/v1/runs/{summary['run_id']}/recomputed")
    assert recomputed["equal"], recomputed["differences"]


def raw(services: Services, side: str) -> subprocess.CompletedProcess[str]:
    return services.site.run("raw", "last", "1", "--side", side)


@pytest.mark.parametrize("side", ["client", "server"])
def test_raw_output_of_both_ends_is_in_the_container(services: Services, side: str) -> None:
    """Test the raw output of the newest run, which should be in the container only.

    Wait for the agents to upload it in the background.
    """
    result = wait_for("raw output", lambda: (done := raw(services, side)).returncode == 0 and done)
    assert "sum_received" in result.stdout
    assert '"cut"' not in result.stdout
