"""Clients ping the device itself beside their traffic: idle and under load, by ICMP and TCP."""

import os
from pathlib import Path

import pytest

from coordinator.core.figures import FIGURE
from coordinator.core.summary import RunSummary
from tests.live.free_ports import free_port
from tests.live.live_site import HTTP, Site, call, wait_for, wait_for_fleet

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0, reason="an ICMP echo needs a right"),
]

BURST = {
    "pairs_count": 1,
    "bursts_count": 1,
    "burst_s": 8,
    "lead_s": 6,
    "late_after_s": 5,
    "traffic.streams_count": 3,
    "traffic.stream_bits_per_second": 20_000_000,
    "traffic.probe": {"device": "127.0.0.1", "device_tcp_port": 1},  # nobody listens: refused
}


def test_both_ways_are_told_idle_and_loaded_and_so_is_each_streams_round_trip(
    tmp_path: Path,
) -> None:
    with Site(tmp_path) as site:
        _, url = site.start_coordinator()
        site.start_fleet(1, echo_port=free_port())
        wait_for_fleet(url, 2)
        launched = call(url, "POST", "/v1/runs", json={"scenario": "smoke", "overrides": BURST})
        path = f"/v1/runs/{launched['run_id']}"
        wait_for("a verdict", lambda: HTTP.get(f"{url}{path}/summary").is_success)
        summary = RunSummary.model_validate(call(url, "GET", f"{path}/summary"))
    for name in (
        *("client_ping_icmp_idle_p50_s", "client_ping_icmp_loaded_p99_s"),
        *("client_ping_tcp_idle_p50_s", "client_ping_tcp_loaded_p99_s"),
        *("stream_rtt_p50_s", "stream_rtt_p95_s", "stream_rtt_max_s"),
    ):
        value = FIGURE[name].of_run(summary)
        assert value is not None, name
        assert 0 < value < 1, name
    for name in ("client_ping_icmp_loss_ratio", "client_ping_tcp_loss_ratio"):
        assert FIGURE[name].of_run(summary) == 0.0, name
