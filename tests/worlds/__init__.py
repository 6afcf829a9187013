"""Worlds with a physical model of a test fleet and a device, and the resulting recordings.

`generate(kind, seed)` returns a world, and `judge(world)` returns the verdicts that are wrong
for it. The package does not use the engine under test. `README.md` documents the recording
format.
"""

from tests.worlds.bursts import BurstTruth
from tests.worlds.kinds import KINDS, Kind, generate
from tests.worlds.parameters import Spec
from tests.worlds.truth import Truth, Violation
from tests.worlds.world import Judgement, Manipulation, World, build, judge, permitted, stop

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
    "stop",
]
