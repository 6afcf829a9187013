from pathlib import Path

import pytest
from pydantic import ValidationError

from broadside.agent.agent_settings import AgentSettings
from broadside.exchange.messages import Role
from tests.unit.agent.jobs import make_settings


def test_environment_variables_set_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ROLE": "server",
        "AGENT_ID": "server-7",
        "PORTS": "5201-5203, 5300",
        "ALLOWED_NETWORKS": "10.1.0.0/16,fd00::/8",
        "SPOOL_DIR": "/var/lib/broadside",
    }.items():
        monkeypatch.setenv(f"BROADSIDE_AGENT_{name}", value)
    settings = AgentSettings()
    assert settings.role is Role.SERVER
    assert settings.agent_id == "server-7"
    assert settings.ports == (5201, 5202, 5203, 5300)
    assert [str(network) for network in settings.allowed_networks] == ["10.1.0.0/16", "fd00::/8"]
    assert settings.spool_path == Path("/var/lib/broadside")


def test_only_private_targets_are_allowed_by_default() -> None:
    settings = make_settings()
    allowed = ["10.2.1.1", "172.31.0.1", "192.168.3.4", "127.0.0.1", "::1"]
    assert [a for a in allowed if not settings.is_allowed(a)] == []
    refused = ["8.8.8.8", "172.32.0.1", "192.0.2.1", "2001:db8::1", "169.254.169.254"]
    assert [a for a in refused if settings.is_allowed(a)] == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ports", "5201-x", "5201-5204,5210"),
        ("ports", "70000", "65535"),
        ("ports", "", "at least 1"),
        ("allowed_networks", "10.0.0.1/8", "host bits set"),
        ("allowed_networks", "here", "10.0.0.0/8,192.168.7.0/24"),
        ("agent_id", "a b", "pattern"),
        ("control_poll_s", 60, "2.5"),
    ],
)
def test_invalid_value_is_rejected_with_a_message(field: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_settings(**{field: value})


def test_two_agents_on_one_host_use_different_spools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert make_settings(agent_id="a").spool_path == Path("/state/broadside/a/client")
    assert make_settings(agent_id="a", role="server").spool_path.name == "server"
    assert make_settings(agent_id="b").spool_path != make_settings(agent_id="a").spool_path
