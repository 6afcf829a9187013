"""Run every scenario of the field's notebook in the lab with real traffic (``make scenarios``).

Each *bed* (a topology) uses one lab with fleet and coordinator for all its cases. The lab is set to
the profile of each case. The results are printed as one table. The exit code is 0 if every case ran
and showed the effect that its profile plants.

Rates are those of the lab, as measured. If the machine was busy for nine tenths of a burst, the row
contains a note, because its rate is then the machine's and not the path's.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from broadside.lab.child_processes import run_to_end
from broadside.lab.errors import LabError
from broadside.lab.site import free_prefix
from tests.scenarios import live_values
from tests.scenarios.scenario_range import carry_out, chosen, standing
from tests.scenarios.scenario_table import cells, chapter, markdown

DOCUMENT: Final = Path(__file__).parent / "README.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        help="a case with this text in its name, and the cases it refers to",
    )
    parser.add_argument("--json", action="store_true", help="one JSON array on standard output")
    parser.add_argument(
        "--write", action="store_true", help="write the table in tests/scenarios/README.md"
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="compare live values that are shown as known with the final ones, in short runs",
    )
    given = parser.parse_args()
    if given.live:
        return compare_live_values(given.only)
    cases = chosen(given.only)
    if not cases:
        sys.stderr.write(f"--only {given.only}: no such case\n")
        return 3
    rows = []
    began_s = time.monotonic()
    try:
        for row in carry_out(cases):
            rows.append(row)
            sys.stderr.write(f"{' | '.join(cells(row))}\n")
    except (LabError, TimeoutError) as error:
        sys.stderr.write(f"scenarios: {error}\n")
        return 4
    if given.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(markdown(rows)) + "\n")
    if given.write:
        when = (
            f"{datetime.now(UTC):%Y-%m-%d}, {len(rows)} cases in "
            f"{(time.monotonic() - began_s) / 60:.0f} minutes on {os.cpu_count()} cores. Lab "
            "rates: 1:100 of 10 Gbit/s VMs, 1:10 on the long path."
        )
        DOCUMENT.write_text(chapter(DOCUMENT.read_text(), rows, when))
    return 1 if any(row.faults or row.problem for row in rows) else 0


def compare_live_values(only: Sequence[str] | None) -> int:
    """Print a table of live and final values. Return 1 if a known value was not the final one."""
    code = 0
    sys.stdout.write(f"| {' | '.join(live_values.HEADINGS)} |\n")
    sys.stdout.write(f"|{' --- |' * len(live_values.HEADINGS)}\n")
    with free_prefix() as prefix, standing(live_values.TESTBED, prefix) as range_:
        for case in live_values.CASES:
            if only and not any(part in case.name for part in only):
                continue
            verdict, comparisons = live_values.compare_case(range_.coordinator, case)
            for cells in live_values.rows(case, verdict, comparisons):
                sys.stdout.write(f"| {' | '.join(cells)} |\n")
            sys.stdout.flush()
            if not all(item.is_within for item in comparisons):
                code = 1
    return code


if __name__ == "__main__":
    run_to_end(main)
