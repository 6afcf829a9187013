"""Test runs for bidirectional TCP and for HTTP, using the coordinator."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.core.metrics import METRIC_BY_NAME
from broadside.coordinator.core.summary import RunSummary
from broadside.exchange.messages import Role
from tests.live.free_ports import free_port
from tests.live.live_site import HTTP, Site, call, wait_for_fleet, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

SHORT = {
    "pairs_count": 1,
    "bursts_count": 1,
    "burst_s": 3,
    "period_s": 12,
    "lead_s": 6,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
}


UPLOADS: dict[str, dict[str, Any]] = {
    "http": {
        "traffic.streams_count": 4,
        "traffic.options.requests_per_second": 50,
        "traffic.options.body_bytes": 100_000,
        "objective.success_min_ratio": 1,
    },
    "ftp": {
        "burst_s": 6,
        "traffic.streams_count": 2,
        "traffic.stream_bits_per_second": 20_000_000,
        "traffic.options.file_bytes": 5_000_000,
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a coordinator, a client, and a server with ports for iperf3, http and ftp."""
    folder = tmp_path_factory.mktemp("site")
    with Site(folder) as site:
        _, address = site.start_coordinator()
        ports = f"{free_port()},{free_port()}"
        services = f"http={free_port()} ftp={free_port()}"
        site.start_agent(Role.SERVER, "s1", ports=ports, services=services, echo_port=free_port())
        site.start_agent(Role.CLIENT, "c1", arm_lead_s=3)
        wait_for_fleet(address, 2)

        def has_services() -> bool:
            presences = call(address, "GET", "/v1/agents")
            states = [state for presence in presences for state in presence["engines"]]
            ends_of_engines = [[s for s in states if s["name"] == name] for name in UPLOADS]
            return all(len(ends) == 2 and any(s["ports"] for s in ends) for ends in ends_of_engines)

        wait_for("http and ftp at both ends", has_services)
        yield address
    logs = [path.read_text() for path in folder.glob("serve*.log")]
    assert len(logs) == 1
    assert "Traceback" not in logs[0], logs[0]


def run(url: str, **overrides: Any) -> dict[str, Any]:
    body = {"scenario": "smoke", "overrides": SHORT | overrides}
    run_id = call(url, "POST", "/v1/runs", json=body)["run_id"]
    with HTTP.stream("GET", f"{url}/v1/runs/{run_id}/events", timeout=120) as events:
        kinds = {line for line in events.iter_lines() if line.startswith("event: ")}
    assert {"event: seconds", "event: figures", "event: summary"} <= kinds
    return wait_for_summary(url, run_id)


def test_bidirectional_run_with_all_options_and_limited_window(
    url: str,
) -> None:
    granted = int(Path("/proc/sys/net/core/wmem_max").read_text())
    requested = granted + granted // 2
    summary = run(
        url,
        **{
            "traffic.direction": "bidirectional",
            "traffic.processes_count": 2,
            "traffic.streams_count": 4,
            "traffic.stream_bits_per_second": 10_000_000,
            "traffic.window_bytes": requested,
            "traffic.dscp": 10,
            "traffic.mss_bytes": 1400,
            "traffic.congestion": "reno",
            "traffic.pacing": "kernel",
        },
    )
    (burst,) = summary["bursts"]
    assert summary["verdict"] == "measured", summary["findings"]
    assert {flow["flow"] for flow in burst["flows"]} == {"up", "down"}
    for flow in burst["flows"]:
        assert flow["received_bits_per_second"] == pytest.approx(40e6, rel=0.1)
        # If the kernel paces a sender, it also counts data that is still in its sockets.
        assert flow["sent_bits_per_second"] > 0.95 * flow["received_bits_per_second"]
    (pair,) = burst["pairs"]
    assert (pair["basis"], pair["joined_by"]) == ("receiver", "cookie")
    (difference,) = burst["differences"]
    assert (difference["field"], difference["requested"]) == ("window_bytes", str(requested))
    assert difference["effective"] == str(granted)
    assert "engine-differs" in [finding["id"] for finding in burst["findings"]]


def test_udp_run_measures_loss_and_jitter(url: str) -> None:
    summary = run(
        url,
        **{
            "traffic.protocol": "udp",
            "traffic.streams_count": 2,
            "traffic.stream_bits_per_second": 10_000_000,
            "traffic.block_bytes": 1400,
            "objective.loss_max_ratio": 0.5,
        },
    )
    (burst,) = summary["bursts"]
    assert summary["verdict"] == "pass", summary["findings"]
    (flow,) = burst["flows"]
    assert 0 <= flow["loss_ratio"] <= 0.5
    assert flow["loss_pairs_count"] == 1
    (jitter,) = [measure for measure in burst["measures"] if measure["name"] == "jitter_up"]
    assert (jitter["unit"], jitter["pairs_count"]) == ("s", 1)
    assert 0 <= jitter["value"] < 1


