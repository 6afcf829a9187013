"""Hunts for a wrong verdict: ``python -m tests.hunt --minutes 10 --seed 7``.

Fleets with planted truth, three searches: wrong passes and wrong fails, at random and then by
climbing on what came nearest; removals and forgeries of one source that turn another verdict into
a pass. Exits 1 on a wrong pass, a flip or an exception.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

from tests.hunt.engine import FAIL, PASS
from tests.hunt.searches import (
    KIND_NAMES,
    TAMPERS_A_CASE,
    Row,
    attempt,
    climb,
    random_case,
    replay,
    simplest,
)
from tests.hunt.tally import report

FOUND: Final = Path(__file__).parent / "found"
CHUNK: Final = 8
CLIMB_SHARE: Final = 0.25  # of the time


def _tried(seed: int, kinds: Sequence[str], tampers: int, numbers: Sequence[int]) -> list[Row]:
    return [attempt(random_case(number, seed, kinds), tampers=tampers) for number in numbers]


def _climbed(starts: Sequence[tuple[Row, int, str]]) -> list[Row]:
    return [row for start, seed, to in starts for row in climb(start.case, seed, towards=to)]


def _pooled(
    pool: ProcessPoolExecutor,
    call: Callable[..., list[Row]],
    asked: Iterable[tuple[Any, ...]],
    workers: int,
    until_s: float,
) -> list[Row]:
    """Rows of as many calls as fit in the time; a few are under way at once."""
    rows: list[Row] = []
    waiting: set[Future[list[Row]]] = set()
    left = iter(asked)
    while True:
        while len(waiting) < 2 * workers and time.monotonic() < until_s:
            arguments = next(left, None)
            if arguments is None:
                break
            waiting.add(pool.submit(call, *arguments))
        if not waiting:
            return rows
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            rows += future.result()


def _chunks(
    seed: int, kinds: Sequence[str], tampers: int, cases: int | None
) -> Iterator[tuple[int, Sequence[str], int, list[int]]]:
    numbers = count() if cases is None else iter(range(cases))
    while chunk := list(islice(numbers, CHUNK)):
        yield seed, kinds, tampers, chunk


def _starts(rows: Sequence[Row]) -> Iterator[tuple[list[tuple[Row, int, str]]]]:
    """Right passes with the least truth to spare, and right fails with the most."""
    by_kind: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.verdict == PASS and not row.wrong_pass and not row.unseen_pass:
            by_kind.setdefault((row.case.kind, PASS), []).append(row)
        if row.verdict == FAIL and not row.wrong_fail and row.ruling.badness > 0:
            by_kind.setdefault((row.case.kind, FAIL), []).append(row)
    for (_, verdict), some in by_kind.items():
        sign = 1 if verdict == PASS else -1
        some.sort(key=lambda row: sign * (row.ruling.goodness if sign > 0 else row.ruling.badness))
    for place in range(max(map(len, by_kind.values()), default=0)):
        for (_, verdict), some in by_kind.items():
            if place < len(some):
                yield ([(some[place], place, verdict)],)


def hunt(
    *,
    seed: int,
    minutes: float | None,
    cases: int | None,
    workers: int,
    kinds: Sequence[str] = KIND_NAMES,
    tampers: int = TAMPERS_A_CASE,
) -> tuple[list[Row], list[Row]]:
    """Rows at random, and rows of climbs."""
    begun_s = time.monotonic()
    whole_s = float("inf") if minutes is None else minutes * 60
    with ProcessPoolExecutor(workers) as pool:
        until_s = begun_s + whole_s * (1 - CLIMB_SHARE)
        rows = _pooled(pool, _tried, _chunks(seed, kinds, tampers, cases), workers, until_s)
        rows.sort(key=_place)  # whichever process was first
        starts = _starts(rows)
        if minutes is None:
            starts = islice(starts, max(1, len(rows) // 40))
        climbed = _pooled(pool, _climbed, starts, workers, begun_s + whole_s)
    return rows, sorted(climbed, key=_place)


def _place(row: Row) -> int:
    return row.case.seed


def keep(rows: Sequence[Row], folder: Path, workers: int) -> list[Path]:
    """Write a fixture of each kind of wrong verdict, made simpler first."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen: dict[str, tuple[Row, dict[str, Any]]] = {}
    for row in rows:
        for name, document in _fixtures(row):
            chosen.setdefault(name, (row, document))
    plain = [(name, row) for name, (row, document) in chosen.items() if "tamper" not in document]
    with ProcessPoolExecutor(workers) as pool:
        simpler = pool.map(simplest, [row.case for _, row in plain])
        for (name, _), case in zip(plain, simpler, strict=True):
            chosen[name][1]["case"] = case.document()
    paths = []
    for name, (row, document) in chosen.items():
        path = folder / f"{name}-{row.case.seed}.json"
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", "utf-8")
        paths.append(path)
    return paths


