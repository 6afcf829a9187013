"""The table of ``make bench``: what Broadside costs at a thousand pairs and 100,000 stored runs.

Run: ``python -m tests.bench [--json] [--against FILE]``. Each row has its limit and, from the same
run, a peer's figure or the work alone. With ``--against`` a row whose ratio to its peer grew by
over a fifth since the JSON in FILE is named, and the exit code is 1: a machine's speed cancels out.
"""

import argparse
import json
import sys
from collections.abc import Iterator
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
    swarm,
)
from tests.bench.rows import Row, show

GROWN_RATIO: Final = 1.2


def rows() -> Iterator[Row]:
    """Every bench's rows, the quickest first."""
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
    """Print the table; 1 where a limit was missed, or a ratio grew."""
    options = argparse.ArgumentParser(prog="python -m tests.bench")
    options.add_argument("--json", action="store_true", help="one JSON list in place of the table")
    options.add_argument("--against", type=Path, help="an earlier --json of this machine")
    asked = options.parse_args()
    told: list[Row] = []

    def kept() -> Iterator[Row]:
        for row in rows():
            told.append(row)
            yield row

    missed = show(kept(), as_json=asked.json)
    before = {} if asked.against is None else _ratios(asked.against)
    for row in told:
        was = before.get(row.name)
        if was is not None and row.ratio is not None and row.ratio > GROWN_RATIO * was:
            print(f"grown: {row.name}: {was:.3g} to {row.ratio:.3g} times", file=sys.stderr)
            missed = True
    return int(missed)


def _ratios(path: Path) -> dict[str, float]:
    return {each["name"]: each["ratio"] for each in json.loads(path.read_text()) if each["ratio"]}


if __name__ == "__main__":
    sys.exit(main())
