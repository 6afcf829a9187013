"""Requests to the kernel over netlink(7), without a program that would need rights."""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

REQUEST: Final = 0x1  # linux/netlink.h: NLM_F_REQUEST
REQUEST_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_TYPE_MASK: Final = 0x3FFF  # NLA_TYPE_MASK
_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # struct nlattr: length, type
_READ_BYTES: Final = 65_536
_TIMEOUT_S: Final = 5.0


def ask(
    kind: int, flags: int, content: bytes, protocol: int = socket.NETLINK_ROUTE
) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each message with which the kernel answers one request.

    Raises:
        OSError: The kernel refused, or did not answer.
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
    """Type and content of each netlink message."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        yield kind, data[at + _HEADER.size : at + length]
        at += _aligned(length)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and value of each attribute."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def attribute(kind: int, value: bytes) -> bytes:
    """Return one attribute, padded."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(_aligned(length) - length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
