"""Tests for rejecting unsupported combinations of settings."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from broadside.coordinator.api.app import create_app
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import EngineState, Presence, Role
from broadside.exchange.outage_log import utc_now
from tests.live.commands import run_command
from tests.unit.coordinator.presences import presence

SELF_SIGNED = EngineState(name="https", ports=(8443,), self_signed=True)
NO_CERTIFICATE = EngineState(
    name="https", problem="certificate: none given, and none could be made"
)
UDP = {"traffic.protocol": "udp", "traffic.stream_bits_per_second": 1_000_000}

WRONG: list[tuple[dict[str, Any], EngineState, str, str]] = [
    (
        {**UDP, "objective.retransmit_max_ratio": 0.01},
        SELF_SIGNED,
        "objective.retransmit_max_ratio",
        "iperf3 over udp does not measure it",
    ),
    (
        {"traffic.engine": "ftp", "traffic.protocol": "udp", "traffic.streams_count": 8},
        SELF_SIGNED,
        "traffic.protocol",
        "engine ftp does not support protocol udp",
    ),
    (
        {"traffic.protocol": "udp"},
        SELF_SIGNED,
        "traffic.stream_bits_per_second",
        "UDP needs a rate per stream",
    ),
    ({**UDP, "traffic.mss_bytes": 1400}, SELF_SIGNED, "traffic.mss_bytes", "UDP has no segments"),
    (
        {**UDP, "traffic.congestion": "bbr"},
        SELF_SIGNED,
        "traffic.congestion",
        "UDP has no congestion control",
    ),
    ({"traffic.probe": "icmp"}, SELF_SIGNED, "traffic.probe", "udp or off (got 'icmp')"),
    ({"traffic.encapsulation": "gre"}, SELF_SIGNED, "traffic.encapsulation", "vxlan or none"),
    (
        {"traffic.engine": "http", "traffic.options.requests_per_second": True},
        SELF_SIGNED,
        "traffic.options.requests_per_second",
        "Input should be a number (got True)",
    ),
    (
        {"traffic.engine": "ftp", "traffic.options.file_bytes": True},
        SELF_SIGNED,
        "traffic.options.file_bytes",
        "Input should be a number (got True)",
    ),
    (
        {"traffic.encapsulation": "vxlan"},
        SELF_SIGNED,
        "traffic.encapsulation",
        "4 of 4 agents cannot create VXLAN devices",
    ),
    (
        {"traffic.engine": "https", "traffic.options.verify": True},
        SELF_SIGNED,
        "traffic.options.verify",
        "2 server agents have only a self-signed certificate",
    ),
    (
        {"traffic.engine": "https"},
        NO_CERTIFICATE,
        "traffic.engine",
        "certificate: none given, and none could be made",
    ),
]


def fleet(https: EngineState) -> list[Presence]:
    """Return two pairs without the permission to create tunnels."""
    now = utc_now()
    state = EngineState(name="https", version="vegeta 12.13.0")
    return [
        presence(
            role,
            index,
            beat_at=now,
            started_at=now,
            engines=(state if role is Role.CLIENT else https,),
        )
        for role in Role
        for index in (1, 2)
    ]


async def launch_over_api(folder: Path, agents: list[Presence], body: object) -> httpx.Response:
    """Return the response when a run is launched with these agents."""
    fabric = open_fabric(FabricSettings(data_dir=folder))
    try:
        for agent in agents:
            await fabric.records.fleet.beat(agent)
        api = create_app(Coordinator(fabric), tick_s=None)
        transport = httpx.ASGITransport(app=api)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return await client.post("/v1/runs", json=body)
    finally:
        await fabric.close()


@pytest.mark.parametrize(("overrides", "https", "field", "message"), WRONG)
def test_rejects_unsupported_combination_by_field(
    overrides: dict[str, Any],
    https: EngineState,
    field: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    body = {"scenario": "smoke", "overrides": overrides}
    answer = asyncio.run(launch_over_api(tmp_path, fleet(https), body))
    assert answer.status_code in (409, 422), answer.text
    assert f"{field}: " in answer.json()["detail"]
    assert message in answer.json()["detail"]

    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path))
    settings = [f"--set={name}={json.dumps(value)}" for name, value in overrides.items()]
    done = run_command(["launch", "smoke", *settings], monkeypatch, capfd)
    assert done.returncode in (3, 4), done
    assert done.stdout == ""
    assert f"{field}: " in done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
