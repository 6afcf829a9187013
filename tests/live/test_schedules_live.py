"""Test schedules and prices with real coordinators, while a coordinator is killed."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import Role
from tests.live.live_site import Site, call, kill
from tests.live.waiting import wait_for
from tests.unit.coordinator.presences import presence

pytestmark = pytest.mark.live

RUNS_COUNT = 6
TINY = {"pairs_count": 1, "burst_s": 1, "lead_s": 1}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a site, using a simulated pair to publish presences but take no job."""
    with Site(tmp_path_factory.mktemp("schedules")) as site:
        stopped = threading.Event()
        beating = threading.Thread(target=lambda: asyncio.run(_beat(site, stopped)))
        beating.start()
        try:
            yield site
        finally:
            stopped.set()
            beating.join()


async def _beat(site: Site, stopped: threading.Event) -> None:
    fabric = open_fabric(FabricSettings(data_dir=Path(site.environment["BROADSIDE_DATA_DIR"])))
    while not stopped.is_set():
        for role in (Role.CLIENT, Role.SERVER):
            await fabric.records.fleet.beat(presence(role, 1, beat_at=datetime.now(UTC)))
        await asyncio.sleep(1)
    await fabric.close()


def test_every_scheduled_time_fires_once_across_coordinators(site: Site) -> None:
    first, _ = site.start_coordinator(BROADSIDE_TICK_S="0.3")
    _, url = site.start_coordinator(BROADSIDE_TICK_S="0.3")
    body = {
        "name": "often",
        "scenario": "smoke",
        "overrides": TINY,
        "cron": "*/2 * * * * *",
        # There is no measurement, so the run before will end immediately.
        "overlap": "cancel",
        "runs_max_count": RUNS_COUNT,
    }
    call(url, "POST", "/v1/schedules", json=body)

    def view() -> dict[str, Any]:
        result: dict[str, Any] = call(url, "GET", "/v1/schedules/often")
        return result

    wait_for("three runs", lambda: len(view()["history"]) >= 3)
    kill(first)
    site.start_coordinator(BROADSIDE_TICK_S="0.3")
    ended = wait_for("the end of the schedule", lambda: view()["state"] == "ended" and view(), 60)
    launched = [row["run_id"] for row in ended["history"] if row["state"] == "launched"]
    runs = [run["run_id"] for run in call(url, "GET", "/v1/runs")]
    assert len(launched) == len(set(launched)) == RUNS_COUNT
    assert sorted(launched) == sorted(runs)
    # Wait for another scheduled time.
    time.sleep(3)
    assert len(call(url, "GET", "/v1/runs")) == RUNS_COUNT
    by = {run["created_by"] for run in call(url, "GET", "/v1/runs")}
    assert by == {"schedule often"}


def test_commands_add_show_and_remove_schedules(site: Site) -> None:
    added = site.run(
        *("schedule", "add", "weekly", "--scenario", "smoke", "--cron", "0 2 * * 6"),
        *("--timezone", "Europe/Amsterdam", "--until", "2040-01-01", "--max-runs", "3"),
        *("--overlap", "queue", "--missed", "run-late", "--set", "pairs_count=1", "-o", "json"),
    )
    assert added.returncode == 0, added.stderr
    schedule = json.loads(added.stdout)["schedule"]
    assert (schedule["spec"]["pairs_count"], schedule["runs_max_count"]) == (1, 3)
    shown = site.run("schedule", "show", "weekly")
    # The schedule has three runs.
    assert shown.stdout.count("02:00:00 +0") == 3, shown.stdout
    refused = site.run("schedule", "add", "weekly", "--scenario", "smoke", "--cron", "x 2 * * 6")
    assert refused.returncode == 3
    assert refused.stderr.count("\n") == 1
    assert "cron: minute 'x'" in refused.stderr
    assert site.run("schedule", "remove", "weekly").returncode == 0


def test_commands_list_pause_and_resume_schedules(site: Site) -> None:
    site.start_coordinator()
    for name in ("monthly", "yearly"):
        added = site.run("schedule", "add", name, "--scenario", "smoke", "--cron", "0 2 1 1 *")
        assert added.returncode == 0, added.stderr

    def listed(name: str) -> str:
        text = site.run("schedule", "list")
        assert text.returncode == 0, text.stderr
        (line,) = [line for line in text.stdout.splitlines() if name in line]
        return line

    assert "active" in listed("monthly")
    paused = site.run("schedule", "pause", "monthly")
    assert paused.returncode == 0, paused.stderr
    assert "monthly: paused" in paused.stdout
    assert "next starts after a resume" in paused.stdout
    assert "none while paused" in listed("monthly")
    assert "active" in listed("yearly")
    resumed = site.run("schedule", "resume", "monthly", "-o", "json")
    assert json.loads(resumed.stdout)["state"] == "active"
    assert "active" in listed("monthly")
    views = json.loads(site.run("schedule", "list", "-o", "json").stdout)
    assert {"monthly", "yearly"} <= {view["schedule"]["name"] for view in views}
    for verb in ("pause", "resume"):
        unknown = site.run("schedule", verb, "none")
        assert unknown.returncode != 0
        assert unknown.stderr.count("\n") == 1
    for name in ("monthly", "yearly"):
        assert site.run("schedule", "remove", name).returncode == 0


def test_estimate_launches_nothing_and_budget_is_enforced(site: Site) -> None:
    at_once = ["--set", "bursts_count=1", "--set", "align_to_period=false"]
    text = site.run("estimate", "jumbo-1740s", *at_once, "-o", "json")
    assert text.returncode == 0, text.stderr
    answer = json.loads(text.stdout)
    assert answer["price"]["bill"]["total_usd"] == pytest.approx(2194, abs=1)
    assert answer["feasible"] is False
    assert answer["problems"][0]["field"] == "pairs_count"
    target = ["--set", "objective.target_bits_per_second=180e9", "--set", "pairs_count=1"]
    refused = site.run("launch", "smoke", *target, "--budget", "1")
    assert refused.returncode == 4
    assert "above its budget of $1.00; raise the budget" in refused.stderr
