"""What the kernel says of real interfaces, and a host whose offload was turned off is named."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from agent.passport import read_passport
from coordinator.core.judge.drift import drift_findings
from exchange.messages import AgentState, Presence, Role
from lab.namespaces import inside
from lab.site import built
from lab.topology import Host, Lab, LabSpec
from tests.live.labs import needs_root, new_prefix

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs_root,
    needs_root,
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


def ethtool(host: Host, *words: str) -> str:
    with inside(host.namespace):
        done = subprocess.run(["ethtool", *words], capture_output=True, check=True, text=True)
    return done.stdout


def presence(host: Host) -> Presence:
    now = datetime.now(UTC)
    with inside(host.namespace):
        passport = read_passport(host.nic)
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


def test_an_ioctl_says_what_ethtool_says_and_gro_off_is_named(lab: Lab) -> None:
    odd = lab.clients[1]
    for host in lab.clients:
        ethtool(host, "-K", host.nic, "gro", "off" if host is odd else "on")
    hosts = [presence(host) for host in lab.clients]
    for host, told in zip(lab.clients, hosts, strict=True):
        assert told.passport is not None
        assert told.passport.nic_driver == "veth"
        shown = json.loads(ethtool(host, "--json", "-k", host.nic))[0]
        for name, on in told.passport.offloads.items():
            if name in shown:
                assert shown[name]["active"] is on, name
    [finding] = drift_findings(hosts, [host.agent_id for host in hosts])
    assert f"generic-receive-offload: {odd.name} has off, 2 have on" in finding.sentence
