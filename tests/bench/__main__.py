"""Print the table of ``make bench``, which shows the cost of Broadside at a large scale.

Run this file using ``python -m tests.bench [--quick] [--json] [--against FILE | --machines
FOLDER]``. The scale is 1,000 pairs and 100,000 stored runs.

A row shows its limit and a value from the same run to compare it with: a peer, or the work without
Broadside.

If ``--against`` is given, the results are compared with the JSON in FILE. Rows that have a ratio to
their peer more than a fifth higher are printed, and the exit code is 1. The ratio does not depend
on the speed of the machine.

If ``--machines`` is given, the file of this machine in FOLDER is used. It will be created if it
does not exist.

Use ``--quick`` to run the rows of ``make test`` in about a minute. A row is measured again if its
ratio is higher than before.
"""

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.bench import (
    bench_agent,
    bench_commands,
    bench_hosts,
    bench_live,
    bench_start,
    bench_store,
    bench_stored_runs,
    bench_verdict,
    quick,
    swarm,
)
from tests.bench.limit_rows import Row, listed, show

GROWN_RATIO: Final = 1.2
# A quick row with a higher ratio is measured again this many times, because another process can
# raise it for a short time.
AGAIN_COUNT: Final = 3


def rows() -> Iterator[Row]:
    """Yield the rows of every benchmark, the fastest first."""
    yield from bench_commands.rows()
    yield from bench_stored_runs.rows()
    yield from bench_store.rows()
    yield from bench_live.rows()
    yield from bench_verdict.rows()
    yield from bench_start.rows()
    yield from bench_agent.rows()
    yield from bench_hosts.rows()
    yield from swarm.rows()


def main() -> int:
    """Print the table and return 1 if a limit was missed or a ratio grew."""
    options = argparse.ArgumentParser(prog="python -m tests.bench")
    options.add_argument("--quick", action="store_true", help="a few ratios alone")
    options.add_argument("--json", action="store_true", help="one JSON list in place of the table")
    beside = options.add_mutually_exclusive_group()
    beside.add_argument("--against", type=Path, help="an earlier --json of this machine")
    beside.add_argument("--machines", type=Path, help="a folder of them, one a machine")
    arguments = options.parse_args()
    measure = quick.rows if arguments.quick else rows
    reported: list[Row] = []

    def collected() -> Iterator[Row]:
        for row in measure():
            reported.append(row)
            yield row

    missed = show(collected(), as_json=arguments.json)
    known = arguments.machines / f"{machine()}.json" if arguments.machines else arguments.against
    if arguments.machines and not known.exists():
        known.write_text(listed(reported) + "\n")
        print(f"no values of this machine to compare with: kept {known}", file=sys.stderr)
    least = {row.name: row.ratio for row in reported if row.ratio is not None}
    before = _ratios(known) if known else {}
    for _ in range(AGAIN_COUNT if arguments.quick else 0):
        if not _grown(least, before):
            break
        for row in measure():
            if row.ratio is not None:
                least[row.name] = min(row.ratio, least[row.name])
    for name in _grown(least, before):
        print(f"grown: {name}: {before[name]:.3g} to {least[name]:.3g} times", file=sys.stderr)
        missed = True
    return int(missed)


def machine() -> str:
    """Return a name from the processor, its cores and the Python version, which affect ratios."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    text = model[1] if model else platform.machine()
    text += f" {os.cpu_count()} python {platform.python_version_tuple()[1]}"
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _grown(now: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    return [name for name, was in before.items() if now.get(name, 0.0) > GROWN_RATIO * was]


def _ratios(path: Path) -> dict[str, float]:
    return {load["name"]: load["ratio"] for load in json.loads(path.read_text()) if load["ratio"]}


if __name__ == "__main__":
    sys.exit(main())
