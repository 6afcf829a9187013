"""Measure the start error with the start gate, and with a plain exec at the start time.

To run it on loopback, use ``python -m tests.bench.bench_gate [--pairs 30] [--streams 8] [--rounds
3] [--lead 4]``. Both ends of all pairs share the cores of this machine. The machine should be idle,
and iperf3 must be able to stream its JSON.
"""

import argparse
import asyncio
import statistics
import time

from broadside.exchange.engines.iperf3 import streams_json
from broadside.exchange.engines.port import StartBasis
from broadside.exchange.messages import Direction, Protocol, Traffic
from tests.live.engines import engines, start_client, start_server
from tests.live.free_ports import free_port

CASES = [
    (Protocol.TCP, Direction.FORWARD),
    (Protocol.TCP, Direction.REVERSE),
    (Protocol.TCP, Direction.BIDIRECTIONAL),
    (Protocol.UDP, Direction.FORWARD),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_gate")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lead", type=float, default=4.0, help="s for connecting, gate only")
    options = parser.parse_args()
    print(f"first data - instant of {options.pairs} pairs x {options.streams} streams, ms")
    print(f"{'':26}{'start by':>9}{'min':>8}{'median':>8}{'p99':>8}{'max':>8}{'spread':>8}")
    for protocol, direction in CASES:
        spreads = {}
        for gated in (False, True):
            rounds = [
                asyncio.run(fire(protocol, direction, options, gated=gated))
                for _ in range(options.rounds)
            ]
            errors_ms = sorted(error_s * 1e3 for errors_s in rounds for error_s in errors_s)
            spreads[gated] = max(max(e) - min(e) for e in rounds) * 1e3
            figures = (
                errors_ms[0],
                statistics.median(errors_ms),
                errors_ms[int(len(errors_ms) * 0.99)],
                errors_ms[-1],
                spreads[gated],
            )
            print(
                f"{protocol} {direction:<22}{'gate' if gated else 'exec':>9}"
                + "".join(f"{figure:8.1f}" for figure in figures)
            )
        print(f"{'':26}gate spread / exec spread: {spreads[True] / spreads[False]:.2f}")


async def fire(
    protocol: Protocol, direction: Direction, options: argparse.Namespace, *, gated: bool
) -> list[float]:
    """Run one burst and return the start error of each pair's data in seconds."""
    engine = next(engine for engine in engines().values() if streams_json(engine.version))
    traffic = Traffic(
        protocol=protocol,
        direction=direction,
        streams_count=options.streams,
        stream_bits_per_second=16_000_000 // options.streams,
        block_bytes=1_400 if protocol is Protocol.UDP else 8_192,
    )
    ports = [free_port() for _ in range(options.pairs)]
    servers = [await start_server(engine, port) for port in ports]
    instant_s = time.time() + (options.lead if gated else 1.0)

    async def pair(port: int) -> float:
        if not gated:
            await asyncio.sleep(instant_s - time.time())
        client = await start_client(
            engine, port, traffic, duration_s=2, release_at_s=instant_s if gated else None
        )
        reading = (await client.end()).reading
        if not reading.usable or reading.first_data_at_s is None:
            raise SystemExit(f"a pair failed: {reading.report.error}")
        assert reading.start_basis is StartBasis.ARRIVALS
        return reading.first_data_at_s - instant_s

    errors_s = await asyncio.gather(*(pair(port) for port in ports))
    await asyncio.gather(*(server.end() for server in servers))
    return errors_s


if __name__ == "__main__":
    main()
