"""Two network namespaces connected by a veth pair, and the packets received during a test."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.exchange.messages import Protocol
from tests.live.waiting import wait_for

QUEUE_BYTES: Final = 400_000
SEQUENCES: Final = 2**32
# Read all received packets with the kernel's timestamp, which does not change if a core is busy.
# The exit code is 1 if a packet was missed.
_READ: Final = """
import signal, socket, struct, sys
RCVBUFFORCE, TIMESTAMPNS, SOL_PACKET, STATISTICS, IGNORE_OUTGOING = 33, 35, 263, 6, 23
stopped = False
def stop(*_):
    # Read the packets that were received before, and do not cut the line that is being printed.
    global stopped
    stopped = True
signal.signal(signal.SIGTERM, stop)
tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
tap.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, 64 << 20)
tap.setsockopt(socket.SOL_SOCKET, TIMESTAMPNS, 1)
tap.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
tap.settimeout(0.2)
tap.bind(("veth0", 0x0800))
print("at_s protocol from to sequence payload", flush=True)
while True:
    try:
        head, [(_, _, stamp)], *_ = tap.recvmsg(96, 64)
    except TimeoutError:
        if stopped:
            break
        continue
    start, protocol = (head[0] & 15) * 4, head[9]
    if protocol not in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
        continue
    ports = struct.unpack_from("!HH", head, start)
    sequence, length = 0, 8
    if protocol == socket.IPPROTO_TCP:
        [sequence], length = struct.unpack_from("!I", head, start + 4), (head[start + 12] >> 4) * 4
    payload = (head[2] << 8 | head[3]) - start - length
    seconds, nanoseconds = struct.unpack("qq", stamp[:16])
    if payload:
        print(seconds + nanoseconds / 1e9, protocol, *ports, sequence, payload)
_, dropped = struct.unpack("II", tap.getsockopt(SOL_PACKET, STATISTICS, 8))
raise SystemExit(dropped > 0)
"""


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)


class Meter:
    """Recorder of the packets that one interface receives, until it is closed."""

    def __init__(self, prefix: tuple[str, ...]) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the meter
        argv = [*prefix, sys.executable, "-c", _READ]
        self._process = subprocess.Popen(argv, stdout=self._output)
        wait_for("a first line", lambda: os.fstat(self._output.fileno()).st_size > 0)

    def close(self) -> None:
        self._process.terminate()
        assert self._process.wait() == 0, "packets were dropped"
        self._output.seek(0)
        self._lines = self._output.read().splitlines()[1:]
        self._output.close()

    def payload(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the payload bytes that a receiver could have read between edges (epoch s).

        For TCP a byte is counted once, when all bytes up to it have arrived. It is not
        possible to read retransmitted data and data behind a lost segment, even if it is on the
        wire. Close the meter to get the complete result.
        """
        streams: dict[tuple[str, ...], list[tuple[float, int, int]]] = {}
        for line in self._lines:
            at_s, *stream, sequence, size = line.split()
            streams.setdefault(tuple(stream), []).append((float(at_s), int(sequence), int(size)))
        read = [
            item
            for (protocol, *_), packets in streams.items()
            for item in (_in_order(packets) if protocol == "6" else _in_arrival_order(packets))
        ]
        at_s, sizes = np.array(read, np.float64).T
        return np.histogram(at_s, edges, weights=sizes)[0].astype(np.float64)


def _in_arrival_order(packets: Iterable[tuple[float, int, int]]) -> Iterator[tuple[float, int]]:
    for at_s, _, size in packets:
        yield at_s, size


def _in_order(packets: Iterable[tuple[float, int, int]]) -> Iterator[tuple[float, int]]:
    """Yield the times at which bytes of one TCP stream can be read, and their numbers."""
    first: int | None = None
    end, stored = 0, list[tuple[int, int]]()
    for at_s, sequence, size in packets:
        first = sequence if first is None else first
        gap = (sequence - first - end + SEQUENCES // 2) % SEQUENCES - SEQUENCES // 2
        heappush(stored, (end + gap, size))
        before = end
        while stored and stored[0][0] <= end:
            start, length = heappop(stored)
            end = max(end, start + length)
        yield at_s, end - before


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Client and server namespaces with a configurable rate.

    Attributes:
        client: Command prefix that runs a command in the client namespace.
        server: Command prefix for the server namespace.
        address: IP address of the server.
    """

    client: tuple[str, ...]
    server: tuple[str, ...]
    address: str = "10.77.0.2"
    ends: tuple[tuple[str, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", (self.client, self.server))

    def limit(self, bits_per_second: int) -> None:
        """Limit the rate for both ends, with a queue that can hold a full window."""
        for prefix in self.ends:
            shape = f"tbf rate {bits_per_second}bit burst 8kb limit {QUEUE_BYTES}"
            run(*prefix, "tc", "qdisc", "replace", "dev", "veth0", "root", *shape.split())

    def darken(self, dark: bool) -> None:
        """Start or stop dropping all packets that either end sends, before they are on the wire."""
        lines = "delete table netdev dark"
        # The egress hook does not report the drop to the sender, but the output hook would.
        if dark:
            hook = 'type filter hook egress device "veth0" priority 0; policy drop;'
            lines = f"table netdev dark {{ chain out {{ {hook} }}; }}"
        for prefix in self.ends:
            subprocess.run([*prefix, "nft", "-f", "-"], input=lines, text=True, check=True)

    def lose(self, ratio: float, protocol: Protocol = Protocol.UDP) -> None:
        """Drop this ratio of the packets to either end, at random."""
        some = f"numgen random mod 1000 < {round(ratio * 1000)}" if ratio < 1 else ""
        lines = (
            "table ip loss { chain in { type filter hook input priority 0; "
            f"meta l4proto {protocol} {some} drop; }}; }}"
        )
        for prefix in self.ends:
            subprocess.run([*prefix, "nft", "-f", "-"], input=lines, text=True, check=True)

    @contextmanager
    def meters(self) -> Iterator[tuple[Meter, Meter]]:
        """Yield the meters of the client (downlink) and the server (uplink)."""
        with ExitStack() as stack:
            down, up = (stack.enter_context(closing(Meter(prefix))) for prefix in self.ends)
            yield down, up


@contextmanager
def wire() -> Iterator[Wire]:
    """Create the namespaces and remove them at the end."""
    client, server = (f"bswire{os.getpid()}{end}" for end in "cs")
    made = []
    try:
        for namespace in (client, server):
            run("ip", "netns", "add", namespace)
            made.append(namespace)
        peer = f"peer name veth0 netns {server}".split()
        run("ip", "link", "add", "veth0", "netns", client, "type", "veth", *peer)
        for namespace, address in ((client, "10.77.0.1"), (server, "10.77.0.2")):
            run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "veth0")
            run("ip", "-n", namespace, "link", "set", "veth0", "up")
        yield Wire(client=("ip", "netns", "exec", client), server=("ip", "netns", "exec", server))
    finally:
        for namespace in made:
            run("ip", "netns", "del", namespace)
