"""Test runs of two pairs with the engine for connections, using the coordinator."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.messages import Role
from broadside.lab.namespaces import list_processes
from tests.live.free_ports import free_port
from tests.live.live_site import Site, call, kill, wait_for_fleet, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

# Attempts per second of a pair.
RATE = 200
BURST_S = 4
SHORT = {
    "pairs_count": 2,
    "bursts_count": 1,
    "burst_s": BURST_S,
    "period_s": 20,
    "lead_s": 8,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "traffic.engine": "connections",
    "traffic.options.attempts_per_second": RATE,
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a coordinator, two clients, and two servers with a port for connections."""
    folder = tmp_path_factory.mktemp("site")
    with Site(folder) as site:
        _, address = site.start_coordinator()
        for index in (1, 2):
            services = f"connections={free_port()}"
            site.start_agent(Role.SERVER, f"s{index}", services=services, echo_port=free_port())
            site.start_agent(Role.CLIENT, f"c{index}", arm_lead_s=4)
        wait_for_fleet(address, 4)

        def is_served() -> bool:
            presences = call(address, "GET", "/v1/agents")
            states = [state for presence in presences for state in presence["engines"]]
            ready = [state for state in states if state["name"] == "connections"]
            return len(ready) == 4 and sum(bool(state["ports"]) for state in ready) == 2

        wait_for("connections at all ends", is_served)
        yield address


def run(url: str, **overrides: Any) -> dict[str, Any]:
    body = {"scenario": "connections-new", "overrides": SHORT | overrides}
    run_id = call(url, "POST", "/v1/runs", json=body)["run_id"]
    return wait_for_summary(url, run_id)


def _measures(summary: dict[str, Any]) -> dict[str, float]:
    (burst,) = summary["bursts"]
    return {measure["name"]: measure["value"] for measure in burst["measures"]}


@pytest.mark.parametrize(
    ("mode", "tls"), [("connect", "off"), ("exchange", "off"), ("connect", "1.3"), ("http", "any")]
)
def test_run_passes_its_thresholds(url: str, mode: str, tls: str) -> None:
    # Handshakes of TLS take much CPU time.
    rate = RATE if tls == "off" else RATE // 10
    summary = run(
        url,
        **{
            "traffic.options.mode": mode,
            "traffic.options.tls": tls,
            "traffic.options.attempts_per_second": rate,
            "objective.success_min_ratio": 0.99,
            "objective.connections_min_per_second": rate,
            "objective.handshake_p99_max_s": 3,
        },
    )
    assert summary["verdict"] == "pass", summary["findings"]
    measures = _measures(summary)
    # On a busy host, the last attempts can be too late to be made.
    attempted_ratio = measures["attempted_count"] / (2 * rate * BURST_S)
    assert measures["attempted_count"] == measures["established_count"]
    assert measures["attempted_ratio"] == pytest.approx(attempted_ratio)
    assert 0.5 < attempted_ratio <= 1
    assert measures["server_established_count"] == measures["closed_count"]
    assert measures["success_ratio"] == 1
    assert 0 < measures["handshake_p50"] <= measures["handshake_p99"] <= measures["handshake_max"]
    assert ("first_byte_p99" in measures) is (mode != "connect")
    assert ("tls_handshake_p99" in measures) is (tls != "off")
    if tls == "1.3":
        versions = [name for name in measures if name.startswith("tlsv1_3")]
        assert sum(measures[name] for name in versions) == measures["secured_count"]
    (burst,) = summary["bursts"]
    # Seconds without payload are not an outage.
    assert burst["disruptions"] == []
    for pair in burst["pairs"]:
        assert pair["joined_by"] == "cookie"
    seconds = call(url, "GET", f"/v1/runs/{summary['run_id']}/series")["columns"]
    columns = {column["name"]: column["values"] for column in seconds}
    attempted = [count for count in columns["connections_attempted_count"] if count is not None]
    assert sum(attempted) == measures["attempted_count"]
    assert max(filter(None, columns["handshake_max_s"])) == pytest.approx(
        measures["handshake_max"], abs=1e-5
    )


def test_threshold_above_the_rate_fails(url: str) -> None:
    summary = run(url, **{"objective.connections_min_per_second": 3 * RATE})
    assert summary["verdict"] == "fail", summary["findings"]
    assert "connections-rate-limit" in [finding["id"] for finding in summary["findings"]]


