"""Test canaries of agents that use HTTPS, and of agents that use the SDKs of Azure."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from broadside.lab import azure_services
from broadside.lab.profiles import apply
from broadside.lab.site import built, staged
from broadside.lab.topology import LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import call, wait_for_summary
from tests.live.test_canaries_in_lab import IDLE, SIGNATURES

pytestmark = [
    pytest.mark.live,
    pytest.mark.quiet,
    pytest.mark.needs_root,
    pytest.mark.timeout(300),
]

PAIRS = 2


def carry_out(folder: Path, profile: str, transport: str) -> dict[str, Any]:
    """Run one burst in a new lab, and return its canaries."""
    spec = LabSpec(pairs_count=PAIRS, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(built(spec, folder / "lab"))
        options: dict[str, Any] = {"other_hosts": True}
        if transport == "azure":
            host = str(lab.management_address)
            azure = stack.enter_context(azure_services.standing(folder / "azure", host))
            options = {"fabric": azure.fabric()}
        site = stack.enter_context(staged(lab, folder, device_counter={}, **options))
        assert {plan.environment["BROADSIDE_FABRIC"] for plan in site.plans.values()} == {
            {"https": "http"}.get(transport, transport)
        }
        apply(lab, profile)
        body = {"scenario": "smoke", "overrides": IDLE}
        run_id = call(site.coordinator.url, "POST", "/v1/runs", json=body)["run_id"]
        summary = wait_for_summary(site.coordinator.url, run_id, timeout_s=120)
    canary: dict[str, Any] = summary["bursts"][0]["canary"]
    assert canary["pairs_count"] == PAIRS, summary["findings"]
    return canary


@pytest.mark.parametrize("transport", ["https", "azure"])
@pytest.mark.parametrize(("profile", "leaks"), [("inspects-leak-0", False), ("plain", True)])
def test_canaries_of_all_types_are_counted(
    tmp_path: Path, profile: str, leaks: bool, transport: str
) -> None:
    canary = carry_out(tmp_path, profile, transport)
    assert [one["name"] for one in canary["signatures"]] == SIGNATURES
    for one in canary["signatures"]:
        during = one["during"]
        assert during["tested_count"] > 0, one
        assert during["leaked_count"] == (during["tested_count"] if leaks else 0), one
        assert during["unknown_count"] == 0
    assert canary["before"]["tested_count"] > 0
    assert canary["after"]["tested_count"] > 0
