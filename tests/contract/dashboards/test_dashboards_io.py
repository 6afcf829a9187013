"""Tests for dashboards that need processes, sockets or real time."""

import shutil
import subprocess

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from broadside.coordinator.views.prometheus_metrics import METRICS
from tests.unit.dashboards.test_dashboards import PROMETHEUS, alerts


def test_promtool_accepts_all_metrics() -> None:
    registry = CollectorRegistry()
    for name, (text, labels) in METRICS.items():
        gauge = Gauge(name, text, labels, registry=registry)
        (gauge.labels(*labels) if labels else gauge).set(1.0)
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_promtool_accepts_rules_and_rule_tests() -> None:
    tool = shutil.which("promtool")
    assert tool, "apt-get install prometheus (make tools)"
    for arguments in (
        ["check", "rules", "broadside.rules.yml"],
        ["test", "rules", "broadside.test.yml"],
    ):
        done = subprocess.run(
            [tool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    tested = (PROMETHEUS / "broadside.test.yml").read_text("utf-8")
    for rule in alerts():
        assert tested.count(f"alertname: {rule['alert']}\n") == 1, f"{rule['alert']}: no test"
