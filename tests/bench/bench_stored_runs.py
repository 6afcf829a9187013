"""Prints what runs that are long over cost: start-up, a list, the sums of a month, a scrape.

Run: ``python -m tests.bench.bench_stored_runs [runs]``. So many runs of a year lie in an embedded
fabric. Beside each figure stands the same with a hundredth of the runs: what grows with all that is
stored shows in the ratio.
"""

import asyncio
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from coordinator.runs.coordinator import Coordinator
from coordinator.runs.listing import RunFilter, aggregate_runs, list_runs
from coordinator.runs.reservations import Reservations
from coordinator.runs.spending import Budgets
from coordinator.views.metrics import take_snapshot
from exchange.fabric import FabricSettings, open_fabric
from exchange.messages import Control
from exchange.records import RunHeader, RunOutcome
from exchange.records.keys import RUNS, run_key
from exchange.rows import message_row
from tests.bench.limit_rows import Row, show
from tests.bench.stored_fleet import plan_of

RUNS_COUNT: Final = 100_000
NOW: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
YEAR_S: Final = 365 * 86_400
LIMITS: Final = {  # CPU-s; None: told, beside the same with a hundredth of the runs
    "start-up": 0.05,
    "a month's sums": 0.3,
    "a page of the list": 0.01,
    "a scrape of /metrics": None,
    "what is reserved": None,
}
MEMORY_MAX_MB: Final = 200


def rows(count: int = RUNS_COUNT) -> Iterator[Row]:
    """Each figure beside the same with a hundredth of the runs."""
    many, few = (_figures(each) for each in (count, max(1, count // 100)))
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
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for work in (_fill, _measure):
            with context.Pool(1) as pool:  # memory of its own
                found = pool.apply(work, (folder, count))
    return found or {}


def _fill(folder: str, count: int) -> None:
    async def fill() -> None:
        fabric = open_fabric(FabricSettings(data_dir=Path(folder)))
        rows = []
        for index in range(count):
            created_at = NOW - timedelta(seconds=YEAR_S * index / count)
            header = RunHeader(
                run_id=f"run-{index:06d}",
                scenario=f"scenario-{index % 7}",
                created_at=created_at,
                created_by="bench",
                labels={"idps": "on" if index % 2 else "off"},
                outcome=RunOutcome(
                    cancelled=index % 50 == 0,
                    verdict=("pass", "fail", "inconclusive")[index % 3],
                    ended_at=created_at + timedelta(minutes=5),
                    completeness_ratio=1 - index % 10 / 1000,
                    fleet_received_bits_per_second=180e9 + index % 1000 * 1e6,
                ),
            )
            rows.append(message_row(RUNS, run_key(created_at, header.run_id), header))
        await fabric.private.batch(rows)
        await fabric.close()

    asyncio.run(fill())


def _measure(folder: str, count: int) -> dict[str, float]:
    async def measure() -> dict[str, float]:
        began_s = time.process_time()
        fabric = open_fabric(FabricSettings(data_dir=Path(folder)))
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
        assert groups.runs_count == sum(
            YEAR_S * index / count <= 30 * 86_400 for index in range(count)
        )
        began_s = time.process_time()
        assert (await aggregate_runs(fabric.records, RunFilter(), "day")).runs_count == count
        took["all"] = time.process_time() - began_s
        took["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        newest = plan_of(30, 30, "run-newest")  # a scrape looks at it
        await fabric.records.create_run(
            RunHeader(run_id=newest.run_id, scenario="bench", created_at=NOW, created_by="bench"),
            newest.model_dump_json().encode(),
            Control(run_id=newest.run_id, lease_until_at=NOW),
        )
        began_s = time.process_time()
        await take_snapshot(coordinator, Budgets(coordinator))
        took["a scrape of /metrics"] = time.process_time() - began_s
        began_s = time.process_time()
        await Reservations(fabric.private, lambda: NOW).in_force()
        took["what is reserved"] = time.process_time() - began_s
        await fabric.close()
        return took

    return asyncio.run(measure())


if __name__ == "__main__":
    sys.exit(show(rows(*map(int, sys.argv[1:]))))
