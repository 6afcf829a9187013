"""Test the linter for the compose file with valid and invalid files."""

import pytest

from tests.deploy_check import compose

COMPOSE = compose.COMPOSE.read_text(encoding="utf-8")


@pytest.mark.parametrize("profile", compose.PROFILES)
def test_compose_file_is_valid(profile: str) -> None:
    assert list(compose.faults(COMPOSE, profile)) == []


@pytest.mark.parametrize(
    ("valid", "invalid", "message"),
    [
        ("    read_only: true", "    readonly: true", "readonly"),
        ("      interval: 10s", "      interval: 10x", "duration"),
        ("127.0.0.1:5672:5672", "127.0.0.1:5672:99999", "99999"),
        ("127.0.0.1:5672:5672", "5672:5672", "open to the network"),
        ("    - data:/data", "    - date:/data", "date is not among the volumes"),
        ("networks: [fleet]", "networks: [flet]", "flet is not among the networks"),
        ("      mssql:\n", "      mysql:\n", "mysql is not among the services"),
        ("servicebus.json:", "bus.json:", "bus.json does not exist"),
        ("docker/emulators.env", "docker/emulator.env", "emulator.env does not exist"),
        ("docker/Dockerfile", "docker/Dockerfil", "Dockerfil does not exist"),
        ("${BROADSIDE_SUBNET:-172.31.77.0/24}", "${BROADSIDE_SUBNET}", "without a default"),
        ("name: broadside", "name: [broadside", "expected"),
    ],
)
def test_linter_detects_the_error(valid: str, invalid: str, message: str) -> None:
    assert valid in COMPOSE
    result = list(compose.faults(COMPOSE.replace(valid, invalid), "emulators"))
    assert any(message in fault for fault in result), result
