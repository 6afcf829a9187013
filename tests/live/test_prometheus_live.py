"""Test a real Prometheus that scrapes a coordinator, and the queries of the dashboards."""

import asyncio
import itertools
import json
import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from broadside.coordinator.core.measure.telemetry import DeviceTelemetry, Quantity
from broadside.coordinator.device.telemetry.config import open_telemetry
from broadside.coordinator.views.prometheus_metrics import METRICS
from tests.live.free_ports import free_port
from tests.live.live_site import HTTP, Site, call, wait_for_fleet
from tests.live.waiting import wait_for
from tests.unit.dashboards.test_dashboards import dashboard_queries

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
BURST = {"pairs_count": 2, "burst_s": 30, "bursts_count": 1, "lead_s": 5}
PACED = {"traffic.streams_count": 1, "traffic.stream_bits_per_second": 20_000_000}


def query(url: str, expression: str, **at: float) -> list[dict[str, Any]]:
    requested = httpx.QueryParams(query=expression, **at)
    answer = HTTP.get(f"{url}/api/v1/query", params=requested)
    answer.raise_for_status()
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def serves(url: str) -> bool:
    try:
        return HTTP.get(f"{url}/-/ready").is_success
    except httpx.TransportError:
        return False


def configure(folder: Path, url: str, token: str) -> None:
    """Write the committed configuration for this coordinator, with an interval of 1 s."""
    committed = ROOT / "dashboards" / "prometheus"
    shutil.copy(committed / "broadside.rules.yml", folder)
    settings = yaml.safe_load((committed / "prometheus.yml").read_text("utf-8"))
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    (folder / "broadside.token").write_text(token)


def start_prometheus(folder: Path) -> tuple[str, "subprocess.Popen[bytes]"]:
    """Start Prometheus and return its URL and process. ``folder`` contains ``prometheus.yml``."""
    tool = shutil.which("prometheus")
    assert tool, "apt-get install prometheus (make tools)"
    url = f"http://127.0.0.1:{(port := free_port())}"
    with (folder / "prometheus.log").open("wb") as log:
        command = [tool, f"--config.file={folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={folder / 'tsdb'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=10y"]
        return url, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def token_of(site: Site, role: str) -> str:
    added = site.run("token", "add", role, "--role", role, "-o", "json")
    token: str = json.loads(added.stdout)["token"]
    return token


async def read_telemetry(folder: Path, url: str) -> DeviceTelemetry:
    """Return the telemetry of the last minute as the end of a run reads it."""
    path = folder / "telemetry.toml"
    path.write_text(
        f'[[source]]\ndevice = "fw"\ntype = "prometheus"\nurl = "{url}"\nstep_s = 1\n'
        'read = [{ quantity = "health_ratio", query = \'up{job="broadside"}\' }]\n'
    )
    [source] = open_telemetry(path)
    for _ in range(60):
        now = datetime.now(UTC)
        reported = await source.query(now - timedelta(minutes=1), now)
        if (
            reported.series
            and len(reported.series[0].at_s) >= 3
            and reported.series[0].values.min() == 1.0
        ):
            break
        await asyncio.sleep(1)
    return reported


def test_prometheus_scrapes_the_fleet_rate_with_a_token(tmp_path: Path) -> None:
    with Site(tmp_path) as site:
        token, launcher = (token_of(site, role) for role in ("viewer", "operator"))
        _, url = site.start_coordinator(BROADSIDE_SIGN_IN="on")
        site.start_fleet(2)
        assert httpx.get(f"{url}/metrics", timeout=10).status_code == 401
        configure(tmp_path, url, token)
        prometheus, process = start_prometheus(tmp_path)
        site.processes.append(process)
        signed = {"headers": {"Authorization": f"Bearer {launcher}"}}
        wait_for_fleet(url, 4, headers=signed["headers"])
        wait_for("Prometheus", lambda: serves(prometheus))
        body = {"scenario": "smoke", "overrides": BURST | PACED}
        call(url, "POST", "/v1/runs", json=body, **signed)

        def rate() -> float | None:
            result = query(prometheus, "max(broadside_fleet_bytes_per_second)")
            return float(result[0]["value"][1]) if result else None

        first = wait_for("the fleet's rate in Prometheus", rate)
        # Two pairs will send 20 Mbit/s per stream. The first uploads may contain only part of the
        # fleet.
        assert 1e6 < 8 * first < 100e6
        wait_for("a scrape", lambda: query(prometheus, 'up{job="broadside"} == 1'))
        reported = asyncio.run(read_telemetry(tmp_path, prometheus))
        [health] = reported.of(Quantity.HEALTH)
        assert set(health.values) == {1.0}
        assert len(health.at_s) >= 3
        assert reported.read_at.timestamp() - health.at_s[-1] < 60
        rules = httpx.get(f"{prometheus}/api/v1/rules", timeout=10).json()["data"]["groups"]
        assert all(rule["health"] != "err" for group in rules for rule in group["rules"])
        written = (ROOT / "dashboards/prometheus/broadside.rules.yml").read_text()
        assert sum(len(group["rules"]) for group in rules) == written.count("- alert:")


LABELS = {
    "role": ("client", "server"),
    "state": ("idle", "stale", "dead"),
    "layer": ("ip", "payload"),
    "verdict": ("pass", "fail"),
    "run_id": ("run-1",),
}


def recorded(at_s: float) -> str:
    """Return metrics of two coordinators of one fleet at ``at_s`` in OpenMetrics format."""
    lines = []
    for name, (_, labels) in METRICS.items():
        lines.append(f"# TYPE {name} gauge")
        reported = itertools.product(
            ("one:8080", "two:8080"), *(LABELS.get(x, ("x",)) for x in labels)
        )
        for instance, *values in reported:
            pairs = zip(("job", "instance", *labels), ("broadside", instance, *values), strict=True)
            text = ",".join(f'{label}="{value}"' for label, value in pairs)
            lines.append(f"{name}{{{text}}} {0 if 'fail' in values else 1} {at_s}")
    return "\n".join([*lines, "# EOF\n"])


def test_dashboard_queries_do_not_sum_two_coordinators(tmp_path: Path) -> None:
    at_s = time.time() - 86_400
    (tmp_path / "recorded.txt").write_text(recorded(at_s))
    (tmp_path / "prometheus.yml").write_text("global: {scrape_interval: 1m}\n")
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "recorded.txt", "tsdb"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    prometheus, process = start_prometheus(tmp_path)
    try:
        wait_for("Prometheus", lambda: serves(prometheus))

        def answers(expression: str, instance: str, run: str) -> list[tuple[Any, float]]:
            chosen = expression.replace("$instance", instance).replace("$run", run)
            result = query(prometheus, chosen, time=at_s)
            return sorted((str(item["metric"]), float(item["value"][1])) for item in result)

        compared_count = 0
        for title, expression in dashboard_queries():
            both = answers(expression, ".*", ".*")
            assert both, f"{title}: nothing for {expression}"
            if "by (instance)" not in expression and "$instance" in expression:
                assert both == answers(expression, "one:8080", "run-1"), title
                compared_count += 1
            if "$run" in expression:
                assert answers(expression, ".*", "another") == [], title
        assert compared_count > 20
    finally:
        process.terminate()
        process.wait(timeout=30)
