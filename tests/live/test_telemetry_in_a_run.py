"""Test that the verdict contains faults of three of four devices during a run."""

import asyncio
import json
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.records import Document
from tests.devices.snmp_agent import CPU, MEMORY, SESSIONS, SnmpAgent, answering, gauge, interface32
from tests.live.labs import needs_snmpd
from tests.live.live_site import Site, call, wait_for_fleet, wait_for_summary

pytestmark = [
    pytest.mark.live,
    needs_snmpd,
]

BURST_S = 14
# The time is relative to the start of the burst.
MID_S = 5.0
LEAD_S = 8
# The unit is bytes per second.
RATE = 2_000_000.0
OVERRIDES = {
    "pairs_count": 1,
    "bursts_count": 1,
    "burst_s": BURST_S,
    "lead_s": LEAD_S,
    "late_after_s": 5,
    "traffic.streams_count": 1,
    "traffic.stream_bits_per_second": 50_000_000,
}


def test_finds_only_planted_reboot_wrap_and_dead_agent(tmp_path: Path) -> None:
    planted = {CPU: gauge((0, 37)), MEMORY: gauge((0, 12)), SESSIONS: gauge((0, 4321))}
    names = ("steady", "rebooted", "wrapped", "dead")
    boxes = {name: SnmpAgent(tmp_path / name, figures=dict(planted)) for name in names}
    fixed = {"start": 2**32 - RATE, "from_s": time.time()}
    boxes["wrapped"].figures = planted | dict(interface32("eth0", 1, 0.0, **fixed))
    telemetry = tmp_path / "telemetry.toml"
    with answering(*boxes.values()), Site(tmp_path) as site:
        more: dict[str, dict[str, Any]] = {
            "rebooted": {"version": "3", "interfaces": ["lo"]},
            "wrapped": {"interfaces": ["eth0"]},
        }
        entries = [
            box.entry(name, profile="fortinet", **more.get(name, {"interfaces": ["lo"]}))
            for name, box in boxes.items()
        ]
        telemetry.write_text("\n".join(entries))
        _, url = site.start_coordinator(
            BROADSIDE_TELEMETRY_FILE=str(telemetry), BROADSIDE_LOG_LEVEL="DEBUG"
        )
        site.start_fleet(1)
        wait_for_fleet(url, 2)
        body = {"scenario": "smoke", "overrides": OVERRIDES, "by": "tester"}
        run_id = call(url, "POST", "/v1/runs", json=body)["run_id"]
        begins_s = time.time() + LEAD_S
        # The counter will wrap after a second.
        moves = {"start": 2**32 - RATE, "from_s": begins_s + MID_S}
        boxes["wrapped"].plant(planted | dict(interface32("eth0", 1, RATE, **moves)))
        time.sleep(max(0.0, begins_s + MID_S - time.time()))
        boxes["dead"].stop()
        boxes["rebooted"].stop()
        boxes["rebooted"].start()
        summary = wait_for_summary(url, run_id, 120)
        chart = call(url, "GET", f"/v1/runs/{run_id}/charts/device")["figure"]
    lines = {series["name"].partition(" (")[0]: series["y"] for series in chart["series"]}
    # A second of all devices is unknown if it is unknown for the one that ended.
    assert lines["CPU"][1] == pytest.approx(100)
    assert lines["CPU"][-1] is None
    text = {
        finding["id"]: finding["sentence"]
        for finding in summary["findings"]
        if finding["id"].startswith("telemetry-")
    }
    assert text.keys() == {"telemetry-restarted", "telemetry-wrapped", "telemetry-silent"}, text
    assert text["telemetry-restarted"].startswith("rebooted or its agent restarted")
    assert text["telemetry-wrapped"].startswith("wrapped has a counter that wrapped")
    assert "dead" in text["telemetry-silent"]
    assert not any("steady" in sentence for sentence in text.values())
    [burst] = summary["bursts"]
    known = {item["device"]: item["cpu_ratio"] for item in burst["devices"]}
    assert known["steady"]["covered_ratio"] == 1.0
    assert known["dead"] is None or known["dead"]["covered_ratio"] < 1.0
    for name in ("steady", "rebooted", "wrapped"):
        assert known[name]["mean"] == pytest.approx(0.37), name
    left = {path.name: path.read_bytes() for path in tmp_path.glob("*.log")}
    stored = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    left |= {path.name: path.read_bytes() for path in stored}
    left["summary"] = json.dumps(summary).encode()
    left["testimony"] = asyncio.run(stored_telemetry(tmp_path / "data", run_id))
    assert b"rebooted" in left["testimony"]
    assert stored
    for box in boxes.values():
        for secret in (box.community, box.auth_key, box.privacy_key):
            assert [name for name, current in left.items() if secret.encode() in current] == []


async def stored_telemetry(data_dir: Path, run_id: str) -> bytes:
    """Return the stored telemetry of a run and its burst, unpacked."""
    fabric = open_fabric(FabricSettings(data_dir=data_dir))
    try:
        stored = [
            await fabric.records.private.read_document(run_id, Document.TELEMETRY, index)
            for index in (None, 0)
        ]
    finally:
        await fabric.close()
    return b"".join(zlib.decompress(item) for item in stored if item is not None)
