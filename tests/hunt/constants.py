"""What a constant's choice gives: each halved and doubled over hunted cases.

``python -m tests.hunt.constants --cases 90 lag.RIVAL_RATIO limiter.ROOM_RATIO`` prints for each
constant (all of docs/constants.md's where none is named) how many verdicts and names of limiters
move, and how many verdicts become wrong passes or wrong fails. Only cases of little work are taken.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from typing import Final

from tests.hunt.engine import FAIL, PASS, Conclusion, World, conclude
from tests.hunt.oracle import Ruling, rule
from tests.hunt.searches import random_case, work
from tests.hunt.worlds import build

PAGE: Final = Path(__file__).parents[2] / "docs/constants.md"
WORK_MAX: Final = 4000  # pair-seconds of a case
FACTORS: Final = (0.5, 2.0)


def listed() -> list[str]:
    """The page's constants, as ``module.NAME``."""
    return re.findall(r"^\| `([a-z_]+\.[A-Z_0-9]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)


@contextmanager
def scaled(name: str, factor: float) -> Iterator[None]:
    """A constant times a factor wherever the core has it under its name."""
    module, constant = name.split(".")
    core = [m for key, m in sys.modules.items() if key.startswith("broadside.coordinator.core.")]
    having = [m for m in core if hasattr(m, constant)]
    value = next(getattr(m, constant) for m in having if m.__name__.endswith(f".{module}"))
    there = [m for m in having if getattr(m, constant) is value]
    other = max(1, round(value * factor)) if isinstance(value, int) else value * factor
    for each in there:
        setattr(each, constant, other)
    try:
        yield
    finally:
        for each in there:
            setattr(each, constant, value)


@cache
def _planted(cases: int, seed: int) -> list[tuple[World, Ruling, Conclusion]]:
    drawn = (random_case(number, seed) for number in count())
    small = islice((case for case in drawn if work(case) <= WORK_MAX), cases)
    found = []
    for case in small:
        world, truth = build(case)
        found.append((world, rule(case, truth), conclude(world)))
    return found


def told(name: str, cases: int, seed: int) -> str:
    """One constant's row."""
    said = []
    for factor in FACTORS:
        verdicts = names = passes = fails = errors = 0
        for world, ruling, usual in _planted(cases, seed):
            with scaled(name, factor):
                new = conclude(world)
            errors += new.error is not None
            verdicts += new.verdict != usual.verdict
            names += new.limiter != usual.limiter
            wrong = bool(ruling.wrong_to_pass) and not ruling.unseen
            passes += new.verdict == PASS and wrong
            fails += new.verdict == FAIL and ruling.wrong_to_fail
        said.append(f"{verdicts:8d} {names:5d} {passes:5d} {fails:5d} {errors:6d}")
    return f"{name:38} " + "   ".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hunt.constants", description=__doc__)
    parser.add_argument("names", nargs="*", help="module.NAME, as in docs/constants.md")
    parser.add_argument("--cases", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    names: Sequence[str] = asked.names or listed()
    head = "verdicts names pass+ fail+ errors"
    sys.stdout.write(f"{asked.cases} cases, seed {asked.seed}; moved when halved, when doubled\n")
    sys.stdout.write(f"{'':38} {head}   {head}\n")
    with ProcessPoolExecutor(asked.workers) as pool:
        for row in pool.map(partial(told, cases=asked.cases, seed=asked.seed), names):
            sys.stdout.write(row + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
