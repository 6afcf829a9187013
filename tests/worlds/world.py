"""A world with its parameters, physics, recording and permitted verdicts."""

from dataclasses import dataclass, replace
from functools import cached_property
from zlib import crc32

import numpy as np

from tests.worlds.bursts import BurstTruth
from tests.worlds.parameters import Spec
from tests.worlds.record_format import Floats, Recording
from tests.worlds.recording import record
from tests.worlds.traffic import Physics, simulate, stop_traffic
from tests.worlds.truth import Truth, find_truth


@dataclass(frozen=True, kw_only=True, slots=True)
class Manipulation:
    """A change of the records without a change of the physics.

    Attributes:
        name: `scale`, `shift`, `remove-source`, `remove-rows`, `add-rows`, `cut-outages`,
            `flatten` or `swap-rows`.
        source: `sender`, `receiver`, `device`, `host`, `clients`, `servers`, `group`, `all`,
            `clocks` or `telemetry`.
        amount: Factor, seconds or share, depending on the name.
        raises: True if the change makes the fleet or the device look better.
        lowers: True if the change makes the fleet or the device look worse.
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
        kind: Kind name.
        seed: Seed. `generate(kind, seed)` returns the same world.
        spec: Parameters to use.
        physics: Simulated physics to use.
        recording: Records after all manipulations.
        manipulations: Changes of the records.
    """

    kind: str
    seed: int
    spec: Spec
    physics: Physics
    recording: Recording
    manipulations: tuple[Manipulation, ...] = ()

    @cached_property
    def truth(self) -> Truth:
        """Ground truth, computed on first use."""
        moved = sum(
            m.amount for m in self.manipulations if (m.name, m.source) == ("shift", "device")
        )
        return find_truth(self.spec, self.physics, self.recording, moved)

    def true_seconds(self, burst: int) -> Floats:
        """Return the payload bytes received per second in the window of a burst."""
        return self._burst(burst).seconds

    def _burst(self, index: int) -> BurstTruth:
        return next(burst for burst in self.truth.bursts if burst.index == index)

    def with_recording(self, recording: Recording, manipulation: Manipulation) -> "World":
        """Return this world with changed records.

        Args:
            recording: Changed records to use.
            manipulation: Description of the change.
        """
        return replace(self, recording=recording, manipulations=(*self.manipulations, manipulation))


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Permitted verdicts and bottlenecks for a world.

    Attributes:
        permitted: Verdicts that the documents permit.
        reasons: Reasons for wrong verdicts, by verdict.
        unseen: Violations without a recorded source that shows them. A pass is then permitted.
        should_pass: True if an inconclusive verdict is unnecessary.
        bottlenecks: Correct names for the bottleneck.
    """

    permitted: frozenset[str]
    reasons: dict[str, tuple[str, ...]]
    unseen: tuple[str, ...]
    should_pass: bool
    bottlenecks: frozenset[str]


def build(kind: str, seed: int, spec: Spec, rng: np.random.Generator) -> World:
    """Simulate and record a world.

    Args:
        kind: Kind name.
        seed: World seed.
        spec: Parameters to use.
        rng: Random number generator to use.

    Returns:
        The world, without manipulations.
    """
    physics = simulate(spec, rng)
    return World(
        kind=kind, seed=seed, spec=spec, physics=physics, recording=record(spec, physics, rng)
    )


def stop(world: World, second: float) -> World:
    """Return the world in which all pairs stopped by order, with new records.

    The traffic until the stop is the same, and the planned rest of the burst does not take place.

    Args:
        world: World with one planned burst, without manipulations.
        second: Time of the stop after the planned instant, in whole seconds.

    Returns:
        The world. Its truth is that of the traffic until the stop.
    """
    spec = replace(world.spec, duration_s=second, planned_s=world.spec.duration_s)
    rng = np.random.default_rng([crc32(world.kind.encode()), world.seed, round(second)])
    physics = stop_traffic(world.physics, second)
    recording = record(spec, physics, rng)
    return replace(world, spec=spec, physics=physics, recording=recording)


def judge(world: World) -> Judgement:
    """Return the verdicts that the documents permit, with reasons.

    A *pass* is wrong if a requirement is not met and at least one recorded source shows it.
    A *fail* is wrong if all requirements are met with a margin and the records were not lowered.
    *Inconclusive* is never wrong. `should_pass` is true if it is unnecessary.

    Args:
        world: World to judge.

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
    """Return the subset of pass, fail and inconclusive that is not wrong."""
    return judge(world).permitted
