"""Prints how well starts are kept: one pair's error, and thirty pairs' spread.

Run: ``python -m tests.bench.bench_start``, as root, on a machine with nothing else to do: what is
measured is who gets a core when. Each figure is the least of a few bursts of ``broadside demo``. On
a fleet with a core a pair the first is what Broadside is worth; of thirty pairs on two cores the
spread is the host's, which a launch says of 64 streams each.
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
SPREADS: Final = ((8, 45.0), (1, 12.0))  # streams a pair, ms of thirty pairs


def rows() -> Iterator[Row]:
    """One pair's start error, then the spreads."""
    errors_ms = [1e3 * abs(float(each)) for each in _told("start_error_max_s", 1, 1)]
    yield Row(
        name="start error of one pair, 1 stream",
        value=min(errors_ms),
        unit="ms",
        limit=ERROR_MAX_MS,
        peer=f"the worst of {ROUNDS_COUNT}",
        peer_value=max(errors_ms),
    )
    for streams, limit_ms in SPREADS:
        spreads_ms = [1e3 * float(each) for each in _told("start_spread_s", 30, streams)]
        yield Row(
            name=f"start spread of 30 pairs, {streams} streams",
            value=min(spreads_ms),
            unit="ms",
            limit=limit_ms,
            peer=f"the worst of {ROUNDS_COUNT}",
            peer_value=max(spreads_ms),
        )


def _told(figure: str, pairs: int, streams: int) -> Iterator[float]:
    try:
        for _ in range(ROUNDS_COUNT):
            yield demo(pairs, streams, SECONDS)[figure]
    finally:
        network.down(PREFIX)


if __name__ == "__main__":
    sys.exit(show(rows()))
