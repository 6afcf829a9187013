"""Prints what the core costs and how well it knows planted truth.

Run: ``.venv/bin/python -m tests.bench.bench_core [cases a kind]``. The floors: a summary
of 30 pairs x 1740 s in 0.3 s; of 1,000 pairs x 1800 s in 3 s and under 500 MB of process memory.
"""

import multiprocessing
import resource
import sys
import time

import numpy as np

from coordinator.core.judge.summarise import summarise_run
from coordinator.core.measure.measure_burst import measure_burst
from coordinator.core.summary import canonical
from tests.planted import scores, table
from tests.synthetic import Plant, fleet


def cost(pairs: int, seconds: int) -> str:
    """Time and memory of one burst from evidence to canonical summary; run in its own process."""
    made = fleet(
        Plant(
            pairs=pairs,
            bursts=1,
            burst_s=seconds,
            period_s=seconds + 60,
            grain_s=60.0,
            lag_s=75.0,
        )
    )
    before_mb = _peak_mb()
    began = time.perf_counter()
    measured = measure_burst(made.plan.spec, made.evidence[0], made.now)
    size = len(canonical(summarise_run(made.plan, [measured], made.ledger, made.now)))
    took_s = time.perf_counter() - began
    peak_mb = _peak_mb()
    packed = len(measured.series.pack())
    matrix = np.random.default_rng(0).random((pairs, seconds))
    began = time.perf_counter()
    matrix.sum(axis=0)
    bare_s = time.perf_counter() - began
    return (
        f"{pairs:5d} x {seconds} s {took_s:7.3f} s "
        f"{peak_mb:6.0f} MB (evidence {before_mb:.0f} MB) bare sum x {took_s / bare_s:.0f} "
        f"summary {size / 1e3:.0f} kB series {packed / 1e3:.0f} kB"
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _print_cost(pairs: int, seconds: int) -> None:
    print(cost(pairs, seconds), flush=True)


def main() -> None:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    spawn = multiprocessing.get_context("spawn")
    for pairs, seconds in ((30, 1740), (1000, 1800)):
        child = spawn.Process(target=_print_cost, args=(pairs, seconds))
        child.start()
        child.join()
    began = time.perf_counter()
    found = list(scores(range(1000, 1000 + cases)))
    print(table(found))
    print(f"{len(found)} cases in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
