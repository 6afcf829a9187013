"""Measure the time to build and remove the lab, and the accuracy of its device counter.

To run it, use ``python -m tests.bench.bench_lab [--pairs 30] [--streams 8] [--seconds 10]
[--skip-100]`` as root. The traffic is iperf3 from a bare shell loop, without Broadside.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from broadside.lab import clocks, network
from broadside.lab.byte_counter import ByteCounterReading, read_counter
from broadside.lab.namespaces import list_namespaces, list_owned
from broadside.lab.topology import Lab, LabSpec

PREFIX = "bench"
# MTU 1500: 20 bytes of IP header and 32 bytes of TCP header with timestamps.
IP_PER_PAYLOAD_RATIO = 1500 / 1448
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_lab")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--firewall-rate", type=int, default=1_800_000_000, help="bit/s")
    parser.add_argument("--skip-100", action="store_true", help="leave out the lab of 100 pairs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base_path = Path(folder)
        try:
            if not options.skip_100:
                bench_life(100, base_path)
            bench_life(30, base_path)
            spec = LabSpec(
                pairs_count=options.pairs,
                prefix=PREFIX,
                firewall_bits_per_second=options.firewall_rate,
            )
            lab = network.up(spec, base_path)
            clocks.wait_synced(lab, 10)
            bench_counter(lab, options.streams, options.seconds)
        finally:
            network.down(PREFIX, base_path)


def timed(action: Callable[[], T]) -> tuple[T, float]:
    start_s = time.perf_counter()
    return action(), time.perf_counter() - start_s


def bench_life(pairs_count: int, base_path: Path) -> None:
    """Build the lab, synchronise clocks, build again, remove it, and list the leftovers."""
    spec = LabSpec(pairs_count=pairs_count, prefix=PREFIX)
    lab, up_s = timed(lambda: network.up(spec, base_path))
    unsynced, sync_s = timed(lambda: clocks.wait_synced(lab, 20))
    _, again_s = timed(lambda: network.up(spec, base_path))
    report, down_s = timed(lambda: network.down(PREFIX, base_path))
    left = [*report.left, *list_namespaces(PREFIX), *list_owned(PREFIX), *base_path.iterdir()]
    print(
        f"{pairs_count} pairs: up {up_s:.2f} s, clocks synced {sync_s:.2f} s later "
        f"({len(unsynced)} not), up again {again_s:.2f} s, down {down_s:.2f} s, left over {left}"
    )


def bench_counter(lab: Lab, streams_count: int, seconds: int) -> None:
    """Start all pairs together and compare the receivers' payload with the device counter."""
    before, cpu_before = newest(lab), read_cpu()
    outputs = bare_loop(lab, streams_count, seconds)
    cpu_after = read_cpu()
    time.sleep(2)
    after = newest(lab)
    ends = [output["end"] for output in outputs]
    payload_bytes = sum(end["sum_received"]["bytes"] for end in ends)
    ip_bytes = after.up_bytes - before.up_bytes
    offered_bytes = (after.offered_up_bytes or 0) - (before.offered_up_bytes or 0)
    ratio = ip_bytes / payload_bytes
    rates = steady_rates(lab, seconds)
    steady_bits_per_second = sum(rates) / len(rates)
    received_bits_per_second = sum(received_rate(output) for output in outputs)
    busy = 1 - (cpu_after[1] - cpu_before[1]) / (cpu_after[0] - cpu_before[0])
    retransmits = sum(end["sum_sent"]["retransmits"] for end in ends)
    print(
        f"{len(ends)} pairs x {streams_count} streams x {seconds} s, firewall "
        f"{(lab.spec.firewall_bits_per_second or 0) / 1e6:.0f} Mbit/s at the IP layer, "
        f"CPU {busy:.0%} busy (machine, whole loop)\n"
        f"  payload received {payload_bytes / 1e6:.2f} MB, counter {ip_bytes / 1e6:.2f} MB "
        f"(offered {offered_bytes / 1e6:.2f} MB before segmentation)\n"
        f"  whole burst: IP/payload {ratio:.4f}, expected {IP_PER_PAYLOAD_RATIO:.4f}: residual "
        f"{ratio / IP_PER_PAYLOAD_RATIO - 1:+.3%} (holds what was still queued at the end); "
        f"retransmits {retransmits}, drops {after.up_drops_count - before.up_drops_count}\n"
        f"  steady seconds {len(rates)}: counter min {min(rates) / 1e6:.1f}, "
        f"mean {steady_bits_per_second / 1e6:.1f}, max {max(rates) / 1e6:.1f} Mbit/s; received "
        f"payload {received_bits_per_second / 1e6:.1f} Mbit/s, IP/payload "
        f"{steady_bits_per_second / received_bits_per_second:.4f}, residual "
        f"{steady_bits_per_second / received_bits_per_second / IP_PER_PAYLOAD_RATIO - 1:+.3%}"
    )


def bare_loop(lab: Lab, streams_count: int, seconds: int) -> list[dict[str, Any]]:
    """Start iperf3 of all pairs from one shell and return the output of each client."""
    results = lab.path / "results"
    results.mkdir(exist_ok=True)
    servers = "".join(
        f"ip netns exec {server.namespace} iperf3 -s -1 -J >/dev/null 2>&1 &\n"
        for server in lab.servers
    )
    clients = "".join(
        f"ip netns exec {client.namespace} iperf3 -c {server.address} -J -l 32K "
        f"--get-server-output -P {streams_count} -t {seconds} > {results}/{client.name}.json &\n"
        for client, server in zip(lab.clients, lab.servers, strict=True)
    )
    loop = f"{servers} sleep 2\n{clients} wait\n"
    subprocess.run(["sh", "-c", loop], check=True, timeout=seconds + 60)
    return [json.loads(path.read_text()) for path in results.glob("*.json")]


def received_rate(output: dict[str, Any]) -> float:
    """Return one server's received rate in bit/s, without the first and last two seconds."""
    sums = [interval["sum"] for interval in output["server_output_json"]["intervals"]]
    steady = sums[2:-2] or sums
    return float(8 * sum(s["bytes"] for s in steady) / sum(s["seconds"] for s in steady))


def newest(lab: Lab) -> ByteCounterReading:
    assert lab.counter_path is not None
    while not (readings := read_counter(lab.counter_path, 0, float("inf"))):
        time.sleep(0.1)
    return readings[-1]


def steady_rates(lab: Lab, seconds: int) -> list[float]:
    """Return bit/s of each whole second, without the first two and the last of the burst."""
    assert lab.counter_path is not None
    readings = read_counter(lab.counter_path, 0, float("inf"))
    rates = [
        8 * (later.up_bytes - earlier.up_bytes) / (later.at_s - earlier.at_s)
        for earlier, later in pairwise(readings)
    ]
    loaded = [index for index, rate in enumerate(rates) if rate > 1e6]
    return rates[loaded[0] + 2 : loaded[0] + seconds - 1] or rates


def read_cpu() -> tuple[int, int]:
    """Return all CPU ticks and the idle ticks of the machine."""
    ticks = [int(part) for part in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


if __name__ == "__main__":
    main()
