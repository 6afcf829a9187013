"""Test that planted CPU and share values of two devices in four modes are measured and drawn."""

import json
import sys
import time
from pathlib import Path

import pytest

from tests.devices.snmp_agent import CPU, SESSIONS, SnmpAgent, answering, gauge, interface32
from tests.live.labs import needs_snmpd
from tests.live.live_site import Site, wait_for_fleet

pytestmark = [
    pytest.mark.live,
    pytest.mark.quiet,
    needs_snmpd,
]

# The CPU of the devices in %, as measured on the routers of seed E per service.
MODES = {
    "cef": (47, 22),
    "acl": (55, 25),
    "zpf": (83, 41),
    "log": (99, 64),
}
SHARES = (0.7, 0.3)
POINTS = 0.02
# Use the command of a switch to copy the values of a mode to the files of both agents.
SWITCH = "import json, shutil, sys; [shutil.copy(f'{d}/{sys.argv[1]}.json', f'{d}/figures.json') for d in sys.argv[2:]]"  # noqa: E501
SMALL = [
    f"--set={field}"
    for field in ("pairs_count=1", "bursts_count=1", "burst_s=8", "lead_s=5", "late_after_s=5")
]
PACED = ["--set=traffic.streams_count=1", "--set=traffic.stream_bits_per_second=50M"]


def test_matrix_over_two_devices_measures_planted_values(tmp_path: Path) -> None:
    now_s = time.time()
    boxes = [SnmpAgent(tmp_path / name) for name in ("fw-a", "fw-b")]
    for number, box in enumerate(boxes):
        eth0 = interface32("eth0", 1, 10e6 * SHARES[number], from_s=now_s, start=0)
        box.figures = {CPU: gauge((0, 5)), SESSIONS: gauge((0, 100)), **eth0}
        box.folder.mkdir()
        for mode, busy in {**MODES, "rest": (5, 5)}.items():
            figures = {**box.figures, CPU: gauge((0, busy[number]))}
            (box.folder / f"{mode}.json").write_text(json.dumps(figures))
    folders = [str(box.folder) for box in boxes]
    lines = [
        f"{mode} = {json.dumps([sys.executable, '-S', '-c', SWITCH, mode, *folders])}"
        for mode in (*MODES, "rest")
    ]
    switches = tmp_path / "switches.toml"
    switches.write_text("\n".join(['[services]\nrest = "rest"\n[services.states]', *lines]))
    telemetry = tmp_path / "telemetry.toml"
    with answering(*boxes), Site(tmp_path) as site:
        fields = {"profile": "fortinet", "interfaces": ["eth0"], "cores_count": 2}
        entries = [box.entry(box.folder.name, **fields) for box in boxes]
        telemetry.write_text("\n".join(entries))
        _, url = site.start_coordinator(
            BROADSIDE_SWITCHES_FILE=str(switches), BROADSIDE_TELEMETRY_FILE=str(telemetry)
        )
        site.start_fleet(1)
        wait_for_fleet(url, 2)
        cpu_limit = "--set=objective.device_cpu_p95_max_ratio=0.9"
        modes = [f"--mode={mode}" for mode in MODES]
        requested = ["smoke", *modes, "--switch", "services", *SMALL, *PACED, cpu_limit]
        done = site.run("study", "matrix", *requested, "-o", "json", "--api", url, timeout_s=200)
        assert done.stdout, done.stderr
        study = json.loads(done.stdout)
        drawn = json.loads(
            site.run("study", "chart", study["study_id"], "-o", "json", "--api", url).stdout
        )
        pictured = site.run(
            "study", "chart", study["study_id"], "-f", str(tmp_path / "e.svg"), "--api", url
        )
        assert pictured.returncode == 0, pictured.stderr
        report = tmp_path / "e.html"
        written = site.run("study", "report", "last", "-f", str(report), "--api", url)
        assert written.returncode == 0, written.stderr
        printed = site.run("study", "report", "last", "-f", str(tmp_path / "e.pdf"), "--api", url)
        assert printed.returncode == 0, printed.stderr
        run_ids = [result["run_id"] for result in study["results"]]
        full = json.loads(site.run("verdict", run_ids[-1], "-o", "json", "--api", url).stdout)
        again = site.run("verdict", run_ids[0], "--recompute", "-o", "json", "--api", url)
        assert "differs" not in again.stderr, again.stderr
    for result, (mode, planted) in zip(study["results"], MODES.items(), strict=True):
        results = [load["cpu_ratio"] for load in result["devices"]]
        assert results == pytest.approx([busy / 100 for busy in planted], abs=POINTS), mode
        rates = [load["received_bits_per_second"] for load in result["devices"]]
        shares = [rate / sum(rates) for rate in rates]
        assert shares == pytest.approx(SHARES, abs=POINTS), mode
        assert result["verdict"] == ("fail" if max(planted) > 90 else "pass"), mode
    assert "fw-a: CPU 99.0 %" in next(
        item["sentence"] for item in full["findings"] if item["id"] == "device-load"
    )
    assert any(item["id"] == "device-cpu-limit" for item in full["findings"])
    traces = {series["name"]: series for series in drawn["figure"]["series"]}
    assert traces["fw-a, CPU"]["y"] == pytest.approx([47, 55, 83, 99], abs=2)
    assert traces["fw-b, CPU"]["y"] == pytest.approx([22, 25, 41, 64], abs=2)
    assert traces["fw-a, payload"]["y"][0] > 2 * traces["fw-b, payload"]["y"][0]
    assert (tmp_path / "e.pdf").read_bytes().startswith(b"%PDF-")
    for drawn_in in (tmp_path / "e.svg", report):
        assert "fw-b, CPU" in drawn_in.read_text()
