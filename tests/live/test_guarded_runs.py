"""Test that guards stop all traffic within two seconds of a planted breach."""

import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from broadside.coordinator.core.guards import READ_AFTER_S
from broadside.exchange.messages import Role
from broadside.lab.namespaces import inside
from broadside.lab.network import set_firewall_rate
from broadside.lab.site import built, staged
from broadside.lab.telemetry_file import source_entry, write_telemetry_file
from broadside.lab.topology import LabSpec, firewall_namespace
from tests.live.free_ports import free_port
from tests.live.labs import new_prefix
from tests.live.live_site import GENTLE, HTTP, Site, call, wait_for_fleet, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.alone]

# Limit of the guards. The planted times and the last byte are compared with it, not the time that
# the test takes.
STOP_WITHIN_S: Final = 2.0
BURST_S: Final = 20
PAIRS_COUNT: Final = 2
QUIET_CPU: Final = 0.31
OVERRIDES: Final = GENTLE | {
    "pairs_count": PAIRS_COUNT,
    "burst_s": BURST_S,
    "lead_s": 10,
    "traffic.streams_count": 1,
}


class PlantedDevice:
    """Device with a JSON page, and a service with a health page.

    Attributes:
        cpu_ratio: CPU that the device reports.
        status: Status of the health page.
        planted_s: Epoch seconds of the last planted change.
    """

    def __init__(self) -> None:
        self.cpu_ratio: float | None = QUIET_CPU
        self.status = 200
        self.planted_s = 0.0
        device = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_health = self.path == "/health"
                self.send_response(device.status if is_health else 200)
                body = b"{}" if is_health else json.dumps({"cpu": device.cpu_ratio}).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Write no log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def plant(self, **changes: Any) -> None:
        """Change what the device reports, and store the time of the change."""
        self.planted_s = time.time()
        for name, value in changes.items():
            setattr(self, name, value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def telemetry(self, folder: Path, poll_s: float = 5.0) -> dict[str, str]:
        """Return the setting for a telemetry file with the device and the health page."""
        base = f"http://127.0.0.1:{self._server.server_port}"
        fields = {"device": "fw", "type": "rest", "url": f"{base}/stats", "poll_s": poll_s}
        rest = {**fields, "read": [{"quantity": "cpu_ratio", "path": "cpu"}]}
        url = {"device": "fw", "type": "url", "url": f"{base}/health", "poll_s": poll_s}
        text = [source_entry(rest).replace(": ", " = "), source_entry(url)]
        text[0] = text[0].replace('"quantity"', "quantity").replace('"path"', "path")
        return write_telemetry_file(folder / "telemetry.toml", *text)


@pytest.fixture(scope="module")
def device() -> Iterator[PlantedDevice]:
    planted = PlantedDevice()
    yield planted
    planted.close()


@pytest.fixture(scope="module")
def standing(
    tmp_path_factory: pytest.TempPathFactory, device: PlantedDevice
) -> Iterator[tuple[Site, str]]:
    folder = tmp_path_factory.mktemp("guards")
    with Site(folder) as site:
        _, url = site.start_coordinator(**device.telemetry(folder))
        for index in range(1, PAIRS_COUNT + 1):
            site.start_agent(Role.SERVER, f"s{index}", echo_port=free_port())
            site.start_agent(Role.CLIENT, f"c{index}")
        wait_for_fleet(url, 2 * PAIRS_COUNT)
        yield site, url


def launched(url: str, guards: list[str], **overrides: Any) -> str:
    body = {"scenario": "smoke", "overrides": OVERRIDES | {"guards": guards} | overrides}
    status = call(url, "POST", "/v1/runs", json=body)
    assert not [text for text in status["warnings"] if text.startswith("guard")], status
    return str(status["run_id"])


def wait_until_running(url: str, run_id: str) -> None:
    """Wait for some seconds of traffic."""

    def is_running() -> bool:
        return len(call(url, "GET", f"/v1/runs/{run_id}/progress")["seconds"]) >= 2

    wait_for("traffic", is_running, 60, pause_s=0.2)


def last_engine_s(summary: dict[str, Any]) -> float:
    """Return the end of the last engine in epoch seconds."""
    return datetime.fromisoformat(summary["guards"]["stop"]["stopped_at"]).timestamp()


def sentences(summary: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["sentence"] for finding in summary["findings"]}


def stops_on_a_planted_breach(
    url: str, device: PlantedDevice, guard: str, **planted: Any
) -> dict[str, Any]:
    """Plant a breach during a burst, and return the summary of the run."""
    device.plant(cpu_ratio=QUIET_CPU, status=200)
    run_id = launched(url, [guard])
    wait_until_running(url, run_id)
    device.plant(**planted)
    summary = wait_for_summary(url, run_id)
    took_s = last_engine_s(summary) - device.planted_s
    assert 0 < took_s < STOP_WITHIN_S, summary["guards"]["stop"]
    assert summary["verdict"] == "inconclusive"
    assert "stopped by guard" in summary["bursts"][0]["pairs"][0]["reason"]
    return summary


def test_stops_all_traffic_when_the_device_cpu_is_above_the_limit(
    standing: tuple[Site, str], device: PlantedDevice
) -> None:
    site, url = standing
    # The source is polled every 5 s, and faster while the guard is armed.
    summary = stops_on_a_planted_breach(url, device, "cpu_ratio > 80%", cpu_ratio=0.97)
    stop, text = summary["guards"]["stop"], sentences(summary)["stopped-by-guard"]
    assert stop["stopped_pairs_count"] == PAIRS_COUNT
    assert "cpu_ratio of fw was 97.0 %, above the limit 80.0 %" in text
    impact = summary["guards"]["seconds"]
    before = [row for row in impact if row["values"] == [QUIET_CPU]]
    after = [row for row in impact if row["values"] == [0.97]]
    assert max(row["received_bits_per_second"] or 0 for row in before) > 4e6
    assert after[-1]["received_bits_per_second"] == 0
    assert len(after) >= READ_AFTER_S - 1
    printed = site.run("verdict", summary["run_id"], "--api", url).stdout
    assert "impact" in printed
    assert "97.0 %" in printed
    again = call(url, "GET", f"/v1/runs/{summary['run_id']}/recomputed")
    assert again["equal"], again
    report = HTTP.get(f"{url}/v1/runs/{summary['run_id']}/report").text
    assert "Impact in burst 1" in report


def test_stops_all_traffic_when_a_service_behind_the_device_fails(
    standing: tuple[Site, str], device: PlantedDevice
) -> None:
    _, url = standing
    stops_on_a_planted_breach(url, device, "url_failed_ratio > 0", status=503)


def test_a_silent_source_stops_the_run(standing: tuple[Site, str], device: PlantedDevice) -> None:
    _, url = standing
    device.plant(cpu_ratio=QUIET_CPU, status=200)
    run_id = launched(url, ["cpu_ratio > 80%"])
    wait_until_running(url, run_id)
    device.plant(cpu_ratio=None)
    summary = wait_for_summary(url, run_id)
    assert "cpu_ratio had no new value for 5 s" in sentences(summary)["stopped-by-guard"]


def test_quiet_run_is_not_stopped(standing: tuple[Site, str], device: PlantedDevice) -> None:
    _, url = standing
    device.plant(cpu_ratio=QUIET_CPU, status=200)
    guards = ["cpu_ratio > 80%", "url_failed_ratio > 0 for 2s", "probe_loss_ratio > 50% for 1s"]
    run_id = launched(url, guards, **{"traffic.probe.before_s": 4, "burst_s": 10})
    summary = wait_for_summary(url, run_id)
    assert summary["guards"].get("stop") is None, summary["guards"]["stop"]
    assert "stopped-by-guard" not in sentences(summary)
    assert [record["worst"] for record in summary["guards"]["guards"]][:2] == [QUIET_CPU, 0]
    assert all(record["readings_count"] > 10 for record in summary["guards"]["guards"])


def test_dry_run_tests_guards_and_the_stop_before_the_first_byte(
    standing: tuple[Site, str], device: PlantedDevice
) -> None:
    site, url = standing
    device.plant(cpu_ratio=QUIET_CPU, status=200)
    fields = [f"--set={name}={json.dumps(value)}" for name, value in OVERRIDES.items() if value]
    guards = ["--guard", "cpu_ratio > 80%", "--guard", "probe_rtt_s > 900ms"]
    done = site.run("launch", "smoke", "--dry-run", *guards, *fields, "-o", "json", "--api", url)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    text = sentences(summary)["dry-run"]
    assert f"{PAIRS_COUNT} of {PAIRS_COUNT} pairs were ready and stopped within" in text
    assert "cpu_ratio > 80.0 %: 31.0 %" in text
    assert summary["guards"]["stop"]["took_s"] < STOP_WITHIN_S
    assert summary["verdict"] == "measured"
    assert not summary["bursts"][0].get("fleet_received_bits_per_second")


def test_a_guard_without_a_value_prevents_the_launch(
    standing: tuple[Site, str], device: PlantedDevice
) -> None:
    _, url = standing
    body = {"scenario": "smoke", "overrides": OVERRIDES | {"guards": ["sessions_count > 100"]}}
    refused = HTTP.post(f"{url}/v1/runs", json=body)
    assert refused.status_code == 409
    assert "no device reports sessions_count" in refused.text
    device.plant(cpu_ratio=0.97)
    body["overrides"] = OVERRIDES | {"guards": ["cpu_ratio > 80%"]}
    refused = HTTP.post(f"{url}/v1/runs", json=body)
    assert refused.status_code == 409
    assert "fw has 97.0 % before the launch" in refused.text


def test_a_guard_that_cannot_be_armed_prevents_the_first_byte(
    standing: tuple[Site, str], device: PlantedDevice
) -> None:
    """The device answers at the launch, and is silent before the burst."""
    _, url = standing
    device.plant(cpu_ratio=QUIET_CPU, status=200)
    run_id = launched(url, ["cpu_ratio > 80%"], lead_s=20)
    device.plant(cpu_ratio=None)
    summary = wait_for_summary(url, run_id)
    text = sentences(summary)["guard-not-armed"]
    assert "cpu_ratio" in text
    assert summary["verdict"] == "inconclusive"
    stop = summary["guards"]["stop"]
    assert stop["is_before_start"]
    start_at = summary["bursts"][0]["planned_start_at"]
    assert datetime.fromisoformat(stop["stop_requested_at"]) < datetime.fromisoformat(start_at)
    assert not summary["bursts"][0].get("fleet_received_bits_per_second")
    # No job reports traffic.
    assert not [pair for pair in summary["bursts"][0]["pairs"] if pair.get("start_error_s")]
    # A silent device has no new value, so a launch is rejected as well.
    body = {"scenario": "smoke", "overrides": OVERRIDES | {"guards": ["cpu_ratio > 80%"]}}
    refused = HTTP.post(f"{url}/v1/runs", json=body)
    assert refused.status_code == 409
    assert "there is no value, so the guard cannot be armed" in refused.text


class WireSampler(threading.Thread):
    """Samples the bytes of an interface in a namespace.

    Attributes:
        samples: Tuples of epoch seconds and sent bytes.
    """

    def __init__(self, namespace: str, interface: str) -> None:
        super().__init__(daemon=True)
        self._namespace, self._interface = namespace, interface
        self._ended = threading.Event()
        self.samples: list[tuple[float, int]] = []

    def run(self) -> None:
        with inside(self._namespace):
            while not self._ended.wait(0.02):
                lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
                [line] = [line for line in lines if line.strip().startswith(self._interface + ":")]
                self.samples.append((time.time(), int(line.split(":")[1].split()[8])))

    def end(self) -> None:
        self._ended.set()
        self.join()

    def last_byte_s(self, packet_bytes: int = 1000) -> float:
        """Return the time of the last sample with at least one full packet of payload."""
        pairs = zip(self.samples, self.samples[1:], strict=False)
        return [at_s for (_, before), (at_s, now) in pairs if now - before >= packet_bytes][-1]


@pytest.mark.needs_root
def test_stops_all_traffic_when_probes_through_the_firewall_are_slow(tmp_path: Path) -> None:
    spec = LabSpec(
        pairs_count=PAIRS_COUNT,
        prefix=new_prefix(),
        nic_bits_per_second=20_000_000,
        firewall_bits_per_second=100_000_000,
        queue_s=0.3,
    )
    with built(spec) as lab, staged(lab, tmp_path) as stage:
        url = stage.coordinator.url
        overrides = {"traffic.probe.before_s": 4, "clock_bound_max_s": 0.05, "scale": 100}
        rate = {"traffic.stream_bits_per_second": 400_000_000}
        run_id = launched(url, ["probe_rtt_s > 100ms"], **overrides, **rate)
        wire = WireSampler(firewall_namespace(spec.prefix), "s0")
        wire.start()
        try:
            wait_until_running(url, run_id)
            planted_s = time.time()
            # The traffic is above this rate, so the queue of 0.3 s fills.
            set_firewall_rate(lab, 2_000_000)
            summary = wait_for_summary(url, run_id)
        finally:
            wire.end()
    assert "stopped-by-guard" in sentences(summary), sentences(summary)
    assert 0 < last_engine_s(summary) - planted_s < STOP_WITHIN_S, summary["guards"]["stop"]
    assert wire.last_byte_s() - planted_s < STOP_WITHIN_S


@pytest.mark.needs_root
def test_guards_of_hosts_that_use_https(tmp_path: Path, device: PlantedDevice) -> None:
    """The coordinator pushes the stop to agents that can only reach it over HTTPS."""
    spec = LabSpec(
        pairs_count=PAIRS_COUNT,
        prefix=new_prefix(),
        nic_bits_per_second=20_000_000,
        firewall_bits_per_second=100_000_000,
    )
    settings = device.telemetry(tmp_path)
    with (
        built(spec) as lab,
        staged(lab, tmp_path, device_counter={}, coordinator=settings, other_hosts=True) as stage,
    ):
        url = stage.coordinator.url
        summary = stops_on_a_planted_breach(url, device, "cpu_ratio > 80%", cpu_ratio=0.97)
        assert summary["guards"]["stop"]["stopped_pairs_count"] == PAIRS_COUNT
        device.plant(cpu_ratio=QUIET_CPU)
        run_id = launched(url, ["cpu_ratio > 80%"], dry_run=True)
        summary = wait_for_summary(url, run_id)
        assert f"{PAIRS_COUNT} of {PAIRS_COUNT} pairs" in sentences(summary)["dry-run"]
        assert summary["guards"]["stop"]["took_s"] < STOP_WITHIN_S
