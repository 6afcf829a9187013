"""Network interfaces of this host, from the kernel.

No program is started. If Debian's ``ip`` does not run as root, it calls ``capset``. The systemd
unit denies this call, so there would be no output to use.
"""

import fcntl
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from broadside.agent.netlink import REQUEST, REQUEST_DUMP, ask, attribute, attributes

# linux/rtnetlink.h.
_RTM_GETADDR: Final = 22
_RTM_NEWADDR: Final = 20
_RTM_GETROUTE: Final = 26
_RTM_NEWROUTE: Final = 24
# ``struct ifaddrmsg``: family, prefix, flags, scope, index.
_ADDRESS: Final = struct.Struct("=BBBBI")
# ``struct rtmsg``: family, lengths of both prefixes, tos, table, protocol, scope, type, flags.
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_RTA_DST: Final = 1
_RTA_SRC: Final = 2
_RTA_OIF: Final = 4
# linux/if_addr.h. For a point-to-point link this is the address of the other end.
_IFA_ADDRESS: Final = 1
_IFA_LOCAL: Final = 2
# linux/sockios.h.
_SIOCGIFMTU: Final = 0x8921


def interface_of(address: str) -> str | None:
    """Return the name of the interface with an address, or None if there is none.

    Raises:
        OSError: The kernel did not respond.
    """
    wanted = ip_address(address)
    if wanted.is_loopback:
        return "lo"
    index_of_nic = next((index for index, local in _addresses() if local == wanted), None)
    return None if index_of_nic is None else socket.if_indextoname(index_of_nic)


def addresses_count(nic: str, address: str) -> int | None:
    """Return how many addresses of an interface have the family of an address.

    Link-local addresses are not counted. None if the kernel did not respond.

    Args:
        nic: Name of the interface.
        address: Address of this host.

    Returns:
        Number of addresses without link-local ones. None if the kernel did not respond.
    """
    version = ip_address(address).version
    try:
        index = socket.if_nametoindex(nic)
        return sum(
            number == index and local.version == version and not local.is_link_local
            for number, local in _addresses()
        )
    except OSError:
        return None


def route_interface(target: str, source: str) -> str | None:
    """Return the interface that the kernel will use to send from one address to another.

    The kernel takes policy rules, bonds and the loopback between local addresses into account.

    Args:
        target: Address to send to.
        source: Address of this host.

    Returns:
        The name of the interface, or None if there is no route or the kernel did not respond.
    """
    packed, local = ip_address(target).packed, ip_address(source).packed
    if len(packed) != len(local):
        return None
    bits = len(packed) * 8
    family = socket.AF_INET if bits == 32 else socket.AF_INET6
    content = _ROUTE.pack(family, bits, bits, 0, 0, 0, 0, 0, 0)
    content += attribute(_RTA_DST, packed) + attribute(_RTA_SRC, local)
    try:
        for kind, answer in ask(_RTM_GETROUTE, REQUEST, content):
            if kind == _RTM_NEWROUTE:
                index = dict(attributes(answer[_ROUTE.size :])).get(_RTA_OIF)
                return None if index is None else socket.if_indextoname(*struct.unpack("=I", index))
    except OSError:
        return None
    return None


def mtu_bytes(interface: str) -> int:
    """Return the MTU of an interface.

    Raises:
        OSError: There is no such interface, or the kernel did not respond.
    """
    request = struct.pack("16si12x", interface.encode()[:15], 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFMTU, request)
    return int(struct.unpack_from("16si", answer)[1])


def _addresses() -> Iterator[tuple[int, IPv4Address | IPv6Address]]:
    """Yield all addresses of this host with the index of the interface (rtnetlink(7))."""
    request = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    for kind, content in ask(_RTM_GETADDR, REQUEST_DUMP, request):
        if kind == _RTM_NEWADDR:
            *_, index = _ADDRESS.unpack_from(content)
            fields = dict(attributes(content[_ADDRESS.size :]))
            packed = fields.get(_IFA_LOCAL, fields.get(_IFA_ADDRESS))
            if packed is not None:
                yield index, ip_address(packed)
