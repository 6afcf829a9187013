"""The searches: at random, by climbing from what is nearest to a wrong verdict, by tampering."""

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from tests.hunt.engine import FAIL, PASS, Conclusion, Gap, Measured, World, conclude, difference
from tests.hunt.oracle import Ruling, rule
from tests.hunt.planting import KINDS, MOVES, Case, draw, moved
from tests.hunt.tampering import TAMPERS, tampered
from tests.hunt.worlds import FATES, Truth, build

KIND_NAMES: Final = tuple(KINDS)
TAMPERS_A_CASE: Final = 2
WORK_MAX: Final = 30_000  # pair-seconds of one case
STEPS: Final = 12  # of one climb
OWN_WORD: Final = ("one-clock-says-all-is-well",)  # forges what none but its host can know
UNTRUE_BINS: Final = "ledger-untrue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Whether a stated 95 % interval holds the truth."""

    what: str
    inside: bool
    half_ratio: float  # half width / truth


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A tampering that turned another verdict into a pass."""

    tamper: str
    untrue: bool  # and that pass is wrong by the truth as well
    seed: int
    untold: (
        bool  # no source that is left can tell, the pass is right by what it claims, and says so
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case, tried."""

    case: Case
    verdict: str
    findings: tuple[str, ...]
    ruling: Ruling
    margin: float  # carried / limit
    intervals: tuple[Interval, ...] = ()
    stated: int = 0  # intervals that could be stated, whether they were or not
    limiter: str = "unknown"
    limiter_right: bool = True
    apart: bool | None = None
    tampered: int = 0
    flips: tuple[Flip, ...] = ()
    untold: tuple[Flip, ...] = ()  # counted apart
    says_unseen: bool = False
    error: str | None = None
    cpu_s: float = 0.0

    @property
    def wrong_pass(self) -> bool:
        return self.verdict == PASS and bool(self.ruling.wrong_to_pass) and not self.ruling.unseen

    @property
    def unseen_pass(self) -> bool:
        return self.verdict == PASS and self.ruling.unseen

    @property
    def wrong_fail(self) -> bool:
        return self.verdict == FAIL and self.ruling.wrong_to_fail


def work(case: Case) -> int:
    return round(case.pairs * case.bursts * (case.omit_s + case.burst_s) / case.interval_s)


def attempt(case: Case, *, tampers: int = TAMPERS_A_CASE) -> Row:
    """Build a case, hear the engine, hold its word against the truth, and tamper."""
    begun = time.process_time()
    world, truth = build(case)
    told = conclude(world)
    ruling = rule(case, truth)
    row = Row(
        case=case,
        verdict=told.verdict,
        findings=told.findings,
        ruling=ruling,
        margin=_margin(truth),
        intervals=tuple(_intervals(case, truth, told)),
        limiter=told.limiter,
        limiter_right=told.limiter in truth.limiters,
        apart=_apart(case, told),
        says_unseen=told.says_unseen,
        error=told.error,
    )
    if told.verdict not in (PASS, "error") and tampers and not case.forged:
        flips, tried = _flips(case, world, truth, told, tampers)
        row = replace(
            row,
            flips=tuple(flip for flip in flips if not flip.untold),
            untold=tuple(flip for flip in flips if flip.untold),
            tampered=tried,
        )
    return replace(row, cpu_s=time.process_time() - begun)


def _margin(truth: Truth) -> float:
    return float(np.mean([burst.through_low for burst in truth.bursts])) / truth.limit


# Tampering ------------------------------------------------------------------------------------


def _flips(
    case: Case, world: World, truth: Truth, told: Conclusion, count: int
) -> tuple[list[Flip], int]:
    seed = zlib.crc32(f"{case.kind} {case.seed}".encode())
    names = np.random.default_rng(seed).permutation(list(TAMPERS))[:count]
    tried = [_flip(case, world, truth, told, str(name), seed) for name in names]
    return [flip for flip in tried if flip], sum(flip is not None for flip in tried)


def _flip(
    case: Case, world: World, truth: Truth, told: Conclusion, name: str, seed: int
) -> Flip | Literal[False] | None:
    """False: it turns nothing into a pass; None: there is no such source.

    What nobody promised may be taken away, and then the first line of the pass says that the fleet
    alone vouches; what only a host knows of its own clock may be forged, and every pass says so;
    labels moved alike are another lag where none is documented, and the verdict tells the lag; what
    only bins that cannot be true spoke against, nothing does without them. All are counted apart
    where the pass is right by what is left to claim.
    """
    other = tampered(name, world, np.random.default_rng(seed))
    if other is None:
        return None
    new = conclude(other, like=told)
    if new.verdict != PASS:
        return False
    untrue = bool(rule(case, truth).wrong_to_pass)
    untold = name in OWN_WORD and new.says_own_clocks and not untrue
    if name == "move-ledger's-labels" and world.ledger and world.ledger.lag_hint_s is None:
        untold = not untrue and new.lag.value is not None
    if told.findings == (UNTRUE_BINS,) and not untrue:
        untold = untold or UNTRUE_BINS not in new.findings  # the very bins were taken away
    if name == "drop-ledger" and not world.ledger_promised and new.says_alone:
        untold = rule(case, replace(truth, ledger_cover=0.0)).is_right_to_pass
    return Flip(tamper=name, untrue=untrue, seed=seed, untold=untold)


