"""Test in a lab that drills measure planted failovers by probes, with times and cut sessions."""

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from broadside.lab import profiles
from broadside.lab.site import built, staged
from broadside.lab.topology import Lab, LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import Site

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.alone]

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


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Site]]:
    folder = tmp_path_factory.mktemp("drills")
    spec = LabSpec(
        pairs_count=2,
        prefix=new_prefix(),
        nic_bits_per_second=20_000_000,
        firewall_bits_per_second=100_000_000,
    )
    with built(spec) as lab, Site(folder) as site, staged(lab, folder, device_counter={}):
        yield lab, site


def event_of(lab: Lab, profile: str) -> str:
    local = [sys.executable, "-m", "broadside.coordinator", "lab", "profile", profile]
    return " ".join([*local, "--prefix", lab.spec.prefix])


def drilled(lab: Lab, site: Site, profile: str) -> Any:
    """Run a drill for the first of two firewalls and return the conclusion of the study."""
    profiles.apply(lab, "active-standby")
    requested = (
        "study",
        "drill",
        "smoke",
        "--event-command",
        event_of(lab, profile),
        "--at",
        "8",
        *SMALL,
    )
    done = site.run(*requested, "-o", "json", timeout_s=180)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["conclusion"]


def test_measures_duration_and_time_of_a_failover(
    standing: tuple[Lab, Site],
) -> None:
    lab, site = standing
    refused = site.run(
        *("study", "drill", "smoke", "--event-command", event_of(lab, "failover")),
        *("--api", "http://127.0.0.1:1"),
    )
    assert refused.returncode == 3
    assert "the command runs in this process until the drill is over" in refused.stderr
    conclusion = drilled(lab, site, "failover")
    died_s, back_s = profiles.falls(lab)
    result = conclusion["drilled"]
    assert result["event"]["exit_code"] == 0, result["event"]
    assert result["outages_count"] == 2
    for outage in result["outages"]:
        assert outage["outage_s"] == pytest.approx(back_s - died_s, abs=0.1)
        assert outage["resolution_s"] < 0.1
        assert abs(epoch_s(outage["from_at"]) - died_s) <= 0.2
    [dip] = result["flows"]
    assert dip["back_after_s"] > 1.5
    assert dip["short_bytes"] > 0
    assert result["tcp_s"] is not None
    assert (result["sessions_count"], result["cut_count"]) == (4, 0)
    assert dip["new_ratio"] == pytest.approx(1.0, abs=0.2)
    assert "the device was out for 1" in conclusion["sentence"]


def test_failover_without_session_sync_cuts_and_reopens_sessions(
    standing: tuple[Lab, Site],
) -> None:
    lab, site = standing
    conclusion = drilled(lab, site, "failover-cold")
    died_s, back_s = profiles.falls(lab)
    result = conclusion["drilled"]
    # Probes have no session, so they can be used to measure the device alone.
    for outage in result["outages"]:
        assert outage["outage_s"] == pytest.approx(back_s - died_s, abs=0.1)
    assert result["cut_count"] == result["sessions_count"] == 4
    assert result["opened_again_count"] == 4
    assert (
        died_s - 1 <= epoch_s(result["cut_from_at"]) <= epoch_s(result["cut_to_at"]) <= back_s + 2
    )
    [dip] = result["flows"]
    assert dip["back_after_s"] is None
    assert dip["new_ratio"] == pytest.approx(1.0, abs=0.2)
    assert "4 of 4 sessions were cut" in conclusion["sentence"]
    assert "4 of them opened again" in conclusion["sentence"]
    assert "old sessions carry 0 % of the earlier level and new ones" in conclusion["sentence"]


def epoch_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
