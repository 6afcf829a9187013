"""Test concurrent launches on the same fleet, which should use other endpoints or be rejected."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.live.live_site import Site, call, wait_for_fleet, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

PAIRS_COUNT = 4
SMALL = {
    "burst_s": 3,
    "period_s": 20,
    "lead_s": 10,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "traffic.streams_count": 1,
    "traffic.stream_bits_per_second": 5_000_000,
}


@pytest.fixture(scope="module")
def coordinators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Run two coordinators of the same range and four idle pairs."""
    with Site(tmp_path_factory.mktemp("at-once")) as site:
        site.start_fleet(PAIRS_COUNT)
        urls = [site.start_coordinator()[1] for _ in range(2)]
        yield urls


@pytest.fixture
def idle(coordinators: list[str]) -> list[str]:
    wait_for_fleet(coordinators[0], 2 * PAIRS_COUNT)
    return coordinators


def launch(url: str, pairs_count: int, **more: object) -> httpx.Response:
    body = {"scenario": "smoke", "overrides": SMALL | {"pairs_count": pairs_count} | more}
    return httpx.post(f"{url}/v1/runs", json=body, timeout=60)


def served(url: str, run_id: str, pairs_count: int) -> list[str]:
    """Return the servers that a run's pairs use. Servers have a single port here."""
    summary: dict[str, Any] = wait_for_summary(url, run_id)
    for burst in summary["bursts"]:
        assert burst["pairs_measured"] == pairs_count, summary["findings"]
        assert {pair["joined_by"] for pair in burst["pairs"]} == {"cookie"}
        item = SMALL["traffic.stream_bits_per_second"]
        assert burst["fleet_received_bits_per_second"] == pytest.approx(item * pairs_count, rel=0.2)
    servers = {pair["server_agent_id"] for pair in summary["bursts"][0]["pairs"]}
    assert len(servers) == pairs_count
    return sorted(servers)


def all_idle(url: str) -> None:
    """Wait for all runs to end and for all ports to be free."""
    wait_for(
        "every run's end",
        lambda: all(
            call(url, "GET", f"/v1/runs/{run['run_id']}")["state"] in ("finished", "cancelled")
            for run in call(url, "GET", "/v1/runs")
        ),
        pause_s=0.5,
    )
    wait_for_fleet(url, 2 * PAIRS_COUNT)


def test_concurrent_launches_use_different_endpoints(idle: list[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda url: launch(url, 2), idle))
    assert [answer.status_code for answer in answers] == [202, 202], [a.text for a in answers]
    runs = [answer.json()["run_id"] for answer in answers]
    one, two = (served(idle[0], run_id, 2) for run_id in runs)
    assert not set(one) & set(two)


def test_rejects_second_launch_without_free_endpoints(idle: list[str]) -> None:
    all_idle(idle[0])
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda url: launch(url, 3), idle))
    taken, refused = sorted(answers, key=lambda answer: answer.status_code)
    assert taken.status_code == 202, taken.text
    assert refused.status_code == 409, refused.text
    run_id = taken.json()["run_id"]
    assert run_id in refused.text
    served(idle[0], run_id, 3)


def test_launch_between_bursts_uses_remaining_endpoints(idle: list[str]) -> None:
    all_idle(idle[0])
    waiting = launch(idle[0], 3, bursts_count=2, period_s=30).json()["run_id"]
    wait_for(
        "the first burst's end",
        lambda: call(idle[0], "GET", f"/v1/runs/{waiting}")["bursts"][0]["phase"] == "over",
        pause_s=0.5,
    )
    assert call(idle[1], "GET", f"/v1/runs/{waiting}")["bursts"][1]["phase"] != "over"
    refused = launch(idle[1], 2)
    assert refused.status_code == 409, refused.text
    assert waiting in refused.text
    beside = launch(idle[1], 1)
    assert beside.status_code == 202, beside.text
    theirs = served(idle[1], beside.json()["run_id"], 1)
    assert not set(theirs) & set(served(idle[0], waiting, 3))


def test_concurrent_schedules_share_no_endpoint(idle: list[str]) -> None:
    all_idle(idle[0])
    names = ["one", "two"]
    # Both schedules will be stored long before this time.
    at = datetime.now(UTC) + timedelta(seconds=30)
    body = {
        "scenario": "smoke",
        "overrides": SMALL | {"pairs_count": 3},
        "cron": f"{at:%-S %-M %-H %-d %-m} *",
        # The coordinator may be late because other tests load the cores.
        "missed": "run-late",
        "runs_max_count": 1,
    }
    for url, name in zip(idle, names, strict=True):
        call(url, "POST", "/v1/schedules", json=body | {"name": name})
    assert datetime.now(UTC) < at, "the machine took too long to store two schedules"

    def fired() -> list[dict[str, Any]]:
        histories = [call(idle[0], "GET", f"/v1/schedules/{n}")["history"] for n in names]
        rows = [history[0] for history in histories if history]
        settled = len(rows) == 2 and all(row["state"] in ("launched", "refused") for row in rows)
        return rows if settled else []

    rows = wait_for("both to fire", fired, timeout_s=150, pause_s=0.5)
    for name in names:
        call(idle[0], "DELETE", f"/v1/schedules/{name}")
    launched = [row["run_id"] for row in rows if row["state"] == "launched"]
    assert launched, rows
    for run_id in launched:
        served(idle[0], run_id, 3)
    if len(launched) < len(rows):
        assert any(launched[0] in (row["reason"] or "") for row in rows), rows
    # A launch should wait for the other run's traffic to be over and for its endpoints to be free.
    else:
        starts = sorted(
            datetime.fromisoformat(wait_for_summary(idle[0], item)["bursts"][0]["planned_start_at"])
            for item in launched
        )
        assert starts[1] - starts[0] >= timedelta(seconds=float(SMALL["burst_s"]))
