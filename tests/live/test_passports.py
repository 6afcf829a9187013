"""Test interface data from the kernel and the finding for a host without offload."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broadside.agent.host_info import read_passport
from broadside.coordinator.core.judge.observations import host_difference_findings
from broadside.exchange.messages import AgentState, Presence, Role
from broadside.lab.namespaces import inside
from broadside.lab.serving import ServeProcess
from broadside.lab.site import built, staged
from broadside.lab.topology import Lab, LabHost, LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import GENTLE, Site, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs_root,
    pytest.mark.skipif(
        shutil.which("ethtool", path="/usr/sbin:/usr/bin:/sbin") is None,
        reason="ethtool is not installed",
    ),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    spec = LabSpec(pairs_count=3, prefix=new_prefix())
    with built(spec, tmp_path_factory.mktemp("lab")) as lab:
        yield lab


def ethtool(host: LabHost, *arguments: str) -> str:
    with inside(host.namespace):
        done = subprocess.run(["ethtool", *arguments], capture_output=True, check=True, text=True)
    return done.stdout


def presence(host: LabHost) -> Presence:
    now = datetime.now(UTC)
    with inside(host.namespace):
        passport = read_passport(host.nic, host.address)
    return Presence(
        agent_id=host.name,
        role=Role.CLIENT,
        state=AgentState.IDLE,
        beat_at=now,
        started_at=now,
        address=host.address,
        broadside_version="0",
        passport=passport,
    )


def test_offloads_match_ethtool_and_a_finding_names_gro_off(lab: Lab) -> None:
    invalid = lab.clients[1]
    for host in lab.clients:
        ethtool(host, "-K", host.nic, "gro", "off" if host is invalid else "on")
    hosts = [presence(host) for host in lab.clients]
    for host, reported in zip(lab.clients, hosts, strict=True):
        assert reported.passport is not None
        assert reported.passport.nic_driver == "veth"
        shown = json.loads(ethtool(host, "--json", "-k", host.nic))[0]
        for name, on in reported.passport.offloads.items():
            if name in shown:
                assert shown[name]["active"] is on, name
    [finding] = host_difference_findings(hosts, [host.agent_id for host in hosts])
    assert f"generic-receive-offload: {invalid.name} has off, 2 have on" in finding.sentence


def test_verdict_and_comparison_name_gro_off(lab: Lab, tmp_path: Path) -> None:
    invalid = lab.clients[1]
    for host in lab.clients:
        ethtool(host, "-K", host.nic, "gro", "off" if host is invalid else "on")
    body = {
        "scenario": "smoke",
        "overrides": {**GENTLE, "pairs_count": 3, "burst_s": 4},
        "by": "tester",
    }
    run_ids, reported = [], []
    with Site(tmp_path) as site, staged(lab, tmp_path, device_counter={}) as stage:
        for _ in range(2):
            run_ids.append(stage.coordinator.launch(body)["run_id"])
            reported.append(wait_for_summary(stage.coordinator.url, run_ids[-1]))
            ethtool(invalid, "-K", invalid.nic, "gro", "on")
            wait_for("an updated presence", lambda: gro_of(stage.coordinator, invalid), 90)
        compared = site.run("compare", *run_ids, "-o", "json")
    first, second = (
        [item["sentence"] for item in summary["findings"] if item["id"] == "hosts-differ"]
        for summary in reported
    )
    assert "generic-receive-offload: c002 has off, 2 have on" in first[0]
    assert second == []
    differ = json.loads(compared.stdout)["conditions_differ"]
    assert any("generic-receive-offload" in json.dumps(item) for item in differ), differ


def gro_of(coordinator: ServeProcess, host: LabHost) -> Any:
    """Return whether GRO is on, as published by the agent of the host."""
    [presence] = [item for item in coordinator.get("/v1/agents") if item["agent_id"] == host.name]
    return presence["passport"]["offloads"]["generic-receive-offload"]
