"""Requests to the kernel using netlink(7), without a program that would need privileges."""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

# linux/netlink.h: NLM_F_REQUEST.
REQUEST: Final = 0x1
# NLM_F_REQUEST | NLM_F_DUMP.
REQUEST_DUMP: Final = 0x301
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
# NLA_TYPE_MASK.
_TYPE_MASK: Final = 0x3FFF
# ``struct nlmsghdr``: length, type, flags, sequence, port.
_HEADER: Final = struct.Struct("=IHHII")
# ``struct nlattr``: length, type.
_ATTRIBUTE: Final = struct.Struct("=HH")
_READ_BYTES: Final = 65_536
_TIMEOUT_S: Final = 5.0


def ask(
    kind: int, flags: int, content: bytes, protocol: int = socket.NETLINK_ROUTE
) -> Iterator[tuple[int, bytes]]:
    """Send a request to the kernel.

    Args:
        kind: Message type.
        flags: Message flags, :data:`REQUEST` or :data:`REQUEST_DUMP`.
        content: Body of the request.
        protocol: Netlink protocol.

    Yields:
        Type and content of each response message.

    Raises:
        OSError: The kernel returned an error, or did not respond.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
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
    """Yield the type and content of each netlink message."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        yield kind, data[at + _HEADER.size : at + length]
        at += _aligned(length)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and value of each attribute.

    Raises:
        OSError: An attribute is shorter than its own header (``EBADMSG``).
    """
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute with padding.

    Args:
        kind: Attribute type.
        value: Attribute value.
    """
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(_aligned(length) - length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
