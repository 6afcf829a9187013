"""What an agent finds out about the host it runs on, once, when it starts."""

import json
import os
import platform
import socket
import subprocess
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.passport import read_passport
from broadside.exchange.messages import Passport

# Connecting a UDP socket sends nothing: it only asks the kernel for a route. Documentation
# addresses (RFC 5737, RFC 3849) stand for "anywhere".
ANYWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
IP_TIMEOUT_S: Final = 5.0


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


def find_host(settings: AgentSettings) -> Host:
    """Settings first, the host's own word second. Raises :class:`HostUnknown`."""
    address = str(settings.address) if settings.address is not None else find_address()
    nic = settings.nic or find_nic(address)
    return Host(
        address=address,
        nic=nic,
        nic_mtu_bytes=None if nic is None else find_mtu(nic),
        kernel=platform.release(),
        cpu_count=os.cpu_count(),
        passport=read_passport(nic),
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


def find_nic(address: str) -> str | None:
    """The interface that has an address, asked of ``ip``; None where that cannot be told."""
    if ip_address(address).is_loopback:
        return "lo"
    return next((str(link["ifname"]) for link in _ask_ip("addr", "show", "to", address)), None)


def find_mtu(nic: str) -> int | None:
    """An interface's MTU in bytes; None where that cannot be told."""
    return next((int(link["mtu"]) for link in _ask_ip("link", "show", "dev", nic)), None)


def _ask_ip(*words: str) -> list[dict[str, Any]]:
    """The interfaces that ``ip`` names; none where it does not answer."""
    try:
        answer = subprocess.run(
            ["ip", "-j", *words], capture_output=True, check=True, timeout=IP_TIMEOUT_S
        )
        return [link for link in json.loads(answer.stdout) if link]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
