"""Findings about single components, such as clocks, counters, record matching and search."""

from typing import Any

import pytest

from tests.review.common_functions import at
from tests.review.fleets import START_S, fleet, steady
from tests.review.versions import Versions

LOCAL = "7F7F0101,,10,{now_s},0.0,0.0,0.0,-12.500,0.000,0.000,0.0,0.0,0.0,Normal"
MEGABYTES = 50
# Share of the bytes of a test. This is 3 Mbit/s compared with 75.
OTHERS_RATIO = 0.04


def test_m4_counts_test_between_addresses_of_one_host(versions: Versions) -> None:
    """Count the bytes between two ends on one host for the run.

    At 6cca7b45: 0 of 50 MB. It counted the interface with the address, but the kernel uses the
    loopback.
    """
    reviewed, today = versions.ask("host_counted", MEGABYTES * 10**6)
    if today is None:
        pytest.skip("this host has no address but the loopback's")
    assert reviewed["sent_bytes"] < MEGABYTES * 10**6 / 2
    assert today["sent_bytes"] >= MEGABYTES * 10**6


def test_m4_ignores_traffic_on_unused_interface(versions: Versions) -> None:
    """Send other traffic of 3 Mbit/s through an interface that the test does not use.

    At 6cca7b45: inconclusive, "received 562.5 MB when the client's NIC counted 23.53 MB: the
    records cannot all be true". Today's agents do not send the counters of that interface for this
    test.
    """

    def run(counted_ratio: float) -> dict[str, Any]:
        made = fleet([steady(4, 60, 75e6)], target_bits_per_second=300e6, bin_s=None)
        for pair in made["pairs"][0]:
            for host in (pair["client_host"], pair["server_host"]):
                for name in ("nic_rx_bytes", "nic_tx_bytes"):
                    host[name] = [row * counted_ratio for row in host[name]]
        return made

    reviewed = versions.reviewed.ask("judge", run(OTHERS_RATIO))
    today = versions.today.ask("judge", run(1.0))
    assert reviewed["verdict"] == "inconclusive"
    assert "contradiction-host-counters" in {result["id"] for result in reviewed["findings"]}
    assert today["verdict"] == "pass"


def test_m14_free_running_clock_is_unknown(versions: Versions) -> None:
    """Read ``chronyc`` of a host with a free-running chronyd (``local stratum 10``).

    At 6cca7b45: synchronised, bound 0.000 ms, and the start is armed.
    """
    reviewed, today = versions.ask("clock", LOCAL.format(now_s=START_S), START_S)
    assert reviewed == {"bound_s": 0.0, "synchronised": True, "problem": None}
    assert today["bound_s"] is None
    assert not today["synchronised"]
    assert "free-running" in today["problem"]


def test_m14_clock_bound_includes_slewed_offset(versions: Versions) -> None:
    """Slew a kernel clock that is 20 ms off, with an additional error of 1 ms.

    At 6cca7b45: bound 1 ms.
    """
    reviewed, today = versions.ask("kernel_clock", 0, 20_000, 1_000)
    assert reviewed["bound_s"] == pytest.approx(0.001)
    assert today["bound_s"] == pytest.approx(0.021)


@pytest.mark.parametrize("engine", ["http", "https", "ftp"])
def test_m16_matches_server_record_after_nat(versions: Versions, engine: str) -> None:
    """Translate the address of the client in the device and match the record of the server.

    At 6cca7b45: the record belongs to no pair. Requests did not contain their job, so the server
    could only record an address.
    """
    traffic = {"engine": engine, "direction": "reverse", "streams_count": 1}
    run = fleet([steady(1, 30, 1e8)], target_bits_per_second=1e8, traffic=traffic)
    [[pair]] = run["pairs"]
    job = {
        "run_id": "reviewed",
        "burst_index": 0,
        "pair_index": 0,
        "endpoint": run["plan"]["pairs"][0]["endpoint"],
        "traffic": traffic,
        "planned_start_at": at(START_S).isoformat(),
        "duration_s": 30,
    }
    claim = pair["claim"] | {"address": "10.1.0.1", "cookie": None}
    report = pair["report"] | {"engine": {"engine": engine}}
    results = []
    for version in (versions.reviewed, versions.today):
        named = claim["job_id"] in version.ask("requests", engine, job)
        recorded = {"engine": engine, "cookie": claim["job_id"] if named else None}
        test = pair["server_test"] | {"client_address": "198.51.100.7", "engine": recorded}
        results.append(version.ask("join", run["plan"], claim, report, [test]))
    reviewed, today = results
    assert reviewed == {"joined": [], "foreign_tests": ["0"]}
    assert today == {"joined": ["0"], "foreign_tests": []}


@pytest.mark.parametrize("paced_ratio", [0.997, 1.0])
def test_m17_search_finds_rate_with_slow_pacing(versions: Versions, paced_ratio: float) -> None:
    """Search a path of 500 Mbit/s without loss below this rate. The accepted shortfall is 0.1 %.

    At 6cca7b45, with a sender that is 0.3 % slow: no rate.
    """
    question = {
        "min_bits_per_second": 1e8,
        "max_bits_per_second": 1e9,
        "shortfall_max_ratio": 0.001,
    }
    reviewed, today = versions.ask("search", question, 5e8, paced_ratio)
    if paced_ratio < 1:
        assert reviewed["highest"] is None
    else:
        assert reviewed["highest"] == today["highest"]
    assert today["highest"] == pytest.approx(5e8, rel=0.03)
