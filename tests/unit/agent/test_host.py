"""Tests for warnings when an agent cannot read host information."""

import pytest

from broadside.agent import host as host_module
from broadside.agent.agent_settings import AgentSettings
from broadside.agent.host import Host, find_host
from broadside.agent.netlink import _messages
from broadside.exchange.messages import HostInfo, Role

KNOWN = HostInfo(nic_driver="virtio_net", sysctls={"net.core.rmem_max": "1"}, cpu_model="a CPU")
SETTINGS = AgentSettings(role=Role.CLIENT, address="192.0.2.7", agent_id="c1")


def find_test_host(
    monkeypatch: pytest.MonkeyPatch, nic: object, mtu: object, passport: HostInfo = KNOWN
) -> Host:
    def answer(value: object) -> object:
        if isinstance(value, OSError):
            raise value
        return value

    monkeypatch.setattr(host_module, "interface_of", lambda _: answer(nic))
    monkeypatch.setattr(host_module, "mtu_bytes", lambda _: answer(mtu))
    monkeypatch.setattr(host_module, "read_passport", lambda *_: passport)
    return find_host(SETTINGS)


def test_loopback_does_not_require_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    without = KNOWN.model_copy(update={"nic_driver": None})
    assert find_test_host(monkeypatch, "lo", 65536, without).warnings == ()


def test_truncated_netlink_answer_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad message"):
        list(_messages(bytes(16)))