def test_http_run_is_checked_for_success_and_latency(url: str) -> None:
    overrides = {
        "traffic.engine": "http",
        "traffic.streams_count": 4,
        "traffic.options.requests_per_second": 50,
        "traffic.options.body_bytes": 100_000,
        "objective.success_min_ratio": 1,
        "objective.latency_p99_max_s": 20,
    }
    summary = run(url, **overrides)
    (burst,) = summary["bursts"]
    assert summary["verdict"] == "pass", summary["findings"]
    measures = {measure["name"]: measure for measure in burst["measures"]}
    count = measures["requests_count"]["value"]
    # Requests will be dropped if they were not sent by the end.
    assert 105 <= count <= 151
    carried = count * 800_000 / 3
    # On a busy host, many answers come after the end of the window.
    assert 0.5 * carried < summary["fleet_received_bits_per_second"] < 1.1 * carried
    assert measures["success_ratio"]["value"] == 1
    assert measures["latency_p50"]["unit"] == "s"
    assert 0 < measures["latency_p50"]["value"] <= measures["latency_p99"]["value"]
    (pair,) = burst["pairs"]
    assert (pair["basis"], pair["joined_by"]) == ("receiver", "cookie")
    assert pair["server_cpu_ratio"] is not None


@pytest.mark.parametrize("engine", UPLOADS)
def test_uploads_are_measured_at_the_server(url: str, engine: str) -> None:
    fields = {"traffic.engine": engine, "traffic.direction": "forward"}
    summary = run(url, **fields, **UPLOADS[engine])
    (burst,) = summary["bursts"]
    assert summary["verdict"] in ("pass", "measured"), summary["findings"]
    (flow,) = burst["flows"]
    assert flow["flow"] == "up"
    assert flow["received_bits_per_second"] == pytest.approx(40e6, rel=0.25)
    (pair,) = burst["pairs"]
    assert (pair["basis"], pair["joined_by"]) == ("receiver", "cookie")
    assert burst["contradictions"] == burst["differences"] == []


@pytest.mark.needs_root
def test_measures_device_pings_and_round_trip_times_of_streams(
    url: str,
) -> None:
    # There is no listener, so connections will be refused.
    probe = {"device": "127.0.0.1", "device_tcp_port": 1}
    streams = {"traffic.streams_count": 3, "traffic.stream_bits_per_second": 20_000_000}
    # The pings without load need time before the burst, also on a busy host.
    given = {"burst_s": 8, "lead_s": 20, "traffic.probe": probe, **streams}
    summary = RunSummary.parse_answer(run(url, **given))
    for name in (
        *("client_ping_icmp_idle_p50_s", "client_ping_icmp_loaded_p99_s"),
        *("client_ping_tcp_idle_p50_s", "client_ping_tcp_loaded_p99_s"),
        *("stream_rtt_p50_s", "stream_rtt_p95_s", "stream_rtt_max_s"),
    ):
        value = METRIC_BY_NAME[name].of_run(summary)
        assert value is not None, name
        assert 0 < value < 1, name
    for name in ("client_ping_icmp_loss_ratio", "client_ping_tcp_loss_ratio"):
        assert METRIC_BY_NAME[name].of_run(summary) == 0.0, name


def test_sweep_compares_engines(url: str) -> None:
    engines = {"field": "traffic.engine", "values": ["iperf3", "http"]}
    overrides = SHORT | {"burst_s": 2, "traffic.window_bytes": 65536}
    body = {"scenario": "smoke", "overrides": overrides}
    study = call(
        url, "POST", "/v1/studies", json=body | {"question": {"kind": "sweep", "axes": [engines]}}
    )
    path = f"/v1/studies/{study['study_id']}"
    wait_for("the end of the study", lambda: call(url, "GET", path)["ended_at"])
    study = call(url, "GET", path)
    assert [result["problem"] for result in study["results"]] == [None, None]
    runs = [wait_for_summary(url, result["run_id"]) for result in study["results"]]
    flows = [[flow["flow"] for flow in run["bursts"][0]["flows"]] for run in runs]
    assert flows == [["up"], ["down"]]
    conclusion = study["conclusion"]
    assert conclusion["sentence"].startswith("traffic.engine: highest payload rate with ")
    assert "unknown" not in conclusion["sentence"]
    assert conclusion["notes"] == [
        "http: runs with traffic.direction: reverse, traffic.window_bytes: none"
    ]
