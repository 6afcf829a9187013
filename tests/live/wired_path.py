"""Two network namespaces with a wire between them, and counters read on it during a test."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.exchange.messages import Protocol
from tests.live.waiting import wait_for

QUEUE_BYTES: Final = 400_000
READ_S: Final = 0.005  # between two reads of a counter
# Of each packet on the wire that is no payload: Ethernet, IPv4, and TCP with time stamps or UDP. A
# packet that segmentation offload has joined is counted once, with one set of headers.
HEADERS_BYTES: Final = {Protocol.TCP: 14 + 20 + 20 + 12, Protocol.UDP: 14 + 20 + 8}
_READ: Final = f"""
import sys, time
names = ["/sys/class/net/veth0/statistics/rx_" + each for each in ("bytes", "packets")]
files = [open(name) for name in names]
while True:
    at = time.time()
    values = []
    for file in files:
        file.seek(0)
        values.append(file.read().strip())
    print((at + time.time()) / 2, *values, flush=True)
    time.sleep({READ_S})
"""


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)


class Meter:
    """Reads what an end's interface has received, until it is closed."""

    def __init__(self, prefix: tuple[str, ...]) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the meter
        argv = [*prefix, sys.executable, "-c", _READ]
        self._process = subprocess.Popen(argv, stdout=self._said)
        wait_for("a first read", lambda: os.fstat(self._said.fileno()).st_size > 0)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._said.seek(0)
        self._lines = self._said.read().splitlines()
        self._said.close()

    def payload(self, edges: NDArray[np.float64], protocol: Protocol) -> NDArray[np.float64]:
        """Return the payload between edges (epoch s), once it is closed.

        Packets without payload (acknowledgements) add their own headers and nothing else.
        """
        whole = [line.split() for line in self._lines[:-1]]
        at_s, octets, packets = np.array(whole, np.float64).T
        assert at_s[0] <= edges[0] and edges[-1] <= at_s[-1]
        payload = octets - HEADERS_BYTES[protocol] * packets
        return np.diff(np.interp(edges, at_s, payload))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A client's and a server's namespace, and the rate at which each of them may send."""

    client: tuple[str, ...]  # argv prefix that runs a command there
    server: tuple[str, ...]
    address: str = "10.77.0.2"  # the server's
    ends: tuple[tuple[str, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", (self.client, self.server))

    def limit(self, bits_per_second: int) -> None:
        """Have both ends send at this rate at most, with a queue that holds a whole window."""
        for prefix in self.ends:
            shape = f"tbf rate {bits_per_second}bit burst 8kb limit {QUEUE_BYTES}"
            run(*prefix, "tc", "qdisc", "replace", "dev", "veth0", "root", *shape.split())

    def darken(self, dark: bool) -> None:
        """Drop all that either end sends, before it is on the wire, or no longer."""
        lines = "delete table netdev dark"
        if dark:  # a sender is not told, as it would be by the output hook
            hook = 'type filter hook egress device "veth0" priority 0; policy drop;'
            lines = f"table netdev dark {{ chain out {{ {hook} }}; }}"
        for prefix in self.ends:
            subprocess.run([*prefix, "nft", "-f", "-"], input=lines, text=True, check=True)

    def lose(self, ratio: float, protocol: Protocol = Protocol.UDP) -> None:
        """Drop this share of what either end receives, at random."""
        some = f"numgen random mod 1000 < {round(ratio * 1000)}" if ratio < 1 else ""
        lines = (
            "table ip loss { chain in { type filter hook input priority 0; "
            f"meta l4proto {protocol} {some} drop; }}; }}"
        )
        for prefix in self.ends:
            subprocess.run([*prefix, "nft", "-f", "-"], input=lines, text=True, check=True)

    @contextmanager
    def meters(self) -> Iterator[tuple[Meter, Meter]]:
        """At the client (what came down), and at the server (what came up)."""
        with ExitStack() as stack:
            down, up = (stack.enter_context(closing(Meter(prefix))) for prefix in self.ends)
            yield down, up


@contextmanager
def wire() -> Iterator[Wire]:
    """Make it; nothing of it is left behind."""
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
