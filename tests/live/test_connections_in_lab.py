"""Test that a search in a lab can find the planted limit of new connections."""

import json
from pathlib import Path

import pytest

from broadside.lab import profiles
from broadside.lab.session_counter import start_sessions
from broadside.lab.site import built, staged
from broadside.lab.telemetry_file import write_telemetry_file
from broadside.lab.topology import LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import Site, call

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

LIMIT = 500
SMALL = (
    *(f"--set={field}" for field in ("pairs_count=1", "bursts_count=1", "burst_s=8", "lead_s=4")),
    # A second SYN after a second would hide a dropped one.
    "--set=traffic.options.timeout_s=0.9",
    # Allow for delays, because other tests will be using the CPU cores.
    "--set=late_after_s=2.5",
)


@pytest.mark.alone
@pytest.mark.usefixtures("both_cores")
def test_search_finds_the_planted_limit_and_names_the_device(tmp_path: Path) -> None:
    spec = LabSpec(pairs_count=1, prefix=new_prefix(), firewall_bits_per_second=100_000_000)
    agents = {
        "BROADSIDE_AGENT_ARM_LEAD_S": "3",
        "BROADSIDE_AGENT_HEARTBEAT_S": "1",
        "BROADSIDE_AGENT_SERVICES": "connections=9000",
    }
    with built(spec, tmp_path) as lab, Site(tmp_path) as site:
        telemetry = write_telemetry_file(tmp_path / "devices.toml", start_sessions(lab))
        profiles.apply(lab, f"connections-{LIMIT}-reset")
        with staged(lab, tmp_path, ledger=telemetry, agents=agents) as running:
            url = running.coordinator.url
            done = site.run(
                *("study", "search", "connections-new", "--load", "connections_per_second"),
                *("--min", "250", "--max", "850", "--precision", "0.05", "--trials", "6"),
                *SMALL,
                *("-o", "json", "--api", url),
                timeout_s=300,
            )
            assert done.returncode == 0, done.stderr
            study = json.loads(done.stdout)
            runs = [result["run_id"] for result in study["results"]]
            summaries = [call(url, "GET", f"/v1/runs/{run_id}/summary") for run_id in runs]
    found = study["conclusion"]["search_result"]
    assert found["highest_connections_count"] == pytest.approx(LIMIT, rel=0.1)
    assert found["lowest_failing_bottleneck"] == "firewall", study["conclusion"]
    for summary in summaries:
        (burst,) = summary["bursts"]
        (count,) = burst["sessions"]
        assert count["set_up_count"] == pytest.approx(count["fleet_count"], rel=0.01)
        assert count["ended_count"] == pytest.approx(count["fleet_ended_count"], rel=0.01)
