"""Who listens and who is connected on this host's ports, read from ``/proc``.

Never a connect probe: an ``iperf3 -s -1`` that is connected to and dropped ends.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ESTABLISHED: Final = 0x01  # include/net/tcp_states.h; also of a UDP socket that is connected
CLOSE_WAIT: Final = 0x08  # the other end has closed, this one has not
LISTEN: Final = 0x0A


@dataclass(frozen=True, slots=True, kw_only=True)
class PortView:
    """One local port as the kernel's tables show it."""

    listening: bool
    tcp_count: int  # established connections
    left_count: int  # connections whose client has left and whose server has not noticed
    udp_count: int  # connected sockets

    @property
    def connected(self) -> bool:
        return self.tcp_count + self.left_count > 0


def parse_sockets(text: str) -> Counter[tuple[int, int]]:
    """How many sockets of each (local port, state) one of the tables lists.

    A line is ``sl local_address remote_address st ..``; addresses and states are hexadecimal.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for line in text.splitlines()[1:]:
        _, local, _, state, *_ = line.split(maxsplit=4)
        counts[int(local.rpartition(":")[2], 16), int(state, 16)] += 1
    return counts


def read_ports(ports: Iterable[int]) -> Mapping[int, PortView]:
    """What this thread's network namespace shows of some ports just now."""
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
    except FileNotFoundError:  # no IPv6 here
        return Counter()
