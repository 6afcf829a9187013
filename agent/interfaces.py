"""Network interfaces of this host, read from the kernel.

No program is started. Debian's ``ip`` calls ``capset`` where it does not run as root, the service's
unit denies that call, and ``ip`` then prints nothing that could be used.
"""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_RTM_GETADDR: Final = 22  # linux/rtnetlink.h
_RTM_NEWADDR: Final = 20
_RTM_GETROUTE: Final = 26
_RTM_NEWROUTE: Final = 24
_NLMSG_ERROR: Final = 2  # linux/netlink.h
_NLMSG_DONE: Final = 3
_NLM_F_REQUEST: Final = 0x1
_NLM_F_REQUEST_DUMP: Final = 0x301
_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ADDRESS: Final = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefix, flags, scope, index
# struct rtmsg: family, lengths of the two prefixes, tos, table, protocol, scope, type, flags
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")  # struct rtattr: length, type
_RTA_DST: Final = 1  # linux/rtnetlink.h
_RTA_SRC: Final = 2
_RTA_OIF: Final = 4
_IFA_ADDRESS: Final = 1  # linux/if_addr.h: of a point-to-point link the other end's
_IFA_LOCAL: Final = 2
_SIOCGIFMTU: Final = 0x8921  # linux/sockios.h
_READ_BYTES: Final = 65_536
_TIMEOUT_S: Final = 5.0


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
    content += _attribute(_RTA_DST, packed) + _attribute(_RTA_SRC, own)
    try:
        for kind, answer in _ask(_RTM_GETROUTE, _NLM_F_REQUEST, content):
            if kind == _RTM_NEWROUTE:
                index = dict(_attributes(answer[_ROUTE.size :])).get(_RTA_OIF)
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
    for kind, content in _ask(_RTM_GETADDR, _NLM_F_REQUEST_DUMP, request):
        if kind == _RTM_NEWADDR:
            *_, index = _ADDRESS.unpack_from(content)
            attributes = dict(_attributes(content[_ADDRESS.size :]))
            packed = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS))
            if packed is not None:
                yield index, ip_address(packed)


def _ask(kind: int, flags: int, content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each message with which the kernel answers one request."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(content), kind, flags, 1, 0) + content)
        while True:
            for answered, message in _messages(kernel.recv(_READ_BYTES)):
                if answered == _NLMSG_DONE:
                    return
                if answered == _NLMSG_ERROR:
                    (negative,) = struct.unpack_from("=i", message)
                    raise OSError(-negative, os.strerror(-negative))
                yield answered, message


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each netlink message."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        yield kind, data[at + _HEADER.size : at + length]
        at += _aligned(length)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def _attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(_aligned(length) - length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
