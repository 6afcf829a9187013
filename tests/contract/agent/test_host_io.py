"""Tests for host that need processes, sockets or real time."""

from datetime import UTC, datetime

import pytest

from broadside.agent.check import checks
from broadside.agent.host import Host
from broadside.agent.presence import AgentHealth, Lifetime, describe
from broadside.coordinator.core.plan.planner import _host_warnings
from broadside.exchange.messages import HostInfo, Presence
from tests.unit.agent.test_host import KNOWN, SETTINGS, find_test_host

AT = datetime(2026, 11, 26, tzinfo=UTC)


def presence_of(host: Host) -> Presence:
    return describe(SETTINGS, host, AgentHealth(), None, Lifetime(started_at=AT, now=AT))


def test_readable_host_has_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    host = find_test_host(monkeypatch, "eth0", 1500)
    assert (host.nic, host.nic_mtu_bytes, host.warnings) == ("eth0", 1500, ())
    assert "warnings" not in presence_of(host).model_dump(mode="json")
    assert not list(_host_warnings([presence_of(host)]))


@pytest.mark.parametrize(
    ("nic", "mtu", "passport", "message"),
    [
        (PermissionError(1, "not permitted"), 1500, KNOWN, "interface of 192.0.2.7: not permitted"),
        (None, 1500, KNOWN, "no interface with the address 192.0.2.7; set BROADSIDE_AGENT_NIC"),
        ("eth0", OSError(19, "No such device"), KNOWN, "MTU of eth0: No such device"),
        ("eth0", 1500, HostInfo(), "driver of eth0, /proc/sys/net, /proc/cpuinfo: cannot be read"),
    ],
)
def test_unreadable_value_is_reported_everywhere(
    monkeypatch: pytest.MonkeyPatch, nic: object, mtu: object, passport: HostInfo, message: str
) -> None:
    host = find_test_host(monkeypatch, nic, mtu, passport)
    assert any(message in warning for warning in host.warnings), host.warnings
    presence = presence_of(host)
    assert presence.warnings == host.warnings
    assert Presence.model_validate_json(presence.model_dump_json()) == presence
    (warned,) = _host_warnings([presence])
    assert "1 of 1 cannot read all metrics of their host" in warned
    assert message.split(";")[0][:20] in warned

    address = next(check for check in checks(SETTINGS) if check.name == "address")
    assert not address.ok
    assert not address.required
    assert message.partition("; ")[0] in address.detail
