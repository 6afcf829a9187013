"""How far verdicts move when a constant is halved or doubled.

``python -m tests.constants_effect`` writes ``docs/constants_effect.csv``. Two groups of cases are
judged with every constant as it is, halved and doubled: *real*, tables and telemetry that nobody
here generated (``tests/data/original``), and *worlds*, one world of each kind of
``tests/worlds`` with a fixed seed. A line has, for each factor, how many verdicts of either group
differ, and the checks whose findings differ anywhere.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from broadside.coordinator.core.judge.checks import BURST_CHECKS, RUN_CHECKS
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.imports.import_requests import OriginalTable
from docs.constants import numbers, supports
from tests.hunt.adapter import conclude
from tests.unit.coordinator.imports.small_tables import made
from tests.unit.coordinator.imports.test_table_bursts import table
from tests.worlds import KINDS, generate

PAGE: Final = Path(__file__).parents[1] / "docs" / "constants_effect.csv"
FACTORS: Final = {"halved": 0.5, "doubled": 2.0}
SEED: Final = 31
# Of the kinds, every fourth whose world is no larger than this, so that a run takes minutes.
PAIR_SECONDS_MAX: Final = 1500
# File, with its telemetry, and the target: 30 clients carried 181 to 188 Gbit/s at the IP layer.
REAL: Final = (
    ("seed-280s-30clients.csv", True, 180e9),
    ("seed-idps-on-off-1client.csv", False, 1e9),
)
CHECK_OF: Final = {
    **{finding: check.id for check in BURST_CHECKS for finding in check.findings},
    **{finding: check.id for check in RUN_CHECKS for finding in check.findings},
}
Result = tuple[str, frozenset[str]]


@contextmanager
def scaled(name: str, factor: float) -> Iterator[None]:
    """Multiply a constant wherever the core has it under its name."""
    module, constant = name.split(".")
    core = [m for key, m in sys.modules.items() if key.startswith("broadside.coordinator.")]
    having = [m for m in core if hasattr(m, constant)]
    own = [m for m in having if m.__name__.endswith(f".{module}")]
    value = getattr(own[0], constant) if own else None
    there = [m for m in having if getattr(m, constant) is value]
    for each in there:
        setattr(each, constant, _times(value, factor))
    try:
        yield
    finally:
        for each in there:
            setattr(each, constant, value)


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_times(each, factor) for each in value)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def _result(summary: RunSummary) -> Result:
    findings = [*summary.findings, *(f for burst in summary.bursts for f in burst.findings)]
    return str(summary.verdict), frozenset(finding.id for finding in findings)


@cache
def _recordings() -> list[Any]:
    worlds = (generate(kind, SEED) for kind in list(KINDS)[::4])
    return [
        world.recording
        for world in worlds
        if world.spec.pairs_count * world.spec.duration_s * world.spec.bursts_count
        <= PAIR_SECONDS_MAX
    ]


@cache
def _tables() -> list[OriginalTable]:
    return [
        table(name, metric=metric).model_copy(
            update={"overrides": {"objective.target_bits_per_second": target}}
        )
        for name, metric, target in REAL
    ]


def judged() -> tuple[list[Result], list[Result]]:
    """Judge all cases with the constants as they are now: real ones, worlds."""
    real = [_safe(lambda each=each: made(each)[1]) for each in _tables()]
    return real, [_safe(lambda each=each: conclude(each)) for each in _recordings()]


def _safe(judge: Any) -> Result:
    try:
        return _result(judge())
    except Exception as error:  # a constant that makes no sense is a change
        return type(error).__name__, frozenset()


@cache
def _usual() -> tuple[list[Result], list[Result]]:
    return judged()


def effect(name: str) -> Mapping[str, str]:
    """Return one constant's line."""
    line: dict[str, str] = {"name": name}
    checks: set[str] = set()
    usual = _usual()
    for word, factor in FACTORS.items():
        with scaled(name, factor):
            new = judged()
        for group, before, after in zip(("real", "worlds"), usual, new, strict=True):
            moved = sum(a[0] != b[0] for a, b in zip(before, after, strict=True))
            line[f"{word}_{group}"] = f"{moved}/{len(before)}"
            for a, b in zip(before, after, strict=True):
                checks |= {CHECK_OF.get(each, "observation") for each in a[1] ^ b[1]}
    return {**line, "checks": " ".join(sorted(checks))}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.constants_effect", description=__doc__)
    parser.add_argument("names", nargs="*", help="module.NAME; all where none is given")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    kept: dict[str, Mapping[str, str]] = {}
    if asked.names and PAGE.exists():
        with PAGE.open(encoding="utf-8", newline="") as file:
            kept = {line["name"]: line for line in csv.DictReader(file)}
    rows = supports()
    names: Sequence[str] = asked.names or [
        n for n in numbers() if rows[n].kind not in ("work", "beside")
    ]
    with ProcessPoolExecutor(asked.workers) as pool:
        for line in pool.map(effect, names):
            kept[line["name"]] = line
            sys.stdout.write(" ".join(line.values()) + "\n")
            sys.stdout.flush()
            _write(kept)
    return 0


def _write(lines: Mapping[str, Mapping[str, str]]) -> None:
    columns = ["name", *(f"{w}_{g}" for w in FACTORS for g in ("real", "worlds")), "checks"]
    with PAGE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines[name] for name in sorted(lines))


if __name__ == "__main__":
    sys.exit(main())
