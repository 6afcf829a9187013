"""Test canaries through devices that leak, drop and decide late."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from broadside.coordinator.core.measure.formulas.binomial import share_interval
from broadside.lab.profiles import apply
from broadside.lab.site import built, staged
from broadside.lab.topology import Lab, LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import call, wait_for_summary

pytestmark = [pytest.mark.live, pytest.mark.quiet, pytest.mark.needs_root, pytest.mark.timeout(400)]

# Port and payload, over TCP and UDP.
SIGNATURES = ["url", "port", "et-id-check-udp", "port-udp"]
CANARY: Mapping[str, object] = {
    "consent": "Lab",
    "signatures": SIGNATURES,
    "every_s": 0.2,
    "before_s": 6,
}
IDLE: Mapping[str, object] = {
    "pairs_count": 2,
    "bursts_count": 1,
    # At least 104 canaries, with some that a busy host skips.
    "burst_s": 14,
    "period_s": 60,
    "lead_s": 10,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "objective.start_spread_max_s": 5,
    "objective.residual_max_ratio": 0.5,
    "objective.target_bits_per_second": 200_000,
    "objective.layer": "payload",
    "traffic.streams_count": 2,
    "traffic.block_bytes": 1448,
    "traffic.stream_bits_per_second": 100_000,
    "traffic.canary": CANARY,
}
# About 3,000 packets a second.
LOADED: Mapping[str, object] = {**IDLE, "traffic.stream_bits_per_second": 10_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Lab with its agents and a coordinator."""

    lab: Lab
    url: str

    def carry_out(self, profile: str, spec: Mapping[str, object]) -> dict[str, Any]:
        """Run one burst in a profile, and return the run."""
        apply(self.lab, profile)
        body = {"scenario": "smoke", "overrides": spec}
        run_id = call(self.url, "POST", "/v1/runs", json=body)["run_id"]
        return wait_for_summary(self.url, run_id, timeout_s=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    folder = tmp_path_factory.mktemp("canary")
    spec = LabSpec(pairs_count=2, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    with built(spec, folder) as lab, staged(lab, folder, device_counter={}) as staged_site:
        yield Range(lab=lab, url=staged_site.coordinator.url)


def ids(summary: Mapping[str, Any]) -> set[str]:
    return {finding["id"] for finding in summary["findings"]}


def test_a_device_that_inspects_passes(site: Range) -> None:
    summary = site.carry_out("inspects-leak-0", LOADED)
    during = summary["bursts"][0]["canary"]["during"]
    assert (during["leaked_count"], summary["verdict"]) == (0, "pass"), summary["findings"]
    assert during["tested_count"] >= 104
    blocked = {one["name"]: one["during"] for one in summary["bursts"][0]["canary"]["signatures"]}
    assert [name for name, result in blocked.items() if result["tested_count"]] == SIGNATURES
    assert "canary-blocked" in ids(summary)


def test_a_device_that_fails_open_passes_idle_and_fails_under_load(site: Range) -> None:
    idle = site.carry_out("inspects-fail-open", IDLE)
    assert idle["verdict"] == "pass", idle["findings"]
    assert idle["bursts"][0]["canary"]["during"]["leaked_count"] == 0
    loaded = site.carry_out("inspects-fail-open", LOADED)
    canary = loaded["bursts"][0]["canary"]
    assert loaded["verdict"] == "fail"
    assert "canary-leaked" in ids(loaded)
    assert canary["before"]["leaked_count"] == 0
    assert canary["during"]["leaked_count"] > 0


def test_a_device_that_drops_harmless_flows_is_named(site: Range) -> None:
    summary = site.carry_out("inspects-drops-harmless", IDLE)
    during = summary["bursts"][0]["canary"]["during"]
    assert "canary-allowed-blocked" in ids(summary)
    assert during["leaked_count"] == 0
    assert 0.02 < during["allowed_blocked_ratio"] < 0.4


def test_a_block_that_comes_too_late_is_a_leak(site: Range) -> None:
    summary = site.carry_out("inspects-late", IDLE)
    url, port, *_ = summary["bursts"][0]["canary"]["signatures"]
    assert summary["verdict"] == "fail"
    assert "canary-late" in ids(summary)
    assert url["during"]["late_count"] == url["during"]["leaked_count"]
    assert url["during"]["leak_ratio"] == 1
    assert url["during"]["decision_p50_s"] < 2
    assert port["during"]["leaked_count"] == 0


@pytest.mark.parametrize("share", [0, 1, 10, 80])
def test_a_planted_share_leaks_three_times(site: Range, share: int) -> None:
    for _ in range(3):
        summary = site.carry_out(f"inspects-leak-{share}", LOADED)
        during = summary["bursts"][0]["canary"]["during"]
        # The interval of 99 % misses in up to one of 100 runs, so the test uses a wider one.
        low, high = share_interval(during["leaked_count"], during["tested_count"], 0.9999)
        assert low <= share / 100 <= high
