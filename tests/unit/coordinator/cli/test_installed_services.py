"""Which services a host has, and how doctor looks at them from inside."""

import subprocess
import sys
from pathlib import Path

import pytest

from broadside.coordinator.cli import doctor
from broadside.coordinator.cli.installed_services import (
    check_service,
    sandboxed_unit,
)
from broadside.coordinator.cli.installed_services import (
    installed_services as services_of,
)
from broadside.exchange.checks import Check

UNIT = f"""[Unit]
Description=Broadside agent

[Service]
Type=exec
User=broadside
ExecStart={sys.prefix}/bin/python -m broadside.agent
ExecStopPost=-/bin/true
Restart=always
RestartSec=5
# A comment with = in it
EnvironmentFile=/etc/broadside/environment
SystemCallFilter=@system-service
SystemCallFilter=~@mount @privileged
StateDirectory=broadside

[Install]
WantedBy=multi-user.target
"""


@pytest.fixture
def units(tmp_path: Path) -> Path:
    (tmp_path / "broadside-agent.service").write_text(UNIT)
    other = UNIT.replace(sys.prefix, "/opt/another")
    (tmp_path / "broadside-coordinator.service").write_text(other)
    return tmp_path


def test_a_unit_of_another_installation_is_not_this_ones(units: Path) -> None:
    assert services_of(units) == ["agent"]
    assert services_of(units / "none") == []


def test_a_command_has_the_users_rights_and_the_filters_of_the_service() -> None:
    text = sandboxed_unit(UNIT, ["/bin/echo", "two words"], Path("/run/o"), Path("/run/e"))
    assert text.splitlines() == [
        "[Service]",
        "User=broadside",
        "EnvironmentFile=/etc/broadside/environment",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@mount @privileged",
        "Type=oneshot",
        "ExecStart=/bin/echo 'two words'",
        "StandardOutput=file:/run/o",
        "StandardError=file:/run/e",
    ]


@pytest.mark.parametrize(
    ("shown", "ok", "detail"),
    [
        ("NRestarts=0\nResult=success\nActiveState=active\n", True, "is active"),
        ("NRestarts=3\nResult=success\nActiveState=active\n", True, "is active, restarted 3 times"),
        (
            "NRestarts=9\nResult=exit-code\nActiveState=activating\n",
            False,
            "is activating, restarted 9 times, last result: exit-code",
        ),
        ("", False, "is unknown"),
    ],
)
def test_a_service_that_is_not_at_work_fails(
    monkeypatch: pytest.MonkeyPatch, shown: str, ok: bool, detail: str
) -> None:
    def run(*_: object, **__: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], 0, shown, "")

    monkeypatch.setattr(subprocess, "run", run)
    check = check_service("agent")
    assert (check.ok, check.required) == (ok, True)
    assert detail in check.detail
    assert (check.fix is None) is ok


@pytest.mark.parametrize(
    ("services", "asked"),
    [
        ([], {"agent", "lab", "fabric", "telemetry"}),
        (["agent"], {"service agent", "agent", "agent fabric"}),
        (["coordinator"], {"service coordinator", "fabric", "telemetry"}),
        (
            ["agent", "coordinator"],
            {"service agent", "service coordinator", "agent", "fabric", "telemetry"},
        ),
    ],
)
async def test_a_host_is_asked_for_what_its_services_need(
    monkeypatch: pytest.MonkeyPatch, services: list[str], asked: set[str]
) -> None:
    def check(name: str) -> Check:
        return Check(name=name, ok=True, detail="")

    async def on_fabric() -> tuple[list[Check], list[str]]:
        return [check("fabric")], []

    async def of_agent() -> list[Check]:
        return [check("agent fabric")]

    async def on_telemetry() -> list[Check]:
        return [check("telemetry")]

    monkeypatch.setattr(doctor, "installed_services", lambda: services)
    monkeypatch.setattr(doctor, "check_service", lambda name: check(f"service {name}"))
    monkeypatch.setattr(doctor, "agent_checks", lambda *_: [check("agent")])
    monkeypatch.setattr(doctor, "lab_checks", lambda: [check("lab")])
    monkeypatch.setattr(doctor, "fabric_checks", on_fabric)
    monkeypatch.setattr(doctor, "agent_fabric_checks", of_agent)
    monkeypatch.setattr(doctor, "telemetry_checks", on_telemetry)
    assert {result.name for result in await doctor._checks()} == asked
