"""Runs worlds through the engine and compares its conclusions with what is permitted."""

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
from tests.worlds import KINDS, World, generate, judge
from tests.worlds.manipulate import random_manipulation
from tests.worlds.record_format import Floats

PASS: Final = Verdict.PASS.value
FAIL: Final = Verdict.FAIL.value
INCONCLUSIVE: Final = Verdict.INCONCLUSIVE.value
ERROR: Final = "error"
CHUNK: Final = 8  # cases that a worker takes at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One world and what the engine concluded.

    Attributes:
        kind: Kind of the world.
        seed: Seed of the world.
        verdict: The engine's verdict, or `error`.
        why: Ids of problems and warnings, or the exception.
        wrong: Why this verdict is wrong; empty if it is not.
        unseen: Violations that no recorded source shows.
        should_pass: Any other verdict than a pass is needless.
        bottleneck: `right`, `unknown` or `wrong`.
        named: The bottleneck that the engine names, and the true one.
        covered: By burst: the interval holds the rate that was to be expected in its window.
        flip: The manipulation that makes a wrong pass of another verdict; `None` if none does.
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

    @property
    def wrong_pass(self) -> bool:
        """A pass although a recorded source shows what is not met."""
        return self.verdict == PASS and bool(self.wrong)

    @property
    def wrong_fail(self) -> bool:
        """A fail although everything is met with room."""
        return self.verdict == FAIL and bool(self.wrong)

    @property
    def needless(self) -> bool:
        """No pass of a world that owes one."""
        return self.should_pass and self.verdict != PASS


def problems_of(summary: RunSummary) -> tuple[str, ...]:
    """Return the ids of the summary's problems and warnings."""
    ids = [f.id for f in summary.findings if f.severity in ("problem", "warning")]
    return tuple(dict.fromkeys(ids))


def run_case(kind: str, seed: int, *, manipulated: bool = False) -> Case:
    """Generate a world, judge it, and compare.

    Args:
        kind: Kind of the world.
        seed: Seed of the world.
        manipulated: Also apply one manipulation at random, and look for a flip to a pass.

    Returns:
        The case. An exception of the engine is the verdict `error`.
    """
    world = generate(kind, seed)
    permitted = judge(world)
    try:
        summary = conclude(world.recording)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Case(kind=kind, seed=seed, verdict=ERROR, why=(text,))
    verdict = summary.verdict.value
    wrong: tuple[str, ...] = ()
    if verdict not in permitted.permitted and verdict in (PASS, FAIL):
        wrong = permitted.reasons[verdict]
    named = BOTTLENECKS[summary.limiter]
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
    )


def _covered(world: World, summary: RunSummary) -> Iterator[bool]:
    """Yield, for each burst with an interval, whether it holds the window's expected rate."""
    plan = world.recording.plan
    if len(summary.bursts) != len(world.truth.bursts):
        return
    for truth, burst in zip(world.truth.bursts, summary.bursts, strict=True):
        rate = burst.fleet_received_bits_per_second
        half = burst.fleet_received_half_width_bits_per_second
        if rate is None or half is None or burst.window is None:
            continue
        # The window is by the hosts' clocks; what most of them have in common moves the truth.
        moved_s = truth.window_start_s - plan.bursts[truth.index].start_s - plan.epoch_unix_s
        edges_s = np.array([burst.window.start_at.timestamp(), burst.window.end_at.timestamp()])
        expected = _expected_bytes(world, truth.index, edges_s + moved_s)
        yield abs(rate - expected * 8 / burst.window.window_s) <= half


def _expected_bytes(world: World, index: int, edges_s: Floats) -> float:
    """Return the payload bytes that are expected to be received between two instants."""
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
    """Return kinds and seeds of cases, spread evenly over the kinds.

    Args:
        count: How many.
        seed: Seed of the hunt; hunts of different seeds share no world.
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
    """Run cases, in the order of :func:`numbered` whatever the number of workers.

    Args:
        count: How many.
        seed: Seed of the hunt.
        kinds: Names of kinds; empty means all.
        manipulated: Also look for flips.
        workers: Processes.
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
