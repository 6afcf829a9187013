"""Worlds: a physical model of a test fleet and a device, and the recordings that follow from it.

`generate(kind, seed)` makes a world, `judge(world)` says which verdicts are wrong for it.
The package knows nothing of the engine that judges. `README.md` documents the recording format.
"""

from tests.worlds.bursts import BurstTruth
from tests.worlds.kinds import KINDS, Kind, generate
from tests.worlds.parameters import Spec
from tests.worlds.truth import Truth, Violation
from tests.worlds.world import Judgement, Manipulation, World, build, judge, permitted

__all__ = [
    "KINDS",
    "BurstTruth",
    "Judgement",
    "Kind",
    "Manipulation",
    "Spec",
    "Truth",
    "Violation",
    "World",
    "build",
    "generate",
    "judge",
    "permitted",
]
