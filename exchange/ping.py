"""Measure the round-trip time to a device with an ICMP echo or a TCP handshake.

The device answers these requests in its control plane, not in its data plane.
"""

import asyncio
import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Final

# If there is no reply within this time, it will be counted as lost.
WAIT_S: Final = 1.0
# Additional time in which this process can read a reply that arrived before ``WAIT_S`` ended.
LOOK_S: Final = 0.05
# ICMP types of request and reply.
_ECHO: Final = {socket.AF_INET: (8, 0), socket.AF_INET6: (128, 129)}
_ICMP: Final = {socket.AF_INET: socket.IPPROTO_ICMP, socket.AF_INET6: socket.IPPROTO_ICMPV6}
_HEADER: Final = struct.Struct("!BBHHH")
_NUMBERS: Final = count(1)
PingMethod = Callable[[], Coroutine[object, object, object]]


def may_echo(address: str) -> bool:
    """Return True if this process may send an ICMP echo request."""
    opened = _open(_family(address))
    if opened is not None:
        opened.close()
    return opened is not None


async def timed(method: PingMethod) -> float | None:
    """Measure the duration of one probe.

    On a busy host this process can read a reply late. Such a reply does not count as lost.

    Args:
        method: A function that creates the probe, such as :func:`echo`.

    Returns:
        Duration in seconds, or None if the probe was lost.
    """
    began_s = time.monotonic()
    asking = asyncio.create_task(method())
    try:
        for wait_s in (WAIT_S, LOOK_S):
            if (await asyncio.wait({asking}, timeout=wait_s))[0]:
                break
        took_s = time.monotonic() - began_s
        return took_s if asking.done() and asking.exception() is None else None
    finally:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await asking


async def handshake(address: str, port: int) -> None:
    """Open one TCP connection and reset it.

    A refused connection counts as a reply too.

    Args:
        address: The device address.
        port: The TCP port.

    Raises:
        OSError: The connection failed for another reason.
    """
    try:
        _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return
    writer.transport.abort()


async def echo(address: str) -> None:
    """Send one ICMP echo request and wait for the reply.

    Raises:
        OSError: The request cannot be sent.
    """
    family = _family(address)
    number = next(_NUMBERS) & 0xFFFF
    request, reply = _ECHO[family]
    token = os.urandom(8)
    loop = asyncio.get_running_loop()
    opened = _open(family)
    if opened is None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    with opened as ping:
        ping.setblocking(False)
        packet = _HEADER.pack(request, 0, 0, os.getpid() & 0xFFFF, number) + token
        checked = packet[:2] + struct.pack("!H", _checksum(packet)) + packet[4:]
        await loop.sock_sendto(ping, checked, (address, 0))
        # A raw socket will receive all ICMP packets of the host, so we need to skip other replies.
        while True:
            answer = await loop.sock_recv(ping, 2048)
            if family == socket.AF_INET and answer[0] >> 4 == 4:
                answer = answer[(answer[0] & 15) * 4 :]
            is_reply = answer[:1] == bytes([reply])
            if is_reply and answer[_HEADER.size : _HEADER.size + 8] == token:
                return


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _open(family: socket.AddressFamily) -> socket.socket | None:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            return socket.socket(family, kind, _ICMP[family])
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EPROTONOSUPPORT):
                raise
    return None


def _checksum(packet: bytes) -> int:
    """Return the checksum of RFC 1071. The kernel replaces it for ICMPv6."""
    total: int = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