def _fixtures(row: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = row.case.kind
    case = row.case.document()
    if row.wrong_pass:
        why = "-".join(row.ruling.wrong_to_pass)
        yield f"{kind}-pass-{why}", {"case": case, "never": PASS, "why": why}
    if row.wrong_fail:
        yield f"{kind}-fail", {"case": case, "never": FAIL}
    if row.error:
        yield f"{kind}-error", {"case": case, "never": "error", "why": row.error}
    for flip in row.flips:
        name = "".join(letter for letter in flip.tamper if letter.isalnum() or letter == "-")
        told = {"case": case, "never": PASS, "tamper": flip.tamper, "tamper_seed": flip.seed}
        yield f"flip-{name}", told


def replayed(paths: Sequence[Path]) -> int:
    """Say of each found case whether its verdict is wrong still."""
    wrong = 0
    for path in paths:
        still = replay(json.loads(path.read_text("utf-8")))
        wrong += still is not None
        sys.stdout.write(f"{path.name}: {still or 'right'}\n")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hunt", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all searches")
    parser.add_argument("--cases", type=int, help="cases at random, in place of a time")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--found", type=Path, default=FOUND, help="where fixtures are written")
    parser.add_argument("--only", action="append", choices=KIND_NAMES, help="a kind of case")
    parser.add_argument("--tampers", type=int, default=TAMPERS_A_CASE, help="of each no pass")
    parser.add_argument("--replay", type=Path, nargs="+", help="found cases, in place of a hunt")
    asked = parser.parse_args()
    if asked.replay:
        return replayed(asked.replay)
    begun_s = time.monotonic()
    rows, climbed = hunt(
        seed=asked.seed,
        minutes=None if asked.cases else asked.minutes,
        cases=asked.cases,
        workers=asked.workers,
        kinds=asked.only or KIND_NAMES,
        tampers=asked.tampers,
    )
    took_s = time.monotonic() - begun_s
    everything = [*rows, *climbed]
    cpu_s = sum(row.cpu_s for row in everything)
    tampered = sum(row.tampered for row in everything)
    out = sys.stdout
    for line in report(rows, climbed):
        out.write(line + "\n")
    wrong = sum(row.wrong_pass for row in everything)
    flips = sum(len(row.flips) for row in everything)
    errors = sum(row.error is not None for row in everything)
    fails = sum(row.wrong_fail for row in everything)
    out.write(
        f"== Seed {asked.seed}: {len(rows)} cases at random, {len(climbed)} on climbs, "
        f"{tampered} tamperings in {took_s:.0f} s ({cpu_s / max(1, len(everything)):.3f} CPU-s a "
        f"case): {wrong} wrong passes, {fails} wrong fails, {flips} flips, {errors} errors\n"
    )
    for path in keep(everything, asked.found, asked.workers):
        out.write(f"   written: {path}\n")
    return 1 if wrong or flips or errors else 0


if __name__ == "__main__":
    sys.exit(main())
