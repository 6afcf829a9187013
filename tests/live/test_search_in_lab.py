"""Test that a search in a lab can find the planted rate of the firewall."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadside.lab.site import built, staged
from broadside.lab.topology import LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import Site, call

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

SCALE = 10
# The rate is at the IP layer, in the lab.
FIREWALL_BITS_PER_SECOND = 40_000_000
# The rate is at real scale.
PAYLOAD_BITS_PER_SECOND = SCALE * FIREWALL_BITS_PER_SECOND * 1448 / 1500
# The ratio is for ten seconds and includes the slow start of TCP.
SHORTFALL = 0.15
SMALL = (
    f"--set=scale={SCALE}",
    *(f"--set={field}" for field in ("pairs_count=1", "bursts_count=1", "burst_s=10", "lead_s=4")),
    "--set=traffic.block_bytes=16384",
    # Allow for delays, because other tests will be using the CPU cores.
    "--set=late_after_s=2.5",
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Site, str]]:
    """Run a pair behind a firewall.

    The coordinator has no device counter, to get faster verdicts.
    """
    spec = LabSpec(
        pairs_count=1,
        prefix=new_prefix(),
        scale=SCALE,
        firewall_bits_per_second=FIREWALL_BITS_PER_SECOND,
    )
    with (
        built(spec, tmp_path) as lab,
        Site(tmp_path) as site,
        staged(
            lab,
            tmp_path,
            device_counter={},
            agents={"BROADSIDE_AGENT_ARM_LEAD_S": "3", "BROADSIDE_AGENT_HEARTBEAT_S": "1"},
        ) as staged_site,
    ):
        yield site, staged_site.coordinator.url


@pytest.mark.alone
# If the cores are fully loaded, the client's CPU will be the limit and the findings will report it.
@pytest.mark.usefixtures("both_cores")
def test_search_brackets_the_planted_rate(site: tuple[Site, str]) -> None:
    place, url = site
    bounds = ["--min", "200M", "--max", "600M", "--precision", "0.3", "--trials", "3"]
    goals = ["--max-loss", str(SHORTFALL)]
    done = place.run(
        *("study", "search", "smoke", *bounds, *goals, *SMALL, "-o", "json", "--api", url),
        timeout_s=180,
    )
    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)
    results, matched = study["results"], study["conclusion"]["search_result"]
    assert 2 <= len(results) <= 3
    for result in results:
        offered = result["offered_bits_per_second"]
        summary = call(url, "GET", f"/v1/runs/{result['run_id']}/summary")
        real_rate = summary["real_fleet_received_bits_per_second"]
        assert result["received_bits_per_second"] == real_rate
        assert result["completeness_ratio"] > 0.95
        carried = min(offered, PAYLOAD_BITS_PER_SECOND)
        assert result["received_bits_per_second"] == pytest.approx(carried, rel=0.15)
        assert result["concurrent_run_ids"] == []
    # The maximum rate to offer that should still meet the goal.
    most = PAYLOAD_BITS_PER_SECOND / (1 - SHORTFALL)
    assert matched["highest_bits_per_second"] <= 1.05 * most
    assert matched["lowest_failing_bits_per_second"] >= 0.9 * PAYLOAD_BITS_PER_SECOND
    assert matched["width_ratio"] <= 0.4
    assert "at real scale; the lab is at 1:10" in study["conclusion"]["sentence"]
