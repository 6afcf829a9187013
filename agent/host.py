"""What an agent finds out about the host it runs on, once, when it starts."""

import os
import platform
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.interfaces import interface_of, mtu_bytes
from broadside.agent.passport import read_passport
from broadside.exchange.messages import Passport

# Connecting a UDP socket sends nothing: it only asks the kernel for a route. Documentation
# addresses (RFC 5737, RFC 3849) stand for "anywhere".
ANYWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_NIC_FIX: Final = "set BROADSIDE_AGENT_NIC to the interface of the test's traffic"


class HostUnknown(Exception):
    """Something about this host cannot be told; says what, and which setting tells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The facts that a presence carries."""

    address: str
    nic: str | None  # None: could not be found, so there are no host counters
    nic_mtu_bytes: int | None
    kernel: str
    cpu_count: int | None
    passport: Passport
    warnings: tuple[str, ...] = ()  # what could not be read, with the fix


def find_host(settings: AgentSettings) -> Host:
    """Return what settings and kernel say of this host; settings win.

    Raises:
        HostUnknown: Its address cannot be found.
    """
    address = str(settings.address) if settings.address is not None else find_address()
    nic, mtu, warnings = _network(settings, address)
    passport = read_passport(nic)
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
    """The source address of the default route. Raises :class:`HostUnknown`."""
    for family, anywhere in ANYWHERE:
        if (address := find_source(family, anywhere)) is not None:
            return address
    raise HostUnknown(
        "address: this host has no default route to tell it by; set BROADSIDE_AGENT_ADDRESS"
    )


def find_source(family: socket.AddressFamily, target: str) -> str | None:
    """The address from which this host would send to a target; None where it has no route."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if ip_address(address).is_unspecified else address


def _network(settings: AgentSettings, address: str) -> tuple[str | None, int | None, list[str]]:
    """Return interface, MTU in bytes, and a warning for each part that could not be read."""
    try:
        nic = settings.nic or interface_of(address)
    except OSError as error:
        return None, None, [f"interface of {address}: {error.strerror or error}; {_NIC_FIX}"]
    if nic is None:
        return None, None, [f"interface: none of this host has the address {address}; {_NIC_FIX}"]
    try:
        return nic, mtu_bytes(nic), []
    except OSError as error:
        return nic, None, [f"MTU of {nic}: {error.strerror or error}; {_NIC_FIX}"]


def _unread(nic: str | None, passport: Passport) -> list[str]:
    """Return a warning where the parts of a passport that every host has could not be read."""
    parts = {
        "driver of " + str(nic): nic in (None, "lo") or passport.nic_driver,
        "/proc/sys/net": passport.sysctls,
        "/proc/cpuinfo": passport.cpu_flags or passport.cpu_model,
    }
    missing = [name for name, value in parts.items() if not value]
    if not missing:
        return []
    return [f"{', '.join(missing)}: cannot be read; the service's sandbox may hide it"]
