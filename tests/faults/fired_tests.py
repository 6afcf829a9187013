"""Record the bytes and times of each connection at the lab's firewall.

This is the evidence that *a pair fires once per burst*. It does not depend on records of an agent.
The kernel delivers a copy of each packet, also if its sender is killed immediately after.
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

# The firewall's interface to the clients.
CLIENT_SIDE: Final = "c0"
# The port of every engine's server in the lab.
PORT: Final = 5201
_ETH_P_IP: Final = 0x0800
_TCP: Final = 6
# Defined in linux/socket.h.
_SOL_PACKET: Final = 263
# Defined in linux/if_packet.h. The value has two unsigned ints, packets and drops.
_STATISTICS: Final = 6
# IP and TCP headers with all options.
_HEADERS_BYTES: Final = 120
# Defined in asm-generic/socket.h.
_SO_RCVBUFFORCE: Final = 33
_WAIT_S: Final = 0.5
# The buffer for packets that wait while this process gets no CPU.
_ROOM_BYTES: Final = 8 << 20


@dataclass(slots=True, kw_only=True)
class Connection:
    """TCP connection to an engine's server that crossed the firewall.

    Attributes:
        client: IP address of the client.
        server: IP address of the server.
        first_at_s: First payload in either direction, epoch s.
        payload_bytes: Bytes of both directions, including retransmissions.
    """

    client: str
    client_port: int
    server: str
    first_at_s: float
    payload_bytes: int = 0


class Wire:
    """Packet listener in the firewall's namespace with its own thread, created by ``watched``."""

    def __init__(self, tap: socket.socket) -> None:
        self._tap = tap
        self._found: dict[tuple[str, int, str], Connection] = {}
        self._lock = threading.Lock()
        self.ended = threading.Event()

    def connections(self, since_s: float) -> tuple[Connection, ...]:
        """Return the connections with their first payload since ``since_s`` (epoch s)."""
        with self._lock:
            return tuple(c for c in self._found.values() if c.first_at_s >= since_s)

    @property
    def dropped_count(self) -> int:
        """Return the number of packets dropped since the last call. They were not counted."""
        counts: bytes = self._tap.getsockopt(_SOL_PACKET, _STATISTICS, 8)
        return int(struct.unpack("II", counts)[1])

    def listen(self) -> None:
        """Count packets until :attr:`ended`."""
        while not self.ended.is_set():
            with contextlib.suppress(TimeoutError):
                self.see(self._tap.recv(_HEADERS_BYTES), time.time())

    def see(self, packet: bytes, at_s: float) -> None:
        """Count one IPv4 packet. The headers are sufficient."""
        header_bytes = (packet[0] & 15) * 4
        if packet[9] != _TCP or len(packet) < header_bytes + 14:
            return
        from_port, to_port = struct.unpack_from("!HH", packet, header_bytes)
        complete_bytes = struct.unpack_from("!H", packet, 2)[0]
        payload_bytes = complete_bytes - header_bytes - (packet[header_bytes + 12] >> 4) * 4
        if payload_bytes <= 0 or PORT not in (from_port, to_port):
            return
        sender, receiver = (socket.inet_ntoa(packet[at : at + 4]) for at in (12, 16))
        if to_port != PORT:
            sender, receiver, from_port = receiver, sender, to_port
        with self._lock:
            result = self._found.setdefault(
                (sender, from_port, receiver),
                Connection(client=sender, client_port=from_port, server=receiver, first_at_s=at_s),
            )
            result.payload_bytes += payload_bytes


@contextlib.contextmanager
def watched(firewall: str) -> Iterator[Wire]:
    """Record the connections through a firewall's namespace."""
    with inside(firewall):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
        tap.bind((CLIENT_SIDE, _ETH_P_IP))
    try:
        tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)
    # In a user namespace the limit of the machine applies.
    except PermissionError:
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
