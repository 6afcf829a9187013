"""A world: parameters, what happened, what was recorded, and what may be said about it."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tests.worlds.bursts import BurstTruth
from tests.worlds.parameters import Spec
from tests.worlds.record_format import Floats, Recording
from tests.worlds.recording import record
from tests.worlds.traffic import Physics, simulate
from tests.worlds.truth import Truth, find_truth


@dataclass(frozen=True, kw_only=True, slots=True)
class Manipulation:
    """A change to the records that did not happen in the physics.

    Attributes:
        name: `scale`, `shift`, `remove-source`, `remove-rows`, `add-rows`, `cut-outages`,
            `flatten` or `swap-rows`.
        source: `sender`, `receiver`, `device`, `host`, `clients`, `servers`, `group`, `all`,
            `clocks` or `telemetry`.
        amount: Factor, seconds or share, as the name demands.
        raises: The change makes the fleet or the device look better.
        lowers: The change makes the fleet or the device look worse.
    """

    name: str
    source: str
    amount: float
    raises: bool = False
    lowers: bool = False


@dataclass(frozen=True, kw_only=True)
class World:
    """One generated world.

    Attributes:
        kind: Name of the kind.
        seed: Seed; `generate(kind, seed)` gives this world again.
        spec: Parameters.
        physics: What truly happened.
        recording: Records, after all manipulations.
        manipulations: What was changed in the records.
    """

    kind: str
    seed: int
    spec: Spec
    physics: Physics
    recording: Recording
    manipulations: tuple[Manipulation, ...] = ()

    @cached_property
    def truth(self) -> Truth:
        """Ground truth, computed at first use."""
        moved = sum(
            m.amount for m in self.manipulations if (m.name, m.source) == ("shift", "device")
        )
        return find_truth(self.spec, self.physics, self.recording, moved)

    def true_seconds(self, burst: int) -> Floats:
        """Return the payload bytes that arrived in each second of a burst's window."""
        return self._burst(burst).seconds

    def _burst(self, index: int) -> BurstTruth:
        return next(burst for burst in self.truth.bursts if burst.index == index)

    def with_recording(self, recording: Recording, manipulation: Manipulation) -> "World":
        """Return this world with changed records.

        Args:
            recording: The changed records.
            manipulation: What was changed.
        """
        return replace(self, recording=recording, manipulations=(*self.manipulations, manipulation))


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What may be said about a world.

    Attributes:
        permitted: Verdicts that the documents permit.
        reasons: Why a verdict is wrong, by verdict.
        unseen: Violations that no recorded source shows; a pass is then untrue but not wrong.
        should_pass: An inconclusive verdict is needless.
        bottlenecks: Names that are right for the bottleneck.
    """

    permitted: frozenset[str]
    reasons: dict[str, tuple[str, ...]]
    unseen: tuple[str, ...]
    should_pass: bool
    bottlenecks: frozenset[str]


def build(kind: str, seed: int, spec: Spec, rng: np.random.Generator) -> World:
    """Simulate and record a world.

    Args:
        kind: Name of the kind.
        seed: Seed of the world.
        spec: Parameters.
        rng: Source of randomness.

    Returns:
        The world, without manipulations.
    """
    physics = simulate(spec, rng)
    return World(
        kind=kind, seed=seed, spec=spec, physics=physics, recording=record(spec, physics, rng)
    )


def judge(world: World) -> Judgement:
    """Return which verdicts the documents permit, with reasons.

    A *pass* is wrong if a requirement is not met and at least one recorded source shows it.
    A *fail* is wrong if every requirement is met with room, and nobody lowered the records.
    *Inconclusive* is never wrong; `should_pass` says when it is needless.

    Args:
        world: The world.

    Returns:
        The judgement.
    """
    truth = world.truth
    against_pass = []
    unseen = []
    for violation in truth.violations:
        place = "" if violation.burst is None else f" in burst {violation.burst}"
        text = f"{violation.name}{place}: {violation.value:.6g}, limit {violation.limit:.6g}"
        if violation.visible_in:
            against_pass.append(f"{text} ({', '.join(sorted(violation.visible_in))})")
        else:
            unseen.append(text)
    against_fail = []
    lowered = any(m.lowers for m in world.manipulations)
    if truth.holds and not lowered:
        against_fail.append("every requirement is met in every burst")
    permitted = {"pass", "fail", "inconclusive"}
    if against_pass:
        permitted.discard("pass")
    if against_fail:
        permitted.discard("fail")
    return Judgement(
        permitted=frozenset(permitted),
        reasons={"pass": tuple(against_pass), "fail": tuple(against_fail)},
        unseen=tuple(unseen),
        should_pass=world.spec.expect_pass
        and truth.comfortable
        and not truth.violations
        and not world.manipulations,
        bottlenecks=frozenset({world.spec.bottleneck, "unknown"}),
    )


def permitted(world: World) -> frozenset[str]:
    """Return the verdicts that are not wrong: a subset of pass, fail and inconclusive."""
    return judge(world).permitted
