"""Judgement of worlds by the engine, compared with the permitted verdicts."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Final
from zlib import crc32

import numpy as np

from broadside.coordinator.core.summary import RunSummary, Verdict
from tests.hunt.adapter import BOTTLENECKS, conclude
from tests.hunt.played_stops import contradictions, play
from tests.worlds import KINDS, World, generate, judge
from tests.worlds.manipulate import random_manipulation
from tests.worlds.record_format import Floats

PASS: Final = Verdict.PASS.value
FAIL: Final = Verdict.FAIL.value
INCONCLUSIVE: Final = Verdict.INCONCLUSIVE.value
ERROR: Final = "error"
# Number of cases that a worker receives at once.
CHUNK: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One world and the result of the engine.

    Attributes:
        kind: Kind of the world.
        seed: Seed of the world.
        verdict: Verdict of the engine, or `error`.
        why: Ids of problems and warnings, or the exception.
        wrong: Reason that the verdict is wrong, or an empty text.
        unseen: Violations that are not visible in a recorded source.
        should_pass: True if only a pass is useful for this world.
        bottleneck: `right`, `unknown` or `wrong`.
        named: Bottleneck reported by the engine, and the true one.
        covered: For each burst, whether the interval contains the expected rate of its window.
        flip: Manipulation that changes another verdict to a wrong pass, or `None`.
        stopped_s: Time of the early stop after the start, or `None`.
        changed: True if the planned rest of a stopped burst would have changed the result.
        contradictions: What the summary of an early stop does not state correctly.
    """

    kind: str
    seed: int
    verdict: str
    why: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    should_pass: bool = False
    bottleneck: str = "unknown"
    named: tuple[str, str] = ("unknown", "unknown")
    covered: tuple[bool, ...] = field(default=())
    flip: str | None = None
    stopped_s: int | None = None
    changed: bool = False
    contradictions: tuple[str, ...] = ()

    @property
    def wrong_pass(self) -> bool:
        """Return whether the verdict is pass although a recorded source shows a violation."""
        return self.verdict == PASS and bool(self.wrong)

    @property
    def wrong_fail(self) -> bool:
        """Return whether the verdict is fail although all requirements are clearly met."""
        return self.verdict == FAIL and bool(self.wrong)

    @property
    def needless(self) -> bool:
        """Return whether a world that should pass has another verdict."""
        return self.should_pass and self.verdict != PASS


def problems_of(summary: RunSummary) -> tuple[str, ...]:
    """Return the ids of problems and warnings in a summary."""
    ids = [f.id for f in summary.findings if f.severity in ("problem", "warning")]
    return tuple(dict.fromkeys(ids))


def run_case(kind: str, seed: int, *, manipulated: bool = False) -> Case:
    """Generate a world, judge it, and compare the verdict with the permitted ones.

    Args:
        kind: Kind of the world.
        seed: Seed of the world.
        manipulated: Apply a random manipulation and check for a change to pass.

    Returns:
        The case. After an exception of the engine the verdict is `error`.
    """
    planned = generate(kind, seed)
    try:
        world, stop = play(planned)
        summary = conclude(world.recording)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Case(kind=kind, seed=seed, verdict=ERROR, why=(text,))
    permitted = judge(world)
    verdict = summary.verdict.value
    wrong: tuple[str, ...] = ()
    if verdict not in permitted.permitted and verdict in (PASS, FAIL):
        wrong = permitted.reasons[verdict]
    named = BOTTLENECKS[summary.bottleneck]
    return Case(
        kind=kind,
        seed=seed,
        verdict=verdict,
        why=problems_of(summary),
        wrong=wrong,
        unseen=permitted.unseen,
        should_pass=permitted.should_pass,
        bottleneck="unknown"
        if named == "unknown"
        else ("right" if named in permitted.bottlenecks else "wrong"),
        named=(named, world.spec.bottleneck),
        covered=tuple(_covered(world, summary)),
        flip=_flip(world, verdict) if manipulated and verdict != PASS else None,
        stopped_s=None if stop is None else stop.second,
        changed=stop is not None and _is_above(planned) != _is_above(world),
        contradictions=tuple(contradictions(world, stop, summary)),
    )