def flips_of(case: Case, tamper: str, seed: int) -> bool:
    """Whether this one tampering still turns another verdict into a pass."""
    world, truth = build(case)
    told = conclude(world)
    if told.verdict in (PASS, "error"):
        return False
    flip = _flip(case, world, truth, told, tamper, seed)
    return bool(flip and not flip.untold)


# Intervals -------------------------------------------------------------------------------------


def _holds(what: str, told: Measured, truth: float, scale: float) -> Iterator[Interval]:
    if told.value is None or told.half_width is None or not scale:
        return
    inside = abs(told.value - truth) <= told.half_width
    yield Interval(what=what, inside=inside, half_ratio=told.half_width / abs(scale))


def _intervals(case: Case, truth: Truth, told: Conclusion) -> Iterator[Interval]:
    """Of cases in which the figure's truth is beyond argument."""
    harmed = any(getattr(case, fate) for fate in FATES)
    odd = harmed or case.forged or case.lost_bursts
    shaped = case.head_share or case.fall_at < 1 or case.dip_share or case.tilt
    if not odd and not shaped and case.receivers_seconds:
        if not case.shift and not case.climb:
            yield from _holds("rate", told.rate, truth.level, truth.level)
        for burst, measured in zip(truth.bursts, told.burst_rates, strict=False):
            yield from _holds("burst", measured, burst.level, burst.level)
    disturbed = (
        case.reference
        or case.foreign_trend
        or case.bursty
        or case.in_bursts
        or case.other_runs
        or case.duplicate
        or case.resets
        or case.stalls
        or case.wraps
        or case.yields
        or case.periodic
        or case.ledger_scale != 1
    )
    # Clocks that lie at both ends of a pair move its seconds, and no interval answers for a lie.
    if not (odd or disturbed or case.gap_pairs or case.lie_both) and truth.residual is not None:
        # Of a reference the engine tells what crossed, not what is missing.
        crossed = 1.0 if case.reference else 0.0
        yield from _holds("residual", told.residual, truth.residual + crossed, 1.0)
        if not case.lag_drift_s:
            yield from _holds("lag", told.lag, truth.lag_s, max(1.0, case.grain_s))
    gap = _gap(case, told)
    if gap is not None:
        yield from _holds("difference", gap.difference, truth.level * case.shift, truth.level)


def _gap(case: Case, told: Conclusion) -> Gap | None:
    if case.kind != "compare" or len(told.bursts) < 2:
        return None
    return difference(told.bursts[::2], told.bursts[1::2])


def _apart(case: Case, told: Conclusion) -> bool | None:
    gap = _gap(case, told)
    return None if gap is None else gap.apart


# Climbing --------------------------------------------------------------------------------------


def climb(case: Case, seed: int, *, towards: str) -> list[Row]:
    """From a right pass (or fail), to worse truths that the engine still passes (or fails)."""
    rng = np.random.default_rng([seed, 2])
    row = attempt(case, tampers=0)
    rows = [row]
    for _ in range(STEPS):
        other = moved(row.case, rng)
        if work(other) > WORK_MAX:
            continue
        tried = attempt(other, tampers=0)
        rows.append(tried)
        if tried.wrong_pass or tried.wrong_fail:
            break
        if tried.verdict == towards and _nearer(tried, row, towards):
            row = tried
    return rows


def _nearer(new: Row, old: Row, towards: str) -> bool:
    if towards == PASS:
        return new.ruling.goodness <= old.ruling.goodness and not new.ruling.unseen
    return new.ruling.badness >= old.ruling.badness


def is_wrong(row: Row) -> bool:
    return row.wrong_pass or row.wrong_fail or row.verdict == "error"


def simplest(case: Case, *, tries: int = 80) -> Case:
    """The same wrong verdict with as many parameters as usual as it keeps."""
    wanted = attempt(case, tampers=0)
    if not is_wrong(wanted):
        return case
    plain = Case(kind=case.kind, seed=case.seed)
    for name in [*MOVES, "layer", "limiter", "mss", "streams", "ledger_layer", "tolerance"][:tries]:
        if getattr(case, name) == getattr(plain, name):
            continue
        other = case.evolve(**{name: getattr(plain, name)})
        if other.burst_s >= other.period_s or work(other) > WORK_MAX:
            continue
        row = attempt(other, tampers=0)
        if row.verdict == wanted.verdict and is_wrong(row):
            case = other
    return case


def random_case(number: int, seed: int, kinds: Sequence[str] = KIND_NAMES) -> Case:
    """The n-th case of a hunt: kinds in turn, so that each is tried as often."""
    return draw(kinds[number % len(kinds)], seed * 1_000_003 + number)


def replay(document: Mapping[str, Any]) -> str | None:
    """What is wrong with a found case still; None: nothing."""
    case = Case(**document["case"])
    if "tamper" in document:
        flips = flips_of(case, document["tamper"], document["tamper_seed"])
        return f"{document['tamper']} turns it into a pass" if flips else None
    row = attempt(case, tampers=0)
    if row.error:
        return f"raises {row.error}"
    if row.wrong_pass:
        return f"passes without {', '.join(row.ruling.wrong_to_pass)}"
    return "fails though it held" if row.wrong_fail else None
