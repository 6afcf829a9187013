"""Network interfaces of this host, read from the kernel.

No program is started. Debian's ``ip`` calls ``capset`` where it does not run as root, the service's
unit denies that call, and ``ip`` then prints nothing that could be used.
"""

import fcntl
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from broadside.agent.netlink import REQUEST, REQUEST_DUMP, ask, attribute, attributes

_RTM_GETADDR: Final = 22  # linux/rtnetlink.h
_RTM_NEWADDR: Final = 20
_RTM_GETROUTE: Final = 26
_RTM_NEWROUTE: Final = 24
_ADDRESS: Final = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefix, flags, scope, index
# struct rtmsg: family, lengths of the two prefixes, tos, table, protocol, scope, type, flags
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_RTA_DST: Final = 1  # linux/rtnetlink.h
_RTA_SRC: Final = 2
_RTA_OIF: Final = 4
_IFA_ADDRESS: Final = 1  # linux/if_addr.h: of a point-to-point link the other end's
_IFA_LOCAL: Final = 2
_SIOCGIFMTU: Final = 0x8921  # linux/sockios.h


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has an address; None where none has it.

    Raises:
        OSError: The kernel did not answer.
    """
    wanted = ip_address(address)
    if wanted.is_loopback:
        return "lo"
    found = next((index for index, own in _addresses() if own == wanted), None)
    return None if found is None else socket.if_indextoname(found)


def route_interface(target: str, source: str) -> str | None:
    """Return the interface by which the kernel sends from one address to another.

    Policy rules, bonds and the loopback between addresses of one host are all the kernel's answer.

    Args:
        target: The other end's address.
        source: This host's address.

    Returns:
        The interface's name; None where there is no route, or the kernel did not answer.
    """
    packed, own = ip_address(target).packed, ip_address(source).packed
    if len(packed) != len(own):
        return None
    bits = len(packed) * 8
    family = socket.AF_INET if bits == 32 else socket.AF_INET6
    content = _ROUTE.pack(family, bits, bits, 0, 0, 0, 0, 0, 0)
    content += attribute(_RTA_DST, packed) + attribute(_RTA_SRC, own)
    try:
        for kind, answer in ask(_RTM_GETROUTE, REQUEST, content):
            if kind == _RTM_NEWROUTE:
                index = dict(attributes(answer[_ROUTE.size :])).get(_RTA_OIF)
                return None if index is None else socket.if_indextoname(*struct.unpack("=I", index))
    except OSError:
        return None
    return None


def mtu_bytes(interface: str) -> int:
    """Return an interface's MTU.

    Raises:
        OSError: There is no such interface, or the kernel did not answer.
    """
    request = struct.pack("16si12x", interface.encode()[:15], 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFMTU, request)
    return int(struct.unpack_from("16si", answer)[1])


def _addresses() -> Iterator[tuple[int, IPv4Address | IPv6Address]]:
    """Every address of this host, with the index of its interface (rtnetlink(7))."""
    request = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    for kind, content in ask(_RTM_GETADDR, REQUEST_DUMP, request):
        if kind == _RTM_NEWADDR:
            *_, index = _ADDRESS.unpack_from(content)
            told = dict(attributes(content[_ADDRESS.size :]))
            packed = told.get(_IFA_LOCAL, told.get(_IFA_ADDRESS))
            if packed is not None:
                yield index, ip_address(packed)
