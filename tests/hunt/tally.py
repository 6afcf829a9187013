"""The tables of a hunt."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from tests.hunt.engine import FAIL, PASS
from tests.hunt.planting import KINDS
from tests.hunt.searches import Row

DISTANCES: Final = (-0.05, -0.03, -0.02, -0.01, -0.005, 0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.10)
QUIET: Final = ("clean", "clean-no-ledger", "clean-azure")
SPARE: Final = 0.02
FIGURES: Final = ("rate", "burst", "residual", "lag", "difference")


def _share(part: int, whole: int) -> str:
    return "-" if not whole else f"{part / whole:.1%}"


def lines_by_kind(rows: Sequence[Row]) -> Iterable[str]:
    """Cases and what was wrong of them."""
    yield (
        f"{'kind':18} {'cases':>6} {'pass':>5} {'fail':>5} {'incl':>5} "
        f"{'wrong pass':>11} {'unseen':>7} {'unsaid':>7} {'wrong fail':>11} {'tampered':>9} "
        f"{'flips':>6} {'untrue':>7} {'untold':>7} {'errors':>7}"
    )
    for kind in [*KINDS, "all"]:
        some = [row for row in rows if kind in (row.case.kind, "all")]
        if not some:
            continue
        verdicts = Counter(row.verdict for row in some)
        flips = [flip for row in some for flip in row.flips]
        yield (
            f"{kind:18} {len(some):6d} {verdicts[PASS]:5d} {verdicts[FAIL]:5d} "
            f"{verdicts['inconclusive']:5d} {sum(row.wrong_pass for row in some):11d} "
            f"{sum(row.unseen_pass for row in some):7d} "
            f"{sum(row.unseen_pass and not row.says_unseen for row in some):7d} "
            f"{sum(row.wrong_fail for row in some):11d} "
            f"{sum(row.tampered for row in some):9d} {len(flips):6d} "
            f"{sum(flip.untrue for flip in flips):7d} "
            f"{sum(len(row.untold) for row in some):7d} {verdicts['error']:7d}"
        )


def lines_of_reasons(rows: Sequence[Row]) -> Iterable[str]:
    """Why wrong passes are wrong, and which tamperings flip."""
    reasons = Counter("+".join(row.ruling.wrong_to_pass) for row in rows if row.wrong_pass)
    for reason, count in reasons.most_common():
        yield f"  {count:5d} wrong passes: {reason}"
    flips = Counter(flip.tamper for row in rows for flip in row.flips)
    for tamper, count in flips.most_common():
        yield f"  {count:5d} flips: {tamper}"
    untold = Counter(flip.tamper for row in rows for flip in row.untold)
    for tamper, count in untold.most_common():
        yield f"  {count:5d} flips that no source can tell, and whose pass says so: {tamper}"
    for error, count in Counter(row.error for row in rows if row.error).most_common(8):
        yield f"  {count:5d} raised: {error[:120]}"


def lines_of_coverage(rows: Sequence[Row]) -> Iterable[str]:
    """How often a stated 95 % interval holds the truth, by kind, and how wide it is."""
    held: dict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    for row in rows:
        for interval in row.intervals:
            for kind in (row.case.kind, "all"):
                held[kind, interval.what].append((interval.inside, interval.half_ratio))
    yield f"{'kind':18} " + " ".join(f"{what:>24}" for what in FIGURES)
    for kind in [*KINDS, "all"]:
        cells = []
        for what in FIGURES:
            some = held.get((kind, what))
            if not some:
                cells.append(f"{'-':>24}")
                continue
            share = sum(inside for inside, _ in some) / len(some)
            width = float(np.median([half for _, half in some]))
            cells.append(f"{share:10.1%} {len(some):5d} {width:7.2%}")
        if any(cell.strip() != "-" for cell in cells):
            yield f"{kind:18} " + " ".join(cells)


def lines_of_acceptance(rows: Sequence[Row]) -> Iterable[str]:
    """The operating characteristic: verdicts of clean fleets by distance from the limit."""
    yield f"{'distance':>18} " + " ".join(f"{kind:>30}" for kind in QUIET)
    yield f"{'':18} " + " ".join(f"{'cases   pass incl.  fail':>30}" for _ in QUIET)
    for low, high in pairwise(DISTANCES):
        cells = []
        for kind in QUIET:
            some = [row for row in rows if row.case.kind == kind and low <= row.margin - 1 < high]
            verdicts = Counter(row.verdict for row in some)
            cells.append(
                f"{len(some):12d} {_share(verdicts[PASS], len(some)):>6} "
                f"{_share(verdicts['inconclusive'], len(some)):>6} "
                f"{_share(verdicts[FAIL], len(some)):>6}"
                if some
                else f"{'-':>30}"
            )
        yield f"{low:+8.1%}..{high:+7.1%} " + " ".join(f"{cell:>30}" for cell in cells)


def lines_of_refusals(rows: Sequence[Row]) -> Iterable[str]:
    """By kind, cases that hold everything with 2 % to spare: how many pass, and what keeps others.

    Not every one of them has to: a kind that plants doubt is refused by right.
    """
    yield f"{'kind':18} {'to spare':>8} {'pass':>7}  what keeps the others"
    for kind in KINDS:
        some = [
            row
            for row in rows
            if row.case.kind == kind
            and row.ruling.is_right_to_pass
            and row.ruling.badness >= 1 + SPARE
        ]
        if not some:
            continue
        passed = sum(row.verdict == PASS for row in some)
        kept = Counter(name for row in some if row.verdict != PASS for name in row.findings)
        names = ", ".join(f"{name} {count}" for name, count in kept.most_common(5))
        yield f"{kind:18} {len(some):8d} {_share(passed, len(some)):>7}  {names}"


def lines_of_limiters(rows: Sequence[Row]) -> Iterable[str]:
    """The share of right names by what was planted; the engine states no confidence."""
    some = [row for row in rows if row.case.kind == "limiter" and not row.error]
    yield f"{'planted':14} {'cases':>6} {'right':>7}  named"
    for limiter in sorted({row.case.limiter for row in some}):
        part = [row for row in some if row.case.limiter == limiter]
        named = Counter(row.limiter for row in part).most_common()
        yield (
            f"{limiter:14} {len(part):6d} "
            f"{_share(sum(row.limiter_right for row in part), len(part)):>7}  "
            + ", ".join(f"{name} {count}" for name, count in named)
        )


def lines_of_comparisons(rows: Sequence[Row]) -> Iterable[str]:
    """How often two groups are called apart, where they are alike and where they are not."""
    yield f"{'bursts a side':>14} {'alike':>6} {'apart':>7} {'unlike':>7} {'apart':>7}"
    sides = sorted({row.case.bursts // 2 for row in rows if row.apart is not None})
    for side in sides:
        part = [row for row in rows if row.apart is not None and row.case.bursts // 2 == side]
        alike = [row for row in part if not row.case.shift]
        unlike = [row for row in part if row.case.shift]
        yield (
            f"{side:14d} {len(alike):6d} {_share(sum(bool(r.apart) for r in alike), len(alike)):>7}"
            f" {len(unlike):7d} {_share(sum(bool(r.apart) for r in unlike), len(unlike)):>7}"
        )


def lines_of_worst(rows: Sequence[Row], count: int = 12) -> Iterable[str]:
    """The worst cases, a kind at most twice."""
    wrong = sorted((row for row in rows if row.wrong_pass), key=lambda row: row.ruling.goodness)
    seen: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for row in wrong:
        key = (row.case.kind, row.ruling.wrong_to_pass)
        seen[key] += 1
        if seen[key] <= 1 and count > 0:
            count -= 1
            yield (
                f"  pass at {row.ruling.goodness:.3f} of what it vouches for "
                f"({'+'.join(row.ruling.wrong_to_pass)}): {row.case.document()}"
            )


def report(rows: Sequence[Row], climbed: Sequence[Row]) -> Iterable[str]:
    """Every table."""
    yield "== Cases at random"
    yield from lines_by_kind(rows)
    yield "== Cases on climbs"
    yield from lines_by_kind(climbed)
    yield "== Why"
    yield from lines_of_reasons([*rows, *climbed])
    yield "== Worst"
    yield from lines_of_worst([*rows, *climbed])
    yield "== Coverage of stated 95 % intervals: share, intervals, median half width"
    yield from lines_of_coverage(rows)
    yield "== Acceptance of clean fleets by distance from the limit"
    yield from lines_of_acceptance(rows)
    yield "== Acceptance by kind of cases that hold everything with 2 % to spare"
    yield from lines_of_refusals(rows)
    yield "== The limiter"
    yield from lines_of_limiters(rows)
    yield "== Comparisons"
    yield from lines_of_comparisons(rows)
