"""Host data that an agent detects when it starts."""

import os
import platform
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.host_info import read_passport
from broadside.agent.interfaces import interface_of, mtu_bytes
from broadside.exchange.messages import HostInfo

# We connect a UDP socket to get a route from the kernel. This does not send any data. The
# documentation addresses (RFC 5737, RFC 3849) are used for "any address".
ANYWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_NIC_FIX: Final = "set BROADSIDE_AGENT_NIC to the interface of the test's traffic"


class HostUnknown(Exception):
    """A value of this host cannot be detected.

    The message has the name of the setting to use instead.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Host data to be used in the presence.

    Attributes:
        address: IP address for the test traffic.
        nic: Interface with this address. None if it was not found, in this case there are no host
            counters.
        nic_mtu_bytes: MTU of the interface, if known.
        kernel: Kernel release.
        cpu_count: Number of CPUs, if known.
        passport: Hardware and kernel settings.
        warnings: Values that could not be detected, with the fix.
    """

    address: str
    nic: str | None
    nic_mtu_bytes: int | None
    kernel: str
    cpu_count: int | None
    passport: HostInfo
    warnings: tuple[str, ...] = ()


def find_host(settings: AgentSettings) -> Host:
    """Return the data of this host. Values in the settings are used first.

    Raises:
        HostUnknown: The address cannot be detected.
    """
    address = str(settings.address) if settings.address is not None else find_address()
    nic, mtu, warnings = _network(settings, address)
    passport = read_passport(nic, address)
    return Host(
        address=address,
        nic=nic,
        nic_mtu_bytes=mtu,
        kernel=platform.release(),
        cpu_count=os.cpu_count(),
        passport=passport,
        warnings=(*warnings, *_unread(nic, passport)),
    )


def find_address() -> str:
    """Return the source address of the default route.

    Raises:
        HostUnknown: There is no default route.
    """
    for family, anywhere in ANYWHERE:
        if (address := find_source(family, anywhere)) is not None:
            return address
    raise HostUnknown(
        "address: unknown, because this host has no default route; set BROADSIDE_AGENT_ADDRESS"
    )


def find_source(family: socket.AddressFamily, target: str) -> str | None:
    """Return the source address that is used to send to a target.

    Args:
        family: Address family of the target.
        target: IP address to send to.

    Returns:
        IP address of this host. None without a route.
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if ip_address(address).is_unspecified else address


def _network(settings: AgentSettings, address: str) -> tuple[str | None, int | None, list[str]]:
    """Return the interface, the MTU in bytes, and a warning for each value that is missing."""
    try:
        nic = settings.nic or interface_of(address)
    except OSError as error:
        return None, None, [f"interface of {address}: {error.strerror or error}; {_NIC_FIX}"]
    if nic is None:
        return (
            None,
            None,
            [f"interface: this host has no interface with the address {address}; {_NIC_FIX}"],
        )
    try:
        return nic, mtu_bytes(nic), []
    except OSError as error:
        return nic, None, [f"MTU of {nic}: {error.strerror or error}; {_NIC_FIX}"]


def _unread(nic: str | None, passport: HostInfo) -> list[str]:
    """Return a warning if any data is missing that should be available on all hosts."""
    parts = {
        "driver of " + str(nic): nic in (None, "lo") or passport.nic_driver,
        "/proc/sys/net": passport.sysctls,
        "/proc/cpuinfo": passport.cpu_flags or passport.cpu_model,
    }
    missing = [name for name, value in parts.items() if not value]
    if not missing:
        return []
    return [f"{', '.join(missing)}: cannot be read; the service's sandbox may hide it"]
