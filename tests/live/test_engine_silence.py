"""Test that both ends stop if the path drops all packets during a test."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from broadside.agent.engine_process import Iperf3Program
from broadside.exchange.messages import Direction, Traffic
from tests.live.engines import PATIENCE_S, engines, start_client, start_server
from tests.live.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

# The namespaces have separate ports.
PORT = 5201


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Two network namespaces connected by a veth pair.

    Attributes:
        client: Command prefix that runs a command in the client namespace.
        server: Command prefix for the server namespace.
        address: IP address of the server.
    """

    client: tuple[str, ...]
    server: tuple[str, ...]
    address: str

    def carried_bytes(self) -> int:
        """Return the bytes of both directions, as counted by the server's interface."""
        counters = [
            f"/sys/class/net/veth0/statistics/{direction}_bytes" for direction in ("rx", "tx")
        ]
        return sum(map(int, subprocess.check_output([*self.server, "cat", *counters]).split()))

    def cut(self) -> None:
        """Drop all packets in both directions without notification."""
        run("nft add table ip silence", self.client)
        for hook in ("input", "output"):
            rule = f"{{ type filter hook {hook} priority 0; policy drop; }}"
            subprocess.run(
                [*self.client, "nft", "add", "chain", "ip", "silence", hook, rule], check=True
            )


def run(command: str, prefix: tuple[str, ...] = ()) -> None:
    subprocess.run([*prefix, *command.split()], check=True)


@pytest.fixture
def path() -> Iterator[Path]:
    client, server = (f"bseng{os.getpid()}{end}" for end in "cs")
    made = []
    try:
        for namespace in (client, server):
            run(f"ip netns add {namespace}")
            made.append(namespace)
        run(f"ip link add veth0 netns {client} type veth peer name veth0 netns {server}")
        for namespace, address in ((client, "10.77.0.1"), (server, "10.77.0.2")):
            run(f"ip -n {namespace} addr add {address}/24 dev veth0")
            run(f"ip -n {namespace} link set veth0 up")
        yield Path(
            client=("ip", "netns", "exec", client),
            server=("ip", "netns", "exec", server),
            address="10.77.0.2",
        )
    finally:
        for namespace in made:
            run(f"ip netns del {namespace}")


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.REVERSE])
@pytest.mark.parametrize("version", sorted(engines()))
async def test_both_ends_stop_on_silent_path_with_their_counts(
    version: str, direction: Direction, path: Path
) -> None:
    engine: Iperf3Program = engines()[version]
    traffic = Traffic(direction=direction, streams_count=2, stream_bits_per_second=10_000_000)
    serving = await start_server(
        engine, PORT, address=path.address, prefix=path.server, silence_s=2.0
    )
    firing = await start_client(
        engine,
        PORT,
        traffic,
        duration_s=4,
        address=path.address,
        prefix=path.client,
        stop_in_s=6.0,
    )
    await until("traffic", lambda: path.carried_bytes() > 500_000, PATIENCE_S)
    path.cut()
    one = await firing.end()
    if direction is Direction.REVERSE:
        # From version 3.16 on, a server that sends would never end.
        serving.process.stop("its supervisor")
    other = await serving.end()
    assert one.exit.stopped == "deadline"
    flow = direction.flows[0]
    assert one.reading.intervals[flow] and other.reading.intervals[flow]
    assert not one.reading.usable and not other.reading.usable
    assert other.exit.stopped in (None, "its supervisor")
    assert other.reading.report.error
