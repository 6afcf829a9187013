"""Test that a scale-in during reduced load is dated and that its cut sessions are counted."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from broadside.lab import profiles
from broadside.lab.site import built, staged
from broadside.lab.topology import LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import Site

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.alone]

SMALL = [
    f"--set={field}"
    for field in (
        "pairs_count=2",
        "lead_s=8",
        "traffic.streams_count=8",
        "traffic.block_bytes=16384",
        "late_after_s=2.5",
        "scale=100",
    )
]
# The maximum is 4 Gbit/s.
LOADS = ("--offer", "3G,0.8G", "--hold-s", "20", "--settle-s", "20")


def test_scale_in_reports_reset_and_stalled_pairs(tmp_path: Path) -> None:
    spec = LabSpec(
        pairs_count=2,
        prefix=new_prefix(),
        nic_bits_per_second=20_000_000,
        firewall_bits_per_second=40_000_000,
    )
    with built(spec) as lab, Site(tmp_path) as site, staged(lab, tmp_path) as stage:
        profiles.apply(lab, "scale-in")
        at = ("--api", stage.coordinator.url)
        done = site.run(
            "study", "scaleout", "smoke", *LOADS, *SMALL, "-o", "json", *at, timeout_s=240
        )
        [gone_s] = profiles.falls(lab)
    assert done.returncode == 0, done.stderr
    conclusion = json.loads(done.stdout)["conclusion"]
    result = conclusion["scale_out"]
    assert result["steps"] == []
    cut = result["scale_in"]
    assert cut["holds_count"] == 1
    assert datetime.fromisoformat(cut["from_at"]).timestamp() < gone_s
    # The 16 streams and 2 control connections are split between both units. A pair with a working
    # control connection and no working stream has no reset, so it stalls.
    broken, stalled = cut["broken_pairs_count"], cut["stalled_pairs_count"]
    assert broken + stalled == 2
    # This is at real scale, a large part of 0.8 Gbit/s for 10 s.
    assert cut["short_bytes"] > 100e6
    text = f"scale-in, 1 holds: {broken} pairs reset, {stalled} stalled"
    assert text in " ".join(conclusion["notes"])
