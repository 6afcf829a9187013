"""Search for wrong verdicts: `python -m tests.hunt --cases 3000 --seed 1`.

The exit code is 1 after a wrong pass, a flip by a manipulation, an exception, or more than 0.5 %
wrong fails. The same cases and seed produce the same report.
"""

import argparse
import os
import sys
import time
import traceback

from tests.hunt.adapter import conclude
from tests.hunt.played_stops import play
from tests.hunt.report import is_failed, report
from tests.hunt.world_cases import hunt
from tests.worlds import KINDS, generate, judge


def _show(name: str) -> int:
    """Print all data of one world, named `kind:seed`."""
    kind, _, seed = name.partition(":")
    world, stop = play(generate(kind, int(seed)))
    out = sys.stdout
    if stop is not None:
        out.write(f"stopped at second {stop.second}: {stop.verdict}\n")
    out.write(f"{KINDS[kind].sentence}\n{world.spec}\n{world.manipulations}\n\n{judge(world)}\n\n")
    for truth in world.truth.bursts:
        out.write(f"burst {truth.index}: high {truth.high_bits_per_second:.5g}\n")
    try:
        summary = conclude(world.recording)
    except Exception:
        out.write(traceback.format_exc())
        return 1
    out.write(f"\nverdict {summary.verdict}, limit {summary.limit_bits_per_second:.5g}\n")
    out.write(f"{summary.bottleneck_details}\n{summary.reconciliation}\n")
    for finding in summary.findings:
        out.write(f"  {finding.severity} {finding.id}: {finding.sentence}\n")
    for burst in summary.bursts:
        out.write(f"burst {burst.index}: {burst.verdict} {burst.window}\n")
    return 0


def main() -> int:
    """Run the search and print its report."""
    parser = argparse.ArgumentParser(prog="python -m tests.hunt", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="names of kinds, with commas; default: all")
    parser.add_argument("--manipulate", action="store_true", help="also look for flips")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--show", metavar="KIND:SEED", help="print one world and its verdict")
    arguments = parser.parse_args()
    if arguments.show:
        return _show(arguments.show)
    kinds = [kind for kind in arguments.kinds.split(",") if kind]
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        parser.error(f"--kinds: {', '.join(unknown)}: not a kind; known are {', '.join(KINDS)}")
    began_s = time.monotonic()
    cases = hunt(
        arguments.cases,
        arguments.seed,
        kinds,
        manipulated=arguments.manipulate,
        workers=arguments.workers,
    )
    took_s = time.monotonic() - began_s
    for line in report(cases):
        sys.stdout.write(line + "\n")
    sys.stdout.write(
        f"\nseed {arguments.seed}: {len(cases)} cases in {took_s:.0f} s, {arguments.workers} "
        "processes\n"
    )
    return 1 if is_failed(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
