"""Compare the host data that an agent reads with data from other kernel interfaces."""

import contextlib
import fcntl
import socket
import struct
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from broadside.agent.clock import read_kernel_clock
from broadside.agent.counters import CountersUnreadable, HostCounterReader
from broadside.agent.host import HostUnknown, find_address
from broadside.agent.interfaces import interface_of, mtu_bytes, route_interface
from broadside.agent.sockets import read_ports
from tests.unit.agent.jobs import INSTANT_AT

pytestmark = pytest.mark.live

# Defined in linux/sockios.h.
SIOCGIFADDR = 0x8915


def first_addresses() -> dict[str, str]:
    """Return the first IPv4 address of each interface that has one."""
    by_name = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
            except OSError:
                continue
            by_name[name] = socket.inet_ntoa(answer[20:24])
    return by_name


def test_finds_interface_of_every_address() -> None:
    addresses = first_addresses()
    by_name = {name: interface_of(address) for name, address in addresses.items()}
    # Labs of other tests will add and remove interfaces at the same time.
    steady = dict(addresses.items() & first_addresses().items())
    assert "lo" in steady
    assert {name: by_name[name] for name in steady} == {name: name for name in steady}
    assert interface_of("127.0.0.77") == "lo"
    # No interface has this documentation address.
    assert interface_of("203.0.113.77") is None


def test_reads_mtu_of_every_interface() -> None:
    steady = {name for _, name in socket.if_nameindex()}
    by_name = {}
    for name in steady:
        # The interface may already be removed if it belongs to another test.
        with contextlib.suppress(OSError):
            by_name[name] = mtu_bytes(name)
    for name, mtu in by_name.items():
        with contextlib.suppress(OSError):
            assert int(Path(f"/sys/class/net/{name}/mtu").read_text()) == mtu
    assert by_name["lo"] > 0
    with pytest.raises(OSError, match="No such device"):
        mtu_bytes("nosuch0")


def test_default_address_is_local() -> None:
    try:
        address = find_address()
    except HostUnknown as error:
        assert "BROADSIDE_AGENT_ADDRESS" in str(error)
    else:
        with socket.socket(
            socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
        ) as probe:
            # Only a local address can be bound.
            probe.bind((address, 0))


def test_counters_include_sent_bytes_and_packets() -> None:
    with (
        HostCounterReader("lo") as counters,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source,
    ):
        sink.bind(("127.0.0.1", 0))
        before = counters.read()
        for _ in range(10):
            source.sendto(bytes(1000), sink.getsockname())
        after = counters.read()
    assert after.nics["lo"].tx_bytes - before.nics["lo"].tx_bytes >= 10_000
    assert after.nics["lo"].tx_packets_count - before.nics["lo"].tx_packets_count >= 10
    with pytest.raises(CountersUnreadable, match="no interface nosuch0"):
        HostCounterReader("nosuch0")


def test_reads_socket_states_without_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        view = read_ports([port])[port]
        assert (view.listening, view.connected) == (True, False)
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            assert read_ports([port])[port].tcp_count == 1
            client.close()
            view = read_ports([port])[port]
            assert (view.tcp_count, view.left_count, view.connected) == (0, 1, True)
            accepted.close()
    view = read_ports([port])[port]
    assert (view.listening, view.connected) == (False, False)


def test_reads_kernel_clock() -> None:
    reading = read_kernel_clock(INSTANT_AT)
    assert reading.source == "adjtimex"
    assert reading.synchronised == (reading.bound_s is not None)


# Use two interfaces with a route each. A policy rule will send packets from the second address
# through the second interface, although the main table would use the first.
POLICY_ROUTES = """
set -e
ip link set lo up
ip link add a0 type veth peer name a1; ip link add b0 type veth peer name b1
for device in a0 a1 b0 b1; do ip link set $device up; done
ip address add 10.77.1.2/24 dev a0; ip address add 10.77.2.2/24 dev b0
ip route add 10.77.9.0/24 via 10.77.1.1 dev a0
ip route add 10.77.9.0/24 via 10.77.2.1 dev b0 table 100
ip rule add from 10.77.2.2 table 100
exec "$@"
"""
FIND_ROUTES = """
from broadside.agent.interfaces import route_interface as find
print(find("10.77.9.9", "10.77.1.2"), find("10.77.9.9", "10.77.2.2"))
print(find("10.77.1.2", "10.77.2.2"), find("127.0.0.2", "127.0.0.1"))
print(find("203.0.113.1", "10.77.1.2"), find("::1", "10.77.1.2"))
"""


@pytest.mark.needs_root
def test_route_interface_follows_policy_rules() -> None:
    ran = subprocess.run(
        ["unshare", "--net", "sh", "-c", POLICY_ROUTES, "sh", sys.executable, "-c", FIND_ROUTES],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["a0", "b0", "lo", "lo", "None", "None"]


def test_route_between_local_addresses_is_loopback() -> None:
    for address in first_addresses().values():
        assert route_interface(address, address) == "lo"
