"""Measure start-up, a list, the sums of a month, and a scrape with many ended runs.

To run it, use ``python -m tests.bench.bench_stored_runs [runs]``. That many runs of one year are in
an embedded fabric. The peer is the same work with a hundredth of the runs. The ratio shows if a
cost grows with the number of stored runs.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from broadside.coordinator.runs.budgets import Budgets
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.listing import RunFilter, aggregate_runs, list_runs
from broadside.coordinator.runs.reservations import Reservations
from broadside.coordinator.views.prometheus_metrics import take_snapshot
from broadside.exchange.records.keys import RUNS, run_key
from broadside.exchange.rows import message_row
from tests.bench.limit_rows import Row, show
from tests.bench.stored_fleet import embedded, header_of, plan_of, run_in_process
from tests.synthetic_runs import create_run

RUNS_COUNT: Final = 100_000
NOW: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
YEAR_S: Final = 365 * 86_400
# Limits in CPU seconds. A row with None has no limit, only the peer.
LIMITS: Final = {
    "start-up": 0.05,
    "a month's sums": 0.3,
    "a page of the list": 0.01,
    "a scrape of /metrics": None,
    "what is reserved": None,
}
MEMORY_MAX_MB: Final = 200


def rows(count: int = RUNS_COUNT) -> Iterator[Row]:
    """Yield the figures, compared with those for a hundredth of the runs."""
    many, few = (_figures(item) for item in (count, max(1, count // 100)))
    peer = f"{count // 100} runs"
    for name, limit_s in LIMITS.items():
        yield Row(
            name=f"{count} stored runs: {name}",
            value=many[name],
            unit="CPU-s",
            limit=limit_s,
            peer=peer,
            peer_value=few[name],
        )
    yield Row(name=f"{count} stored runs: all summed", value=many["all"], unit="CPU-s")
    yield Row(name=f"{count} stored runs: memory", value=many["MB"], unit="MB", limit=MEMORY_MAX_MB)


def _figures(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run_in_process(_fill, folder, count)
        return run_in_process(_measure, folder, count)


async def _fill(folder: str, count: int) -> None:
    fabric = embedded(folder)
    rows = []
    for index in range(count):
        created_at = NOW - timedelta(seconds=YEAR_S * index / count)
        header = header_of(index, created_at)
        rows.append(message_row(RUNS, run_key(created_at, header.run_id), header))
    await fabric.private.batch(rows)
    await fabric.close()


async def _measure(folder: str, count: int) -> dict[str, float]:
    began_s = time.process_time()
    fabric = embedded(folder)
    coordinator = Coordinator(fabric, now=lambda: NOW)
    await coordinator.tick()
    took = {"start-up": time.process_time() - began_s}
    began_s = time.process_time()
    page, following = await list_runs(fabric.records, RunFilter(), limit=100)
    took["a page of the list"] = time.process_time() - began_s
    assert (len(page), following is None) == (min(count, 100), count <= 100)
    month = RunFilter(from_at=NOW - timedelta(days=30))
    began_s = time.process_time()
    groups = await aggregate_runs(fabric.records, month, "day")
    took["a month's sums"] = time.process_time() - began_s
    assert groups.runs_count == sum(YEAR_S * index / count <= 30 * 86_400 for index in range(count))
    began_s = time.process_time()
    assert (await aggregate_runs(fabric.records, RunFilter(), "day")).runs_count == count
    took["all"] = time.process_time() - began_s
    took["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    # A scrape reads the newest run.
    newest = plan_of(30, 30, "run-newest")
    await create_run(fabric.records, newest)
    began_s = time.process_time()
    await take_snapshot(coordinator, Budgets(coordinator))
    took["a scrape of /metrics"] = time.process_time() - began_s
    began_s = time.process_time()
    await Reservations(fabric.private, lambda: NOW).in_force()
    took["what is reserved"] = time.process_time() - began_s
    await fabric.close()
    return took


if __name__ == "__main__":
    sys.exit(show(rows(*map(int, sys.argv[1:]))))
