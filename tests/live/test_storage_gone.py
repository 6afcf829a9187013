"""Test that all processes end and print a reason if the data directory is removed."""

import shutil

import pytest

from broadside.coordinator.cli.exit_codes import ExitCode
from tests.live.live_site import PACED, Site
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live


def test_processes_exit_when_the_data_directory_is_removed(site: Site) -> None:
    site.as_users_do = True
    site.start_fleet(1)
    wait_for("both agents", lambda: site.run("agents").stdout.count("idle") == 2)
    log = site.folder / "launch.log"
    parts = ("--set=pairs_count=1", "--set=burst_s=120", "--set=lead_s=8", PACED)
    launch = site.start("launch", "launch", "smoke", *parts)
    wait_for("a burst under way", lambda: "running" in log.read_text())
    shutil.rmtree(site.folder / "data", ignore_errors=True)
    ends = {"launch": launch, **site.agents}
    # Two heartbeats take a second each here. Otherwise they would continue for the two minutes of
    # the burst.
    wait_for(
        "the end of all processes", lambda: all(p.poll() is not None for p in ends.values()), 45
    )
    assert {name: process.poll() for name, process in ends.items()} == dict.fromkeys(
        ends, ExitCode.CANNOT_RUN
    )
    assert "removed or replaced while in use" in log.read_text().splitlines()[-1]
    for name in site.agents:
        assert "removed or replaced while in use" in (site.folder / f"{name}.log").read_text()
