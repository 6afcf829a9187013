"""Tests for the installed services and how they are checked by doctor."""

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
from broadside.exchange.checks import HostCheck

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


def test_ignores_unit_of_another_installation(units: Path) -> None:
    assert services_of(units) == ["agent"]
    assert services_of(units / "none") == []


def test_sandboxed_command_has_user_and_filters_of_service() -> None:
    text = sandboxed_unit(UNIT, ["/bin/echo", "two words"], Path("/run/o"), Path("/run/e"))
    assert text.splitlines() == [
        "[Service]",
        "User=broadside",
        "EnvironmentFile=/etc/broadside/environment",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@mount @privileged",
        "ReadWritePaths=-/var/lib/broadside",
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
def test_check_fails_for_inactive_service(
    monkeypatch: pytest.MonkeyPatch, shown: str, ok: bool, detail: str
) -> None:
    def run(*_: object, **__: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], 0, shown, "")

    monkeypatch.setattr(subprocess, "run", run)
    check = check_service("agent")
    assert (check.ok, check.required) == (ok, True)
    assert detail in check.detail
    assert (check.fix is None) is ok


async def test_doctor_checks_everything_without_installed_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(name: str) -> HostCheck:
        return HostCheck(name=name, ok=True, detail="")

    async def fabric_checks() -> tuple[list[HostCheck], list[str]]:
        return [check("fabric")], []

    async def telemetry_checks() -> list[HostCheck]:
        return [check("telemetry")]

    monkeypatch.setattr(doctor, "installed_services", list)
    monkeypatch.setattr(doctor, "agent_checks", lambda *_: [check("agent")])
    monkeypatch.setattr(doctor, "lab_checks", lambda: [check("lab")])
    monkeypatch.setattr(doctor, "fabric_checks", fabric_checks)
    monkeypatch.setattr(doctor, "telemetry_checks", telemetry_checks)
    names = {result.name for result in await doctor.all_checks()}
    assert names == {"agent", "lab", "fabric", "telemetry"}


@pytest.mark.parametrize("services", [["agent"], ["coordinator"], ["agent", "coordinator"]])
async def test_doctor_checks_every_installed_service_as_the_service(
    monkeypatch: pytest.MonkeyPatch, services: list[str]
) -> None:
    monkeypatch.setattr(doctor, "installed_services", lambda: services)
    monkeypatch.setattr(
        doctor, "service_checks", lambda name: [HostCheck(name=name, ok=True, detail="")]
    )
    assert [result.name for result in await doctor.all_checks()] == services
