"""Compare the payload of a fleet with Broadside and with a bare shell loop.

To run it, use ``python -m tests.bench.bench_fleet [--pairs 30] [--streams 8] [--seconds 10]
[--rounds 2]`` as root. Both use the same iperf3 pairs and the same lab, one after the other. The
ratio should be at least 0.99. The payload is the sum per second at the receivers, without the ramp.
"""

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from broadside.lab import network
from broadside.lab.site import PREFIX
from tests.bench.bench_lab import bare_loop, received_rate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_fleet")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    ours, bare = [], []
    try:
        for _ in range(options.rounds):
            summary = demo(options.pairs, options.streams, options.seconds)
            ours.append(float(summary["fleet_received_bits_per_second"]))
            print(
                f"broadside: {ours[-1] / 1e6:.1f} Mbit/s, start spread "
                f"{summary['start_spread_s'] * 1e3:.0f} ms, p99 of first data - planned "
                f"{summary['start_error_p99_s'] * 1e3:.0f} ms"
            )
            lab = network.status(PREFIX).lab
            assert lab is not None, "the demo left another lab; is another demo running?"
            outputs = bare_loop(lab, options.streams, options.seconds)
            bare.append(sum(received_rate(output) for output in outputs))
            print(f"bare loop: {bare[-1] / 1e6:.1f} Mbit/s")
    finally:
        network.down(PREFIX)
    ratio = statistics.mean(ours) / statistics.mean(bare)
    print(f"ratio broadside / bare loop: {ratio:.4f} (floor 0.99)")


def demo(pairs_count: int, streams_count: int, seconds: int) -> dict[str, Any]:
    """Run one burst of ``broadside demo`` and leave the lab running."""
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "broadside.coordinator",
                "demo",
                "-o",
                "json",
                "--keep",
                "--bursts",
                "1",
            ),
            *("--pairs", str(pairs_count), "--streams", str(streams_count)),
            *("--seconds", str(seconds)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=180 + seconds,
    )
    if not done.stdout:
        raise SystemExit(done.stderr)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


if __name__ == "__main__":
    main()
