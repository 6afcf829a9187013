"""Measure the start error of one pair, and the start spread of thirty pairs.

To run it, use ``python -m tests.bench.bench_start`` as root on an idle machine. The result depends
on the scheduling of cores. The values are the minimum over a few bursts of ``broadside demo``. The
error of one pair applies to a fleet with one core per pair. The spread of thirty pairs on two cores
is a property of the host. A launch with 64 streams per pair will report it.
"""

import sys
from collections.abc import Iterator
from typing import Final

from broadside.lab import network
from broadside.lab.site import PREFIX
from tests.bench.bench_fleet import demo
from tests.bench.limit_rows import Row, show

ROUNDS_COUNT: Final = 3
SECONDS: Final = 4
ERROR_MAX_MS: Final = 0.6
# Streams per pair, and the limit in ms for thirty pairs.
SPREADS: Final = ((8, 45.0), (1, 12.0))


def rows() -> Iterator[Row]:
    """Yield the start error of one pair, then the spreads."""
    errors_ms = [1e3 * abs(float(item)) for item in _reported_values("start_error_max_s", 1, 1)]
    yield Row(
        name="start error of one pair, 1 stream",
        value=min(errors_ms),
        unit="ms",
        limit=ERROR_MAX_MS,
        peer=f"the worst of {ROUNDS_COUNT}",
        peer_value=max(errors_ms),
    )
    for streams, limit_ms in SPREADS:
        spreads_ms = [1e3 * float(item) for item in _reported_values("start_spread_s", 30, streams)]
        yield Row(
            name=f"start spread of 30 pairs, {streams} streams",
            value=min(spreads_ms),
            unit="ms",
            limit=limit_ms,
            peer=f"the worst of {ROUNDS_COUNT}",
            peer_value=max(spreads_ms),
        )


def _reported_values(figure: str, pairs: int, streams: int) -> Iterator[float]:
    try:
        for _ in range(ROUNDS_COUNT):
            yield demo(pairs, streams, SECONDS)[figure]
    finally:
        network.down(PREFIX)


if __name__ == "__main__":
    sys.exit(show(rows()))
