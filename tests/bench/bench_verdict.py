"""Measure the time from the last record of a run to its verdict.

To run it, use ``python -m tests.bench.bench_verdict``. The run has no device counter. All ends
store their last records in the embedded fabric half a second after the end of the burst. The loop
of the coordinator is timed from then on. The peer is the CPU time to read and measure the same rows
once, which is a lower bound.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.bench.limit_rows import Row, show
from tests.bench.stored_fleet import plan_of, store, summarised, upload

# Pairs, and the limit in s.
CASES: Final = ((30, 1.5), (1000, 5.0))
BURST_S: Final = 30
# Time of the last records after the end of the burst.
LAST_WORDS_S: Final = 0.5


async def verdict_after_s(folder: Path, pairs: int) -> tuple[float, float]:
    """Return the seconds from the last row to the verdict, and the CPU seconds of the work."""
    fabric = open_fabric(FabricSettings(data_dir=folder))
    plan = plan_of(pairs, BURST_S)
    await store(fabric, plan, until_s=BURST_S - 2)
    ahead = plan.bursts[0].planned_end_at - timedelta(seconds=2) - datetime.now(UTC)
    coordinator = Coordinator(fabric, now=lambda: datetime.now(UTC) + ahead)
    loop = asyncio.create_task(coordinator.run_forever(1.0))
    try:
        last_parts_at = plan.bursts[0].planned_end_at + timedelta(seconds=LAST_WORDS_S)
        await asyncio.sleep((last_parts_at - coordinator.now()).total_seconds())
        await upload(fabric, plan)
        began_s = time.perf_counter()
        while await coordinator.stored.summary(plan.run_id) is None:  # noqa: ASYNC110 - as a caller asks
            await asyncio.sleep(0.02)
        took_s = time.perf_counter() - began_s
    finally:
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop
    began_s = time.process_time()
    await summarised(fabric, plan)
    work_s = time.process_time() - began_s
    await fabric.close()
    return took_s, work_s


def rows() -> Iterator[Row]:
    """Yield each case, compared with the CPU seconds of its work."""
    for pairs, limit_s in CASES:
        with tempfile.TemporaryDirectory() as folder:
            took_s, work_s = asyncio.run(verdict_after_s(Path(folder), pairs))
        yield Row(
            name=f"{pairs} pairs: last record to verdict",
            value=took_s,
            unit="s",
            limit=limit_s,
            peer="reading and measuring, CPU",
            peer_value=work_s,
        )


if __name__ == "__main__":
    sys.exit(show(rows()))
