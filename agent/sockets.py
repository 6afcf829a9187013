"""Listening and connected sockets on the ports of this host, from ``/proc``.

We do not connect to the ports, because ``iperf3 -s -1`` would exit after that.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# include/net/tcp_states.h. This is also used for a connected UDP socket.
ESTABLISHED: Final = 0x01
# The other end has closed the connection, but this end has not.
CLOSE_WAIT: Final = 0x08
LISTEN: Final = 0x0A


@dataclass(frozen=True, slots=True, kw_only=True)
class PortView:
    """State of a local port in the socket tables of the kernel.

    Attributes:
        listening: True if there is a TCP socket that is listening.
        tcp_count: Number of established connections.
        left_count: Number of connections that were closed by the client but not by the server.
        udp_count: Number of connected UDP sockets.
    """

    listening: bool
    tcp_count: int
    left_count: int
    udp_count: int

    @property
    def connected(self) -> bool:
        """True if there is a connection, even if the client has closed it."""
        return self.tcp_count + self.left_count > 0


def parse_sockets(text: str) -> Counter[tuple[int, int]]:
    """Count the sockets in a table for each local port and state.

    A line is ``sl local_address remote_address st ..``. Addresses and states are hexadecimal.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for line in text.splitlines()[1:]:
        _, local, _, state, *_ = line.split(maxsplit=4)
        counts[int(local.rpartition(":")[2], 16), int(state, 16)] += 1
    return counts


def read_ports(ports: Iterable[int]) -> Mapping[int, PortView]:
    """Return the current state of some ports in the network namespace of this thread."""
    tcp = _read("tcp") + _read("tcp6")
    udp = _read("udp") + _read("udp6")
    return {
        port: PortView(
            listening=tcp[port, LISTEN] > 0,
            tcp_count=tcp[port, ESTABLISHED],
            left_count=tcp[port, CLOSE_WAIT],
            udp_count=udp[port, ESTABLISHED],
        )
        for port in ports
    }


def _read(table: str) -> Counter[tuple[int, int]]:
    try:
        return parse_sockets(Path("/proc/thread-self/net", table).read_text())
    except FileNotFoundError:
        # There is no IPv6 on this host.
        return Counter()
