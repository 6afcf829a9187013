"""The loop with real processes: coordinators that die, twins, aborts, and mistakes."""

import time

import httpx
import pytest

from tests.live.live_site import Site, call, kill, wait_for, wait_for_fleet, wait_for_summary

pytestmark = pytest.mark.live

SMALL = {
    "pairs_count": 2,
    "burst_s": 4,
    "bursts_count": 2,
    "period_s": 12,
    "lead_s": 7,
    "late_after_s": 5,  # other tests keep the cores busy
    "traffic.streams_count": 2,
    "traffic.stream_bits_per_second": 20_000_000,
}


def launch(url: str, **overrides: object) -> str:
    body = {"scenario": "smoke", "overrides": SMALL | overrides}
    run_id: str = call(url, "POST", "/v1/runs", json=body)["run_id"]
    return run_id


def test_a_killed_coordinator_is_replaced_and_twins_count_once(site: Site) -> None:
    """Kill the coordinator in the first burst, go on with two new ones: nothing lost or doubled."""
    first, url = site.start_coordinator()
    site.start_fleet(2)
    wait_for_fleet(url, 4)
    run_id = launch(url)
    wait_for(
        "the first burst to run",
        lambda: call(url, "GET", f"/v1/runs/{run_id}")["state"] == "running",
    )
    kill(first)
    _, url = site.start_coordinator()
    _, twin_url = site.start_coordinator()
    summary = wait_for_summary(url, run_id)
    assert summary == wait_for_summary(twin_url, run_id)
    assert summary["pairs_measured"] == summary["pairs_planned"] == 2
    assert summary["completeness_ratio"] == pytest.approx(1, abs=0.02)
    assert len(summary["bursts"]) == 2
    # 2 pairs x 2 streams x 20 Mbit/s each way counted once, not twice.
    assert summary["fleet_received_bits_per_second"] == pytest.approx(80e6, rel=0.1)


def test_an_abort_stops_traffic_and_keeps_what_was_measured(site: Site) -> None:
    _, url = site.start_coordinator()
    site.start_fleet(2)
    wait_for_fleet(url, 4)
    run_id = launch(url, burst_s=60, bursts_count=1)
    wait_for(
        "the burst to run",
        lambda: call(url, "GET", f"/v1/runs/{run_id}")["state"] == "running",
    )
    time.sleep(2)  # of traffic, which is to be kept
    asked = {"by": "tester", "reason": "seen enough"}
    call(url, "POST", f"/v1/runs/{run_id}/abort", json=asked)
    summary = wait_for_summary(url, run_id)
    status = call(url, "GET", f"/v1/runs/{run_id}")
    assert (status["state"], status["cancelled_by"]) == ("cancelled", "tester")
    assert status["bursts"][0]["outcomes"] == {"abandoned": 2}
    assert summary["verdict"] != "pass"
    assert 0 < summary["completeness_ratio"] < 0.5


def test_mistakes_are_problems_with_a_field_and_a_fix(site: Site) -> None:
    _, url = site.start_coordinator()
    answers = {
        "no fleet": httpx.post(f"{url}/v1/runs", json={"scenario": "smoke"}),
        "bad scenario": httpx.post(f"{url}/v1/runs", json={"scenario": "smok"}),
        "bad field": httpx.post(
            f"{url}/v1/runs", json={"scenario": "smoke", "overrides": {"pairs_count": -1}}
        ),
        "bad body": httpx.post(f"{url}/v1/runs", json={"scenari": "smoke"}),
        "no run": httpx.get(f"{url}/v1/runs/nothing"),
    }
    expected = {
        "no fleet": (409, "pairs_count: 2 pairs asked, but 0 live server agents"),
        "bad scenario": (422, "did you mean 'smoke'"),
        "bad field": (422, "pairs_count"),
        "bad body": (422, "scenari"),
        "no run": (404, "run nothing: no such run"),
    }
    for case, (code, words) in expected.items():
        answer = answers[case]
        assert answer.status_code == code, case
        assert answer.headers["content-type"] == "application/problem+json", case
        assert words in answer.json()["detail"], case
