"""Test studies on a real fleet, with trials in sequence and a device switch."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadside.coordinator.cli.exit_codes import INTERRUPTED
from tests.live.live_site import PACED, Site, wait_for_fleet
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

SMALL = [
    *("--set=pairs_count=1", "--set=bursts_count=1", "--set=burst_s=2"),
    *("--set=lead_s=5", "--set=late_after_s=5", PACED),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str, Path]]:
    """Run a pair, a coordinator, and a switch to append its state to a file."""
    folder = tmp_path_factory.mktemp("studies")
    state, switches = folder / "state", folder / "switches.toml"
    lines = "\n".join(f'{s} = ["sh", "-c", "echo {s} >> {state}"]' for s in ("off", "deny"))
    switches.write_text(f'[idps]\nrest = "off"\n[idps.states]\n{lines}\n')
    with Site(folder) as site:
        _, url = site.start_coordinator(BROADSIDE_SWITCHES_FILE=str(switches))
        site.start_fleet(1)
        wait_for_fleet(url, 2)
        yield site, url, state


def test_ab_study_switches_the_device_and_compares(fleet: tuple[Site, str, Path]) -> None:
    site, url, state = fleet
    options = ["--a", "off", "--b", "deny", "--switch", "idps"]
    done = site.run(
        "study", "ab", "smoke", *options, *SMALL, "-o", "json", "--api", url, timeout_s=120
    )
    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)
    assert [result["run_id"] is not None for result in study["results"]] == [True] * 4
    # There should be no switch between two trials of the same state.
    assert state.read_text().split() == ["off", "deny", "off"]
    comparison = study["conclusion"]["comparison"]
    counts = {
        metric["name"]: (metric["a_count"], metric["b_count"]) for metric in comparison["metrics"]
    }
    assert counts["received_bits_per_second"] == (2, 2)
    assert comparison["conditions_differ"] == []
    shown = site.run("study", "show", study["study_id"], "--api", url)
    assert study["conclusion"]["sentence"] in shown.stdout.replace("\n", " ")


def test_ctrl_c_prints_how_to_find_the_study(fleet: tuple[Site, str, Path]) -> None:
    site, url, _ = fleet
    over = ["--over", "traffic.streams_count=1,2"]
    parts = ["study", "sweep", "smoke", *SMALL, *over, "--set=burst_s=60", "--api", url]
    followed = site.start("followed", *parts)
    log = site.folder / "followed.log"
    result = wait_for("the study", lambda: re.search(r"^study (\S+)$", log.read_text(), re.M))
    followed.send_signal(signal.SIGINT)
    assert followed.wait(30) == INTERRUPTED
    text = " ".join(log.read_text().split())
    assert f"left study {result[1]} without aborting it, after 0 of 2 trials; it continues;" in text
    assert f"broadside study abort {result[1]}" in text
    assert site.run("study", "abort", result[1], "--api", url).returncode == 0


def test_aborted_study_stops_its_run_and_resets_the_device(
    fleet: tuple[Site, str, Path],
) -> None:
    site, url, state = fleet
    options = ["--a", "deny", "--b", "off", "--switch", "idps", "--set", "burst_s=60", "--detach"]
    done = site.run("study", "ab", "smoke", *SMALL, *options, "-o", "json", "--api", url)
    study_id = json.loads(done.stdout)["study_id"]
    first = f"{study_id}-001"
    wait_for(
        "the first trial", lambda: first in site.run("runs", "-o", "json", "--api", url).stdout
    )
    site.run("study", "abort", study_id, "--reason", "enough", "--api", url)

    def ended() -> bool:
        shown = site.run("study", "show", study_id, "-o", "json", "--api", url)
        return json.loads(shown.stdout)["ended_at"] is not None

    wait_for("the end of the study", ended)
    assert state.read_text().split()[-1] == "off"
    run = json.loads(site.run("show", first, "-o", "json", "--api", url).stdout)
    assert run["cancel_reason"] == "enough"
