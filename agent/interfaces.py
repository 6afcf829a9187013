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
_NLMSG_ERROR: Final = 2  # linux/netlink.h
_NLMSG_DONE: Final = 3
_NLM_F_REQUEST_DUMP: Final = 0x301
_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ADDRESS: Final = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefix, flags, scope, index
_ATTRIBUTE: Final = struct.Struct("=HH")  # struct rtattr: length, type
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
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        length = _HEADER.size + _ADDRESS.size
        header = _HEADER.pack(length, _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0)
        kernel.send(header + _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
        while True:
            for kind, content in _messages(kernel.recv(_READ_BYTES)):
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    (negative,) = struct.unpack_from("=i", content)
                    raise OSError(-negative, os.strerror(-negative))
                if kind == _RTM_NEWADDR:
                    *_, index = _ADDRESS.unpack_from(content)
                    attributes = dict(_attributes(content[_ADDRESS.size :]))
                    packed = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS))
                    if packed is not None:
                        yield index, ip_address(packed)


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


def _aligned(length: int) -> int:
    return (length + 3) & ~3