def _is_above(world: World) -> bool:
    """Return whether the rate without noise reaches the limit."""
    truth = world.truth
    return truth.bursts[0].expected_bits_per_second >= truth.limit_bits_per_second


def _covered(world: World, summary: RunSummary) -> Iterator[bool]:
    """Yield, for bursts with an interval, whether it contains the expected rate of the window."""
    plan = world.recording.plan
    if len(summary.bursts) != len(world.truth.bursts):
        return
    for truth, burst in zip(world.truth.bursts, summary.bursts, strict=True):
        rate = burst.fleet_received_bits_per_second
        half = burst.fleet_received_half_width_bits_per_second
        if rate is None or half is None or burst.window is None:
            continue
        # The window depends on the clocks of the hosts. A common offset of most hosts shifts the
        # true rate.
        moved_s = truth.window_start_s - plan.bursts[truth.index].start_s - plan.epoch_unix_s
        edges_s = np.array([burst.window.start_at.timestamp(), burst.window.end_at.timestamp()])
        expected = _expected_bytes(world, truth.index, edges_s + moved_s)
        yield abs(rate - expected * 8 / burst.window.window_s) <= half


def _expected_bytes(world: World, index: int, edges_s: Floats) -> float:
    """Return the expected number of received payload bytes between two times."""
    total = 0.0
    for flow in world.physics.flows:
        if flow.burst.index != index:
            continue
        at_s = flow.burst.grid_start_s + flow.step_s * np.arange(flow.expected.size + 1)
        curve = np.concatenate(([0.0], np.cumsum(flow.expected)))
        ends = np.interp(edges_s - float(np.median(flow.delay_down_s)), at_s, curve)
        total += float(ends[1] - ends[0])
    return total


def _flip(world: World, before: str) -> str | None:
    rng = np.random.default_rng([crc32(world.kind.encode()), world.seed, 7])
    forged = random_manipulation(world, rng)
    made = forged.manipulations[-1]
    try:
        after = conclude(forged.recording).verdict.value
    except Exception as error:
        return f"error after {made.name} {made.source}: {type(error).__name__}: {error}"
    if after != PASS or PASS in judge(forged).permitted:
        return None
    return f"{before} to pass by {made.name} {made.source} {made.amount:.4g}"


def numbered(count: int, seed: int, kinds: Sequence[str]) -> list[tuple[str, int]]:
    """Return kinds and seeds of cases, with an equal number for the kinds.

    Args:
        count: Number of cases.
        seed: Seed of the search. Different seeds have no world in common.
        kinds: Names of kinds, in order.
    """
    return [
        (kinds[number % len(kinds)], seed * 1_000_000 + number // len(kinds))
        for number in range(count)
    ]


def hunt(
    count: int,
    seed: int,
    kinds: Sequence[str] = (),
    *,
    manipulated: bool,
    workers: int = 1,
) -> list[Case]:
    """Run cases and return them in the order of :func:`numbered` for any number of workers.

    Args:
        count: Number of cases.
        seed: Seed of the search.
        kinds: Names of kinds. An empty list means all.
        manipulated: Check for flips too.
        workers: Number of processes.
    """
    requested = numbered(count, seed, tuple(kinds) or tuple(KINDS))
    run = partial(_run_numbered, manipulated=manipulated)
    if workers == 1:
        return [run(case) for case in requested]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(run, requested, chunksize=CHUNK))


def _run_numbered(numbered_case: tuple[str, int], *, manipulated: bool) -> Case:
    kind, seed = numbered_case
    return run_case(kind, seed, manipulated=manipulated)
