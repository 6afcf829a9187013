"""Prints what it costs to make a burst's figures from the store: CPU-seconds and memory.

Run: ``python -m tests.bench.bench_store``. The whole way: rows, chunks, columns, both ends joined,
grid, summary, on the embedded fabric. Beside it, in the same run and on this machine, the sums
alone over the same readings that are already one array: numpy, and DuckDB and polars where they
are installed, as ``make bench`` does beside the checkout (``peers.lock``).
"""

import asyncio
import importlib.util
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from coordinator.core.judge.summarise import summarise_run
from coordinator.core.live.status import due_at
from coordinator.core.measure.measure_burst import measure_burst
from coordinator.core.summary import canonical
from coordinator.process_memory import collect_rarely, keep_one_heap
from coordinator.runs.evidence_rows import read_evidence
from exchange.fabric import FabricSettings, open_fabric
from tests.bench.limit_rows import Row, show
from tests.bench.stored_fleet import plan_of, rows_of, store

CASES: Final = ((30, 1740, 0.15, 300), (1000, 1800, 2.5, 300))  # pairs, s, CPU-s, MB


def rows() -> Iterator[Row]:
    """Each case: its cost, memory and what is stored, beside the sums alone."""
    context = multiprocessing.get_context("spawn")
    for pairs, seconds, limit_s, limit_mb in CASES:
        with tempfile.TemporaryDirectory() as folder:
            with context.Pool(1) as filler:
                entities, stored_bytes = filler.apply(_fill, (folder, pairs, seconds))
            with context.Pool(1) as pool:  # its own process: memory is its own
                took_s, read_s, peak_mb = pool.apply(_summarise, (folder, pairs, seconds))
        name = f"{pairs} x {seconds} s from the store"
        for peer, bare_s in sums_alone(pairs, seconds).items():
            yield Row(
                name=f"{name}: summary",
                value=took_s,
                unit="CPU-s",
                limit=limit_s,
                peer=f"{peer}, sums alone",
                peer_value=bare_s,
            )
        yield Row(name=f"{name}: of that, reading", value=read_s, unit="CPU-s")
        yield Row(name=f"{name}: memory", value=peak_mb, unit="MB", limit=limit_mb)
        yield Row(name=f"{name}: entities a pair", value=entities / pairs, unit="", limit=8)
        yield Row(name=f"{name}: a pair", value=stored_bytes / pairs / 1e3, unit="kB", limit=60)


def _fill(folder: str, pairs: int, seconds: int) -> tuple[int, int]:
    """Entities, and the bytes of their properties."""

    async def fill() -> tuple[int, int]:
        fabric = open_fabric(FabricSettings(data_dir=Path(folder)))
        plan = plan_of(pairs, seconds)
        try:
            stored_bytes = sum(
                len(value) if isinstance(value, bytes | str) else 8
                for row in rows_of(plan)
                for value in row.properties.values()
            )
            return await store(fabric, plan), stored_bytes
        finally:
            await fabric.close()

    return asyncio.run(fill())


def _summarise(folder: str, pairs: int, seconds: int) -> tuple[float, float, float]:
    """CPU-seconds in all, of those for reading, and the process's peak in MB."""

    async def summarise() -> tuple[float, float]:
        keep_one_heap()
        collect_rarely()
        fabric = open_fabric(FabricSettings(data_dir=Path(folder)))
        plan = plan_of(pairs, seconds)
        began_s = time.process_time()
        evidence = await read_evidence(fabric.records, plan, plan.bursts[0])
        read_s = time.process_time() - began_s
        now = due_at(plan.bursts[0])
        measured = measure_burst(plan.spec, evidence, now)
        canonical(summarise_run(plan, [measured], None, now))
        took_s = time.process_time() - began_s
        assert measured.summary.pairs_measured == pairs, measured.summary
        await fabric.close()
        return took_s, read_s

    took_s, read_s = asyncio.run(summarise())
    return took_s, read_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sums_alone(pairs: int, seconds: int) -> dict[str, float]:
    """CPU-seconds of the fleet's sum a second and each pair's mean, by who does it."""
    readings = np.random.default_rng(0).normal(625e6, 20e6, (pairs, seconds))
    second = np.tile(np.arange(seconds), pairs)
    pair = np.repeat(np.arange(pairs), seconds)
    table = {"pair": pair, "second": second, "bytes": readings.ravel()}

    def with_numpy() -> object:
        return readings.sum(axis=0), readings.mean(axis=1)

    done = {"numpy": _cpu_s(with_numpy)}
    if importlib.util.find_spec("polars"):
        polars: Any = importlib.import_module("polars")
        frame = polars.DataFrame(table)
        done["polars"] = _cpu_s(
            lambda: (
                frame.group_by("second").agg(polars.col("bytes").sum()),
                frame.group_by("pair").agg(polars.col("bytes").mean()),
            )
        )
    if importlib.util.find_spec("duckdb") and importlib.util.find_spec("pyarrow"):
        duckdb: Any = importlib.import_module("duckdb")
        arrow: Any = importlib.import_module("pyarrow")
        rows = arrow.table(table)
        base = duckdb.connect()
        base.register("rows", rows)
        done["DuckDB"] = _cpu_s(
            lambda: (
                base.sql("select second, sum(bytes) from rows group by 1").fetchnumpy(),
                base.sql("select pair, avg(bytes) from rows group by 1").fetchnumpy(),
            )
        )
    return done


def _cpu_s(work: Callable[[], object]) -> float:
    work()  # once for what is only made the first time
    began_s = time.process_time()
    work()
    return max(time.process_time() - began_s, 1e-6)


if __name__ == "__main__":
    sys.exit(show(rows()))
