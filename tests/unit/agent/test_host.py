"""What an agent could not read of its host is a warning, in heartbeat, log and check."""

from datetime import UTC, datetime

import pytest

from broadside.agent import host as host_module
from broadside.agent.agent_settings import AgentSettings
from broadside.agent.check import checks
from broadside.agent.host import Host, find_host
from broadside.agent.netlink import _messages
from broadside.agent.presence import AgentHealth, describe
from broadside.coordinator.core.plan.planner import _host_warnings
from broadside.exchange.messages import HostInfo, Presence, Role

AT = datetime(2026, 11, 26, tzinfo=UTC)
KNOWN = HostInfo(nic_driver="virtio_net", sysctls={"net.core.rmem_max": "1"}, cpu_model="a CPU")
SETTINGS = AgentSettings(role=Role.CLIENT, address="192.0.2.7", agent_id="c1")


def found(
    monkeypatch: pytest.MonkeyPatch, nic: object, mtu: object, passport: HostInfo = KNOWN
) -> Host:
    def answer(value: object) -> object:
        if isinstance(value, OSError):
            raise value
        return value

    monkeypatch.setattr(host_module, "interface_of", lambda _: answer(nic))
    monkeypatch.setattr(host_module, "mtu_bytes", lambda _: answer(mtu))
    monkeypatch.setattr(host_module, "read_passport", lambda _: passport)
    return find_host(SETTINGS)


def presence_of(host: Host) -> Presence:
    return describe(SETTINGS, host, AgentHealth(), None, stopping=False, started_at=AT, now=AT)


def test_a_host_that_was_read_whole_has_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    host = found(monkeypatch, "eth0", 1500)
    assert (host.nic, host.nic_mtu_bytes, host.warnings) == ("eth0", 1500, ())
    assert "warnings" not in presence_of(host).model_dump(mode="json")
    assert not list(_host_warnings([presence_of(host)]))


@pytest.mark.parametrize(
    ("nic", "mtu", "passport", "said"),
    [
        (PermissionError(1, "not permitted"), 1500, KNOWN, "interface of 192.0.2.7: not permitted"),
        (None, 1500, KNOWN, "none of this host has the address 192.0.2.7; set BROADSIDE_AGENT_NIC"),
        ("eth0", OSError(19, "No such device"), KNOWN, "MTU of eth0: No such device"),
        ("eth0", 1500, HostInfo(), "driver of eth0, /proc/sys/net, /proc/cpuinfo: cannot be read"),
    ],
)
def test_what_could_not_be_read_is_told_everywhere(
    monkeypatch: pytest.MonkeyPatch, nic: object, mtu: object, passport: HostInfo, said: str
) -> None:
    host = found(monkeypatch, nic, mtu, passport)
    assert any(said in warning for warning in host.warnings), host.warnings
    presence = presence_of(host)
    assert presence.warnings == host.warnings
    assert Presence.model_validate_json(presence.model_dump_json()) == presence
    (warned,) = _host_warnings([presence])
    assert "1 of 1 cannot read all metrics of their host" in warned
    assert said.split(";")[0][:20] in warned

    address = next(check for check in checks(SETTINGS) if check.name == "address")
    assert not address.ok
    assert not address.required
    assert said.partition("; ")[0] in address.detail


def test_loopback_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    without = KNOWN.model_copy(update={"nic_driver": None})
    assert found(monkeypatch, "lo", 65536, without).warnings == ()


def test_a_cut_netlink_answer_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(OSError, match="Bad message"):
        list(_messages(bytes(16)))
