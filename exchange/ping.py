"""One echo, or one handshake, with a device itself: what it answers is its control plane's."""

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

WAIT_S: Final = 1.0  # s after which an answer is lost
LOOK_S: Final = 0.05  # s to look at what came by then
_ECHO: Final = {socket.AF_INET: (8, 0), socket.AF_INET6: (128, 129)}  # request, reply
_ICMP: Final = {socket.AF_INET: socket.IPPROTO_ICMP, socket.AF_INET6: socket.IPPROTO_ICMPV6}
_HEADER: Final = struct.Struct("!BBHHH")
_NUMBERS: Final = count(1)
Way = Callable[[], Coroutine[object, object, object]]


def may_echo(address: str) -> bool:
    """Whether this process may send an echo request."""
    opened = _open(_family(address))
    if opened is not None:
        opened.close()
    return opened is not None


async def timed(way: Way) -> float | None:
    """How long one way to ask took, s; None: the answer is lost.

    A busy host may look late: what came meanwhile is no loss.
    """
    began_s = time.monotonic()
    asking = asyncio.create_task(way())
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
    """One TCP connection, opened and reset; a refused one is an answer too. Raises ``OSError``."""
    try:
        _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return
    writer.transport.abort()


async def echo(address: str) -> None:
    """One ICMP echo, until its reply is here. Raises ``OSError``."""
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
        while True:  # until it is ours: a raw socket hears all of the host's
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
    """RFC 1071; of ICMPv6 the kernel's own takes its place."""
    total: int = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
