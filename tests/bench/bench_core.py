"""Measure the accuracy of the core on planted truth. Use :mod:`.bench_store` to measure its cost.

To run it, use ``.venv/bin/python -m tests.bench.bench_core [cases per kind]``.
"""

import sys
import time

from tests.planted import scores, table


def main(cases: int = 50) -> None:
    began_s = time.perf_counter()
    result = list(scores(range(1000, 1000 + cases)))
    print(table(result))
    print(f"{len(result)} cases in {time.perf_counter() - began_s:.1f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
