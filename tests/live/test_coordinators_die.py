"""Test the run loop with a killed coordinator and two replacements."""

import pytest

from tests.live.live_site import Site, call, kill, wait_for_fleet, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

SMALL = {
    "pairs_count": 2,
    "burst_s": 4,
    "bursts_count": 2,
    "period_s": 12,
    "lead_s": 7,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "traffic.streams_count": 2,
    "traffic.stream_bits_per_second": 20_000_000,
}


def test_two_coordinators_replace_a_killed_one_without_duplicates(site: Site) -> None:
    """Kill the coordinator in the first burst and start two new ones."""
    first, url = site.start_coordinator()
    site.start_fleet(2)
    wait_for_fleet(url, 4)
    body = {"scenario": "smoke", "overrides": SMALL}
    run_id = call(url, "POST", "/v1/runs", json=body)["run_id"]
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
    # The rate of 2 pairs x 2 streams x 20 Mbit/s should not be counted twice.
    assert summary["fleet_received_bits_per_second"] == pytest.approx(80e6, rel=0.1)
