"""Test VXLAN bursts in the lab with probes, CPU cost and agents that are killed."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broadside.agent.tunnel import DeviceSettings, TunnelEnd, mark_of
from broadside.agent.tunnels import SILENT_S
from broadside.exchange.messages import Presence, Role, Tunnel
from broadside.lab import fleet
from broadside.lab.lab_programs import find_tool
from broadside.lab.namespaces import inside, run
from broadside.lab.site import built, sqlite_fabric, staged
from broadside.lab.topology import Lab, LabHost, LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import call, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [
    pytest.mark.live,
    pytest.mark.quiet,
    pytest.mark.needs_root,
    pytest.mark.timeout(200),
]

AGENT = {
    "BROADSIDE_AGENT_ALLOW_TUNNELS": "true",
    # This is the maximum, because tunnels need to be requested 12 s ahead.
    "BROADSIDE_AGENT_ARM_LEAD_S": "8",
    "BROADSIDE_AGENT_HEARTBEAT_S": "1",
}
SPEC = {
    "pairs_count": 2,
    "bursts_count": 1,
    "burst_s": 6,
    "period_s": 60,
    "lead_s": 14,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "traffic.streams_count": 4,
    "traffic.stream_bits_per_second": 10_000_000,
    "traffic.encapsulation": "vxlan",
    "traffic.probe": "udp",
}

# The interval of the residual will be wide for a short burst of two pairs, so the tests should
# check its midpoint.
WIDE = {"objective.residual_max_ratio": 0.5}

OUTER_HEADERS = """
table ip outer {
  counter any { }
  counter marked { }
  chain forward {
    type filter hook forward priority -1;
    iifname "c0" udp dport 4789 counter name any
    iifname "c0" udp dport 4789 ip dscp 46 counter name marked
  }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Lab with its agents and a coordinator."""

    lab: Lab
    url: str
    environment: dict[str, str]
    agents: fleet.Fleet

    def start(self, *names: str) -> fleet.Fleet:
        """Restart some agents in a separate fleet."""
        plans = [p for p in fleet.plan_agents(self.lab, self.environment) if p.agent_id in names]
        logs = self.lab.path / "again"
        return fleet.start(plans, prefix=self.lab.spec.prefix, log_path=logs)

    def launch(self, **overrides: Any) -> str:
        body = {"scenario": "smoke", "overrides": SPEC | overrides}
        run_id: str = call(self.url, "POST", "/v1/runs", json=body)["run_id"]
        return run_id

    def wait_for_traffic(self, run_id: str) -> None:
        """Wait for the planned start to pass."""
        text = f"/v1/runs/{run_id}"
        wait_for("traffic", lambda: call(self.url, "GET", text)["state"] == "running")

    def wait_until_ready(self) -> None:
        """Wait for all agents to have a new heartbeat, free servers and permission to create
        tunnels.
        """
        since_at = datetime.now(UTC)

        def all_ready() -> bool:
            presences = [Presence.model_validate(p) for p in call(self.url, "GET", "/v1/agents")]
            ready = [p for p in presences if p.beat_at > since_at and p.tunnels]
            return sum(p.role is Role.CLIENT or bool(p.ports) for p in ready) == 4

        wait_for("ready agents", all_ready)

    def wait_for_devices(self) -> None:
        wait_for("tunnels", lambda: all(map(devices, self.lab.clients + self.lab.servers)))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    folder = tmp_path_factory.mktemp("tunnels")
    spec = LabSpec(pairs_count=2, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    with built(spec, folder) as lab, staged(lab, folder, agents=AGENT) as staged_site:
        standing = Range(
            lab=lab,
            url=staged_site.coordinator.url,
            environment={**sqlite_fabric(folder / "data"), **AGENT},
            agents=staged_site.agents,
        )
        standing.wait_until_ready()
        yield standing


def devices(host: LabHost) -> list[str]:
    """Return the tunnel devices on a host."""
    argv = ["ip", "-netns", str(host.namespace), "-json", "link", "show", "type", "vxlan"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout
    return [link["ifname"] for link in json.loads(shown or "[]") if link]


def outer_bytes(lab: Lab) -> dict[str, int]:
    """Return the bytes of tunnel packets to the servers that the firewall saw, by counter."""
    argv = [find_tool("nft"), "-j", "list", "counters", "table", "ip", "outer"]
    items = json.loads(run(argv, namespace=lab.firewall_namespace))["nftables"]
    counters = [item["counter"] for item in items if "counter" in item]
    return {counter["name"]: counter["bytes"] for counter in counters}


def engines(host: LabHost, end: str = "--client") -> list[int]:
    """Return the engine processes on a host for one end of the traffic."""
    argv = ["ip", "netns", "pids", str(host.namespace)]
    pids = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout
    results = []
    for pid in pids.split():
        # The process may have ended meanwhile.
        with contextlib.suppress(OSError):
            parts = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            # A newer iperf3 needs a separate loader to run.
            if any(part.endswith(b"iperf3") for part in parts) and end.encode() in parts:
                results.append(int(pid))
    return results


def guardians(name: str) -> list[int]:
    """Return the processes that guard a device."""
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # The process may have ended meanwhile.
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[-2:] == [name.encode(), b""]:
                results.append(int(path.parent.name))
    return results


def test_slow_guardian_keeps_the_next_device_with_its_name(site: Range) -> None:
    host = site.lab.servers[0]
    tunnel = Tunnel(
        vni=77,
        port=4790,
        client_address=site.lab.clients[0].address,
        inner_client_address="198.19.129.53",
        inner_server_address="198.19.129.54",
        ports=(),
        opened_by="test",
    )

    async def opened() -> TunnelEnd:
        return await TunnelEnd.open(
            tunnel,
            DeviceSettings(
                local=host.address,
                remote=tunnel.client_address,
                inner=tunnel.inner_server_address,
                nic=host.nic,
                mark=mark_of("test", Role.CLIENT),
            ),
        )

    async def close_and_open() -> None:
        end = await opened()
        (slow,) = guardians(end.name)
        os.kill(slow, signal.SIGSTOP)
        await end.close()
        end = await opened()
        os.kill(slow, signal.SIGCONT)
        wait_for("the guardian ends", lambda: slow not in guardians(end.name), 30)
        assert devices(host) == [end.name]
        await end.close()
        wait_for("both guardians end", lambda: not guardians(end.name), 30)
        assert devices(host) == []

    # The threads of the loop are created in the namespace.
    with inside(host.namespace):
        asyncio.run(close_and_open())


def test_bidirectional_run_reconciles_with_both_counter_columns(site: Range) -> None:
    """Test without tunnels, when the acknowledgements of a direction are in the other column."""
    site.wait_until_ready()
    plain = {"traffic.encapsulation": None, "traffic.direction": "bidirectional", "burst_s": 12}
    summary = wait_for_summary(site.url, site.launch(**plain, **WIDE))
    assert summary["verdict"] == "measured", summary["findings"]
    assert abs(summary["reconciliation"]["residual_ratio"]) <= 0.01
    assert summary["fleet_received_bits_per_second"] == pytest.approx(160e6, rel=0.15)


def test_tunnel_burst_reconciles_with_overhead_and_removes_devices(
    site: Range, record_property: Callable[[str, object], None]
) -> None:
    argv = [find_tool("nft"), "-f", "-"]
    run(argv, namespace=site.lab.firewall_namespace, text=OUTER_HEADERS)
    run_id = site.launch(**{"objective.probe_loss_max_ratio": 0.5, "traffic.dscp": 46}, **WIDE)
    site.wait_for_devices()
    summary = wait_for_summary(site.url, run_id)
    (burst,) = summary["bursts"]
    assert summary["verdict"] == "pass", summary["findings"]
    sent_bytes = outer_bytes(site.lab)
    assert sent_bytes["marked"] > 0.9 * sent_bytes["any"] > 1_000_000, sent_bytes
    assert "50 B of them for VXLAN" in burst["header_how"]
    stored = summary["reconciliation"]
    record_property("residual_ratio", stored["residual_ratio"])
    assert abs(stored["residual_ratio"]) <= 0.01, stored
    all_hosts = site.lab.clients + site.lab.servers
    wait_for("no device after the burst", lambda: not any(map(devices, all_hosts)), 20)
    for side in ("client_cpu", "server_cpu"):
        assert burst[side]["pairs_count"] == 2
        assert burst[side]["cpu_s_per_gigabyte"] > 0
    latency = burst["latency"]
    assert latency["pairs_count"] == 2
    assert 0 < latency["fleet"]["before"]["p50_s"] < 1
    assert latency["fleet"]["during"]["answered_count"] > 60
    assert all(pair["latency"]["during"]["sent_count"] > 30 for pair in burst["pairs"])


def test_burst_keeps_its_tunnel_while_the_next_client_requests_it(site: Range) -> None:
    """Test a spare client, which will request the tunnel 3 s before the end of this burst."""
    site.wait_until_ready()
    fields = {"pairs_count": 1, "bursts_count": 3, "period_s": 15, "traffic.probe": "off"}
    summary = wait_for_summary(site.url, site.launch(**fields))
    graded = [(pair["state"], pair["reason"]) for b in summary["bursts"] for pair in b["pairs"]]
    assert [state for state, _ in graded] == ["measured"] * 3, graded


def test_tunnel_with_traffic_remains_while_its_client_is_silent(site: Range) -> None:
    site.wait_until_ready()
    run_id = site.launch(**{"pairs_count": 1, "burst_s": 20, "traffic.probe": "off"})
    wait_for("an armed client", lambda: any(map(engines, site.lab.clients)))
    (client,) = filter(engines, site.lab.clients)
    agent = site.agents.states()[client.name].pid
    site.wait_for_traffic(run_id)
    os.kill(agent, signal.SIGSTOP)
    # The agent should be silent for this time.
    time.sleep(SILENT_S + 4)
    os.kill(agent, signal.SIGCONT)
    [pair] = wait_for_summary(site.url, run_id)["bursts"][0]["pairs"]
    assert pair["state"] == "measured", pair["reason"]


def test_removes_devices_and_engines_of_killed_agents(site: Range) -> None:
    lab, states = site.lab, site.agents.states()
    site.wait_until_ready()
    run_id = site.launch(burst_s=20)
    site.wait_for_devices()
    wait_for("both clients armed", lambda: all(map(engines, lab.clients)))
    site.wait_for_traffic(run_id)
    client, server = lab.clients[0], lab.servers[1]
    assert engines(server, "--server")
    for host in (client, server):
        os.kill(states[host.name].pid, signal.SIGKILL)
    wait_for(
        "no device of the killed agents", lambda: not devices(client) and not devices(server), 20
    )
    dead = ((client, "--client"), (server, "--server"))
    wait_for("no engine of the killed agents", lambda: not any(engines(*item) for item in dead), 10)
    call(site.url, "POST", f"/v1/runs/{run_id}/abort")
    all_hosts = lab.clients + lab.servers
    wait_for("no device at all", lambda: not any(map(devices, all_hosts)), 30)
    wait_for("no engine at all", lambda: not any(map(engines, lab.clients)), 30)
    with site.start(client.name, server.name):
        site.wait_until_ready()
        summary = wait_for_summary(site.url, site.launch())
        graded = [(p["state"], p["reason"]) for p in summary["bursts"][0]["pairs"]]
        assert summary["pairs_measured"] == 2, (graded, summary["findings"])
        wait_for("no device after the next burst", lambda: not any(map(devices, all_hosts)), 20)


def test_agent_without_tunnel_permission_removes_its_old_devices(site: Range) -> None:
    client = site.lab.clients[0]
    with contextlib.suppress(ProcessLookupError):
        os.kill(site.agents.states()[client.name].pid, signal.SIGKILL)
    for vni, role in ((71, Role.CLIENT), (72, Role.SERVER)):
        for parts in (
            f"link add bsx{vni} type vxlan id {vni} local {client.address} dstport 4789 dev lo",
            f"link set bsx{vni} alias {mark_of(client.name, role)}",
        ):
            run(["ip", *parts.split()], namespace=client.namespace)
    no_more = replace(
        site, environment={**site.environment, "BROADSIDE_AGENT_ALLOW_TUNNELS": "false"}
    )
    with no_more.start(client.name):
        wait_for("only the other role's device", lambda: devices(client) == ["bsx72"], 30)
    run(["ip", "link", "delete", "bsx72"], namespace=client.namespace)