def test_held_connections_are_counted(url: str) -> None:
    summary = run(
        url,
        **{
            "traffic.options.mode": "hold",
            "traffic.options.held_count": 100,
            "traffic.options.heartbeat_s": 0.5,
            "objective.held_min_count": 200,
            "objective.dropped_max_count": 0,
        },
    )
    assert summary["verdict"] == "pass", summary["findings"]
    measures = _measures(summary)
    assert measures["held_count"] == measures["established_count"] == 200
    assert measures["dropped_count"] == 0


@pytest.mark.parametrize("mode", ["exchange", "hold"])
def test_only_the_sustain_phase_of_a_run_is_judged(url: str, mode: str) -> None:
    ramps = {f"traffic.options.{name}": 3 for name in ("ramp_up_s", "ramp_down_s")}
    held = {"traffic.options.held_count": 300, "traffic.options.heartbeat_s": 0.5}
    summary = run(
        url,
        **{
            **ramps,
            **(held if mode == "hold" else {}),
            "burst_s": 10,
            "traffic.options.mode": mode,
            "objective.success_min_ratio": 0.99,
        },
    )
    assert summary["verdict"] == "pass", summary["findings"]
    (burst,) = summary["bursts"]
    # Ramps are no disruption.
    assert burst["disruptions"] == []
    assert burst["window"]["window_s"] == 4
    measures = _measures(summary)
    counts = {"exchange": 2 * RATE * 4, "hold": 600}
    assert measures["attempted_count"] == measures["established_count"] == counts[mode]
    assert measures["attempted_ratio"] == 1
    if mode == "hold":
        assert measures["held_count"] == 600
    else:
        assert measures["ramp_established_count"] == 2 * RATE * 3
        # Both ends use their own clock for the phase.
        assert measures["server_established_count"] == pytest.approx(counts[mode], rel=0.1)
    seconds = call(url, "GET", f"/v1/runs/{summary['run_id']}/series")["columns"]
    columns = {column["name"]: column["values"] for column in seconds}
    rows = list(zip(columns["phase"], columns["connections_attempted_count"], strict=True))
    attempted = [count for phase, count in rows if phase == "ramp-up" and count is not None]
    assert len(attempted) == 3
    if mode == "exchange":
        assert attempted == pytest.approx([RATE / 3, RATE, RATE * 5 / 3], abs=2)


def _generators(port: int) -> list[int]:
    """Return the processes that send to or serve a port."""
    arguments = ("--port", str(port))
    return [one.pid for one in list_processes() if set(arguments) <= set(one.arguments)]


def _owned_sockets(port: int) -> list[str]:
    """Return the TCP sockets with this port that a process still has. Others are the kernel's."""
    sockets = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            cells = line.split()
            ports = {int(cell.rpartition(":")[2], 16) for cell in cells[1:3]}
            if port in ports and cells[9] != "0":
                sockets.append(line)
    return sockets


@pytest.mark.parametrize("killed", ["c1", "s1", "both"])
def test_killed_agent_leaves_no_process_and_no_socket(killed: str, tmp_path: Path) -> None:
    port = free_port()
    with Site(tmp_path) as site:
        _, address = site.start_coordinator()
        site.start_agent(Role.SERVER, "s1", services=f"connections={port}", echo_port=free_port())
        site.start_agent(Role.CLIENT, "c1", arm_lead_s=4)
        wait_for_fleet(address, 2)
        wait_for("the server of connections", lambda: _generators(port))
        hold = {"mode": "hold", "held_count": 50, "heartbeat_s": 0.5}
        options = {f"traffic.options.{name}": value for name, value in hold.items()}
        fields = SHORT | options | {"pairs_count": 1, "burst_s": 60, "period_s": 90}
        body = {"scenario": "connections-new", "overrides": fields}
        call(address, "POST", "/v1/runs", json=body)
        # Both ends of 50 connections, of the control connection, and the listener.
        wait_for("held connections", lambda: len(_owned_sockets(port)) == 103, 60)
        for name in ("c1", "s1") if killed == "both" else (killed,):
            kill(site.agents[name])
        left = {"both": 0, "c1": 1, "s1": 1}[killed]
        wait_for("the end of the generator", lambda: len(_generators(port)) == left, 20)
        # Of a server that lives, only the listener remains; without a server, nothing.
        listeners = 1 if killed == "c1" else 0
        wait_for("the end of the sockets", lambda: len(_owned_sockets(port)) == listeners, 20)
