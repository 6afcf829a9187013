"""The device's own answer to a ping, by ICMP and TCP, from where the coordinator stands.

What goes through a device is its data plane's; what it answers itself is its control plane's, and
may starve first. One echo and one handshake a round; a refused connection is an answer too.
"""

import asyncio
import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from coordinator.core.measure.testimony import Quantity
from coordinator.device.ledgers.source import LedgerError
from coordinator.device.witnesses.polled import Answer, PolledWitness, Reading
from coordinator.device.witnesses.witness_file import PolledEntry, parsed
from exchange.messages import Address

WAIT_S: Final = 1.0  # s after which an echo or a handshake is lost
_ECHO: Final = {socket.AF_INET: (8, 0), socket.AF_INET6: (128, 129)}  # request, reply
_ICMP: Final = {socket.AF_INET: socket.IPPROTO_ICMP, socket.AF_INET6: socket.IPPROTO_ICMPV6}
_HEADER: Final = struct.Struct("!BBHHH")


class PingEntry(PolledEntry):
    address: Address  # the device's own, not one behind it
    icmp: bool = True
    tcp_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    poll_s: Annotated[float, Field(ge=0.2, le=3600)] = 1.0


class PingWitness:
    """Raises LedgerError where this host may not send an echo."""

    def __init__(self, entry: PingEntry) -> None:
        if not entry.icmp and entry.tcp_port is None:
            raise LedgerError(f"witness {entry.device}: icmp, tcp_port: neither; set one")
        self._entry = entry
        self._family = socket.AF_INET6 if ":" in entry.address else socket.AF_INET
        self._number = 0
        if entry.icmp:
            self._open().close()

    async def ask(self) -> Answer:
        entry = self._entry
        ways: list[tuple[Quantity, Callable[[], Awaitable[None]]]] = []
        if entry.icmp:
            ways.append((Quantity.PING_ICMP, self._echo))
        if entry.tcp_port is not None:
            ways.append((Quantity.PING_TCP, self._connect))
        told = await asyncio.gather(*(self._timed(quantity, way) for quantity, way in ways))
        return Answer(readings=[reading for one in told for reading in one])

    async def _timed(self, quantity: Quantity, way: Callable[[], Awaitable[None]]) -> list[Reading]:
        """The round trip at its own instant, and whether it was lost."""
        sent_s, began_s = time.time(), time.monotonic()
        lost = True
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(WAIT_S):
                await way()
            lost = False
        took_s = time.monotonic() - began_s
        loss = Reading(
            quantity=Quantity.PING_LOSS,
            instance=quantity.removeprefix("ping_").removesuffix("_s"),
            value=float(lost),
            at_s=sent_s,
        )
        if lost:
            return [loss]
        return [loss, Reading(quantity=quantity, value=took_s, at_s=sent_s, bound_s=took_s)]

    async def _connect(self) -> None:
        assert self._entry.tcp_port is not None  # noqa: S101  # asked for
        try:
            _, writer = await asyncio.open_connection(self._entry.address, self._entry.tcp_port)
        except ConnectionRefusedError:  # it answers
            return
        writer.transport.abort()

    async def _echo(self) -> None:
        self._number = (self._number + 1) & 0xFFFF
        request, reply = _ECHO[self._family]
        token = os.urandom(8)
        loop = asyncio.get_running_loop()
        with self._open() as ping:
            ping.setblocking(False)
            packet = _HEADER.pack(request, 0, 0, os.getpid() & 0xFFFF, self._number) + token
            checked = packet[:2] + struct.pack("!H", _checksum(packet)) + packet[4:]
            await loop.sock_sendto(ping, checked, (self._entry.address, 0))
            while True:  # until it is ours: a raw socket hears all of the host's
                answer = await loop.sock_recv(ping, 2048)
                if self._family == socket.AF_INET and answer[0] >> 4 == 4:
                    answer = answer[(answer[0] & 15) * 4 :]
                is_reply = answer[:1] == bytes([reply if reply else 0])
                if is_reply and answer[_HEADER.size : _HEADER.size + 8] == token:
                    return

    def _open(self) -> socket.socket:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                return socket.socket(self._family, kind, _ICMP[self._family])
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EPROTONOSUPPORT):
                    raise
        raise LedgerError(
            f"witness {self._entry.device}: icmp: this host may not send an echo; widen "
            "net.ipv4.ping_group_range, or set icmp = false and a tcp_port"
        )


def _checksum(packet: bytes) -> int:
    """RFC 1071; of ICMPv6 the kernel's own takes its place."""
    total: int = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def open_source(entry: Mapping[str, Any]) -> PolledWitness:
    named = parsed(PingEntry, entry)
    return PolledWitness(PingWitness(named).ask, name=f"ping {named.address}", entry=named)
