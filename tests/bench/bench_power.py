"""Measure how often a fleet 2 % above its limit passes, by the scatter of its rate.

To run it, use ``python -m tests.bench.bench_power [--cases 600] [--seed 7] [--room 0.02]``. The
worlds have the kind ``clean-30s`` of the hunt, with bursts of 30 s that can have a correlation of
up to 0.5 from second to second. The target of a world is set so that its slowest burst is above the
limit by exactly this margin.
"""

import argparse
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Final

import numpy as np

from tests.hunt.adapter import conclude
from tests.worlds import generate

KIND: Final = "clean-30s"
# Seconds that a start or an end can affect.
EDGE_S: Final = 2
# Upper bounds of the rows, as a ratio to the mean.
ERRORS: Final = (0.001, 0.002, 0.003, 0.004, 0.005, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedWorld:
    """Result of one world.

    Attributes:
        error_ratio: Standard error of the mean of 30 s, by the true seconds and the true
            correlation.
        bursts_count: Number of bursts that must be above the limit.
        verdict: Verdict of the engine.
    """

    error_ratio: float
    bursts_count: int
    verdict: str


def judge_world(seed: int, margin_ratio: float) -> JudgedWorld:
    """Judge one world with the given room above the limit."""
    world = generate(KIND, seed)
    bursts, plan, rho = world.truth.bursts, world.recording.plan, world.spec.noise.rho
    slowest = min(burst.low_bits_per_second for burst in bursts)
    factor = slowest / ((1 + margin_ratio) * world.truth.limit_bits_per_second)
    moved = replace(plan, target_bits_per_second=plan.target_bits_per_second * factor)
    steady = [burst.seconds[EDGE_S:-EDGE_S] for burst in bursts]
    scatter = float(np.concatenate([item / item.mean() for item in steady]).std())
    return JudgedWorld(
        error_ratio=scatter * math.sqrt((1 + rho) / (1 - rho) / world.spec.duration_s),
        bursts_count=len(bursts),
        verdict=conclude(replace(world.recording, plan=moved)).verdict.value,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_power", description=__doc__)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--room", type=float, default=0.02)
    arguments = parser.parse_args()
    seeds = range(arguments.seed * 1_000_000, arguments.seed * 1_000_000 + arguments.cases)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        cases = list(
            pool.map(partial(judge_world, margin_ratio=arguments.room), seeds, chunksize=8)
        )
    out = sys.stdout
    out.write("| standard error of the mean | worlds | pass | fail | pass, of one burst |\n")
    out.write("| --- | --- | --- | --- | --- |\n")
    for low, high in zip((0.0, *ERRORS), ERRORS, strict=False):
        row = [case for case in cases if low <= case.error_ratio < high]
        single = [case for case in row if case.bursts_count == 1]
        passed, failed = (sum(case.verdict == part for case in row) for part in ("pass", "fail"))
        alone = sum(case.verdict == "pass" for case in single)
        out.write(
            f"| {low:.1%} to {high:.1%} | {len(row)} | {passed} ({passed / max(1, len(row)):.0%}) "
            f"| {failed} | {alone} of {len(single)} |\n"
        )


if __name__ == "__main__":
    main()
