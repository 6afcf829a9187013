"""Measure the CPU seconds and memory to compute a burst's figures from the store.

To run it, use ``python -m tests.bench.bench_store``. The whole path on the embedded fabric is
measured: rows, chunks, columns, join of both ends, grid and summary. The peer is the bare sum over
the same readings in one array, in the same run. It is computed using numpy, and DuckDB and polars
if they are installed. Use ``make bench`` to install them beside the checkout (``peers.lock``).
"""

import importlib.util
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.run_spec import due_at
from broadside.coordinator.core.summary import canonical
from broadside.coordinator.process_memory import collect_rarely, keep_one_heap
from broadside.coordinator.runs.evidence_loader import read_evidence
from tests.bench.limit_rows import Row, show
from tests.bench.stored_fleet import embedded, plan_of, rows_of, run_in_process, store

# Pairs, s, limit in CPU seconds, limit in MB.
CASES: Final = ((30, 1740, 0.15, 300), (1000, 1800, 2.5, 300))


def rows() -> Iterator[Row]:
    """Yield cost, memory and stored bytes of each case, compared with the bare sums."""
    for pairs, seconds, limit_s, limit_mb in CASES:
        with tempfile.TemporaryDirectory() as folder:
            entities, stored_bytes = run_in_process(_fill, folder, pairs, seconds)
            took_s, read_s, peak_mb, summary_bytes, series_bytes = run_in_process(
                _summarise, folder, pairs, seconds
            )
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
        yield Row(
            name=f"{name}: of that, measuring and judging", value=took_s - read_s, unit="CPU-s"
        )
        yield Row(name=f"{name}: its summary", value=summary_bytes / 1e3, unit="kB")
        yield Row(name=f"{name}: its series", value=series_bytes / 1e3, unit="kB")
        yield Row(name=f"{name}: memory", value=peak_mb, unit="MB", limit=limit_mb)
        yield Row(name=f"{name}: entities a pair", value=entities / pairs, unit="", limit=8)
        yield Row(name=f"{name}: a pair", value=stored_bytes / pairs / 1e3, unit="kB", limit=60)


async def _fill(folder: str, pairs: int, seconds: int) -> tuple[int, int]:
    """Return the number of entities and the bytes of their properties."""
    fabric = embedded(folder)
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


async def _summarise(folder: str, pairs: int, seconds: int) -> tuple[float, float, float, int, int]:
    """Read, measure and summarise the stored burst.

    Return the CPU seconds in total and of reading, the peak memory in MB, and the bytes of the
    summary and of the packed series.
    """
    keep_one_heap()
    collect_rarely()
    fabric = embedded(folder)
    plan = plan_of(pairs, seconds)
    began_s = time.process_time()
    evidence = await read_evidence(fabric.records, plan, plan.bursts[0])
    read_s = time.process_time() - began_s
    now = due_at(plan.bursts[0])
    measured = measure_burst(plan.spec, evidence, now)
    summary = canonical(summarise_run(plan, [measured], None, now))
    took_s = time.process_time() - began_s
    assert measured.summary.pairs_measured == pairs, measured.summary
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await fabric.close()
    return took_s, read_s, peak_mb, len(summary), len(measured.series.pack())


def sums_alone(pairs: int, seconds: int) -> dict[str, float]:
    """Return, by library, CPU seconds of the fleet's sum per second and the mean of each pair."""
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
    # The first call includes one-time set-up.
    work()
    began_s = time.process_time()
    work()
    return max(time.process_time() - began_s, 1e-6)


if __name__ == "__main__":
    sys.exit(show(rows()))
