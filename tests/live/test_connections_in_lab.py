"""Tests for connections behind a device of the lab that limits them."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.messages import Role
from broadside.exchange.programs import module_command
from broadside.lab import profiles
from broadside.lab.namespaces import inside
from broadside.lab.site import built, staged
from broadside.lab.telemetry_file import write_telemetry_file
from broadside.lab.topology import LabHost, LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import Site, call, wait_for_summary
from tests.scenarios.session_counter import start_sessions

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

LIMIT = 500
SMALL = (
    *(f"--set={field}" for field in ("pairs_count=1", "bursts_count=1", "burst_s=8", "lead_s=4")),
    # A second SYN after a second would hide a dropped one.
    "--set=traffic.options.timeout_s=0.9",
    # Allow for delays, because other tests will be using the CPU cores.
    "--set=late_after_s=2.5",
)


@contextmanager
def connections_lab(folder: Path, profile: str) -> Iterator[tuple[Site, str]]:
    """Yield a site and the URL of the coordinator of a lab that counts sessions."""
    spec = LabSpec(pairs_count=1, prefix=new_prefix(), firewall_bits_per_second=100_000_000)
    agents = {
        "BROADSIDE_AGENT_ARM_LEAD_S": "3",
        "BROADSIDE_AGENT_HEARTBEAT_S": "1",
        "BROADSIDE_AGENT_SERVICES": "connections=9000",
    }
    with built(spec, folder) as lab, Site(folder) as site:
        telemetry = write_telemetry_file(folder / "devices.toml", start_sessions(lab))
        profiles.apply(lab, profile)
        with staged(lab, folder, device_counter=telemetry, agents=agents) as running:
            yield site, running.coordinator.url


@pytest.mark.alone
@pytest.mark.usefixtures("both_cores")
def test_limit_cuts_the_ramps_and_the_sustain_phase(tmp_path: Path) -> None:
    """The device rejects connections above its limit. It also counts those of the ramps."""
    options = ("attempts_per_second=800", "ramp_up_s=4", "ramp_down_s=4")
    with connections_lab(tmp_path, f"connections-{LIMIT}-reset") as (site, url):
        done = site.run(
            *("launch", "connections-new", "-o", "json", "--api", url),
            *SMALL,
            "--set=burst_s=16",
            *(f"--set=traffic.options.{option}" for option in options),
            timeout_s=120,
        )
        runs = call(url, "GET", "/v1/runs")
        summary = wait_for_summary(url, runs[0]["run_id"])
        seconds = call(url, "GET", f"/v1/runs/{runs[0]['run_id']}/series")["columns"]
    assert done.returncode in (0, 1), done.stderr
    (burst,) = summary["bursts"]
    measures = {measure["name"]: measure["value"] for measure in burst["measures"]}
    # In the sustain phase, 5 of 8 attempts get through.
    assert measures["attempted_count"] == 8 * 800
    assert measures["established_per_second"] == pytest.approx(LIMIT, rel=0.1)
    (count,) = burst["sessions"]
    assert count["set_up_count"] == pytest.approx(count["fleet_count"], rel=0.01)
    assert count["fleet_count"] > measures["established_count"]
    columns = {column["name"]: column["values"] for column in seconds}
    known = zip(columns["phase"], columns["connections_established_count"], strict=True)
    rise = [value for phase, value in known if phase == "ramp-up" and value is not None]
    # Half of the ramp-up is below the limit: 100, 300, then the limit.
    assert rise[:2] == pytest.approx([100, 300], abs=20)
    assert rise[3] == pytest.approx(LIMIT, rel=0.2)


@pytest.mark.alone
@pytest.mark.usefixtures("both_cores")
def test_search_finds_the_planted_limit_and_names_the_device(tmp_path: Path) -> None:
    with connections_lab(tmp_path, f"connections-{LIMIT}-reset") as (site, url):
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
    result = study["conclusion"]["search_result"]
    assert result["highest_connections_count"] == pytest.approx(LIMIT, rel=0.1)
    assert result["lowest_failing_bottleneck"] == "firewall", study["conclusion"]
    for summary in summaries:
        (burst,) = summary["bursts"]
        (count,) = burst["sessions"]
        assert count["set_up_count"] == pytest.approx(count["fleet_count"], rel=0.01)
        assert count["ended_count"] == pytest.approx(count["fleet_ended_count"], rel=0.01)


def _start(host: LabHost, *words: object) -> "subprocess.Popen[bytes]":
    argv = [*module_command("broadside.agent.connection_generator"), *map(str, words)]
    with inside(host.namespace):
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _counts(client: "subprocess.Popen[bytes]", *names: str) -> tuple[int, ...]:
    output, errors = client.communicate(timeout=60)
    rows: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    assert "ended" in rows[-1], errors
    return tuple(sum(row.get(name, 0) for row in rows) for name in names)


def test_device_with_a_full_table_has_room_when_sessions_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that still counts ended sessions would be lower in the next trial of a search."""
    limit = 1000
    full = profiles.LabProfile(
        description="full", rules=profiles.held_limit("reset"), held_count=limit
    )
    monkeypatch.setitem(profiles.PROFILES, "full", full)
    spec = LabSpec(pairs_count=1, prefix=new_prefix(), firewall_bits_per_second=100_000_000)
    with built(spec, tmp_path) as lab:
        profiles.apply(lab, "full")
        hosts = {host.role: host for host in lab.hosts}
        address = ("--address", hosts[Role.SERVER].address, "--port", 9000)
        server = _start(hosts[Role.SERVER], "server", *address)
        try:
            time.sleep(1)
            outcomes = []
            for number, count in enumerate((limit - 1, 2 * limit, limit - 1, limit - 1)):
                options = ("--mode", "hold", "--bytes", 16, "--count", count, "--rate", 2000)
                burst = ("--token", f"t{number}", "--at", time.time() + 2, "--duration", 3)
                client = _start(hosts[Role.CLIENT], "client", *address, *options, *burst)
                outcomes.append(_counts(client, "established", "refused"))
                # The set frees their room within a second.
                time.sleep(1.5)
        finally:
            server.kill()
            server.communicate()
    # The control connection is a session too.
    most = limit - 1
    assert outcomes == [(most, 0), (most, limit + 1), (most, 0), (most, 0)]
