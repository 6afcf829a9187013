"""A drill in a lab: a failover that is planted is measured by probes and dated."""

import json
import sys
from datetime import datetime
from pathlib import Path

import pytest

from lab import profiles
from lab.site import built, staged
from lab.topology import LabSpec
from tests.live.labs import needs_root, new_prefix
from tests.live.site import Site

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.alone, needs_root]

SMALL = [
    f"--set={field}"
    for field in (
        "pairs_count=2",
        "burst_s=26",
        "lead_s=6",
        "traffic.streams_count=2",
        "traffic.block_bytes=16384",
        "late_after_s=2.5",
        "scale=100",
    )
]


def test_a_failover_is_measured_within_a_tenth_and_dated_within_a_fifth_of_a_second(
    tmp_path: Path,
) -> None:
    spec = LabSpec(
        pairs_count=2,
        prefix=new_prefix(),
        nic_bits_per_second=20_000_000,
        firewall_bits_per_second=100_000_000,
    )
    with built(spec) as lab, Site(tmp_path) as site, staged(lab, tmp_path, ledger={}):
        profiles.apply(lab, "active-standby")
        own = [sys.executable, "-m", "coordinator", "lab", "profile", "failover"]
        event = " ".join([*own, "--prefix", spec.prefix])
        refused = site.run(
            "study", "drill", "smoke", "--event", event, "--api", "http://127.0.0.1:1"
        )
        assert refused.returncode == 3
        assert "runs in this process only" in refused.stderr
        done = site.run(
            *("study", "drill", "smoke", "--event", event, "--at", "8", *SMALL, "--json"),
            timeout_s=180,
        )
        died_s, back_s = profiles.falls(lab)
    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)
    found = study["conclusion"]["drilled"]
    assert found["event"]["exit_code"] == 0, found["event"]
    assert found["outages_count"] == 2
    for outage in found["outages"]:
        assert outage["outage_s"] == pytest.approx(back_s - died_s, abs=0.1)
        assert outage["resolution_s"] < 0.1
        assert abs(epoch_s(outage["from_at"]) - died_s) <= 0.2
    [dip] = found["flows"]
    assert dip["back_after_s"] > 1.5
    assert dip["short_bytes"] > 0
    assert found["tcp_s"] is not None
    assert (found["sessions_count"], found["cut_count"]) == (4, 0)
    assert dip["new_ratio"] == pytest.approx(1.0, abs=0.2)
    assert "the device was out for 1" in study["conclusion"]["sentence"]


def epoch_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
