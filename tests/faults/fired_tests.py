"""What the firewall of the lab saw of each connection: who sent how many bytes, and when.

This is the evidence for *a pair fires once per burst*. It needs no record of an agent: the kernel
hands a copy of each packet over, also of those whose sender is killed a moment later.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broadside.lab.namespaces import inside

CLIENT_SIDE: Final = "c0"  # the firewall's interface to the clients
PORT: Final = 5201  # of every engine's server in the lab
_ETH_P_IP: Final = 0x0800
_TCP: Final = 6
_SOL_PACKET: Final = 263  # linux/socket.h
_STATISTICS: Final = 6  # linux/if_packet.h: two unsigned ints, packets and drops
_HEADERS_BYTES: Final = 120  # of IP and TCP, with all their options
_SO_RCVBUFFORCE: Final = 33  # asm-generic/socket.h
_WAIT_S: Final = 0.5
_ROOM_BYTES: Final = 8 << 20  # of packets that wait while we get no core


@dataclass(slots=True, kw_only=True)
class Connection:
    """One TCP connection to an engine's server, as it crossed the firewall."""

    client: str  # address
    client_port: int
    server: str
    first_at_s: float  # epoch s of the first payload, either way
    payload_bytes: int = 0  # both ways, repeated segments each time


class Wire:
    """Listens in the firewall's namespace from a thread of its own. A context manager's product."""

    def __init__(self, tap: socket.socket) -> None:
        self._tap = tap
        self._found: dict[tuple[str, int, str], Connection] = {}
        self._lock = threading.Lock()
        self.ended = threading.Event()

    def connections(self, since_s: float) -> tuple[Connection, ...]:
        """Those whose first payload came since then (epoch s)."""
        with self._lock:
            return tuple(c for c in self._found.values() if c.first_at_s >= since_s)

    @property
    def dropped_count(self) -> int:
        """Packets since the last question that found no room: with any, less was seen."""
        counts: bytes = self._tap.getsockopt(_SOL_PACKET, _STATISTICS, 8)
        return int(struct.unpack("II", counts)[1])

    def listen(self) -> None:
        """Count packets until :attr:`ended`."""
        while not self.ended.is_set():
            with contextlib.suppress(TimeoutError):
                self.see(self._tap.recv(_HEADERS_BYTES), time.time())

    def see(self, packet: bytes, at_s: float) -> None:
        """Count one IPv4 packet, of which the headers are enough."""
        header_bytes = (packet[0] & 15) * 4
        if packet[9] != _TCP or len(packet) < header_bytes + 14:
            return
        from_port, to_port = struct.unpack_from("!HH", packet, header_bytes)
        whole_bytes = struct.unpack_from("!H", packet, 2)[0]
        payload_bytes = whole_bytes - header_bytes - (packet[header_bytes + 12] >> 4) * 4
        if payload_bytes <= 0 or PORT not in (from_port, to_port):
            return
        sender, receiver = (socket.inet_ntoa(packet[at : at + 4]) for at in (12, 16))
        if to_port != PORT:
            sender, receiver, from_port = receiver, sender, to_port
        with self._lock:
            found = self._found.setdefault(
                (sender, from_port, receiver),
                Connection(client=sender, client_port=from_port, server=receiver, first_at_s=at_s),
            )
            found.payload_bytes += payload_bytes


@contextlib.contextmanager
def watched(firewall: str) -> Iterator[Wire]:
    """Watch the connections through a firewall's namespace."""
    with inside(firewall):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
        tap.bind((CLIENT_SIDE, _ETH_P_IP))
    try:
        tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)
    except PermissionError:  # in a user namespace: up to the machine's limit
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM_BYTES)
    tap.settimeout(_WAIT_S)
    wire = Wire(tap)
    thread = threading.Thread(target=wire.listen, daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        wire.ended.set()
        thread.join()
        tap.close()
