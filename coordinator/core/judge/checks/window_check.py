"""Check that the window contains nearly all seconds of each test."""

from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    Check,
    Result,
    Stage,
    inconclusive,
)
from broadside.coordinator.core.summary import Verdict, note

# The window consists of whole UTC seconds. A test can start and end within a second, so one missing
# second at each end is not an error.
GRID_S: Final = 2


def _evaluate(given: BurstInput) -> Result:
    window = given.burst.window
    if window is None or window.outside_s <= GRID_S:
        return NOTHING
    recorded_s = given.burst.duration_s
    ratio = (window.outside_s - GRID_S) / max(1, recorded_s)
    limit = 1 - given.spec.objective.coverage_floor_ratio
    said = (
        f"{window.outside_s} of {recorded_s} s of {window.outside_pair} lie outside the "
        f"{window.common_s} s that all measured pairs share"
    )
    if ratio <= limit:
        stated = note(id="window-outside", weight=13, sentence=f"{said}; the rate is without them")
        return Result(Verdict.PASS, (stated,))
    return inconclusive(
        id="outside-window",
        weight=87,
        sentence=f"{said}, more than the {words.ratio(limit, 1)} and {GRID_S} s allowed: the rate "
        "of the window does not stand for these tests",
        next_step="start the tests together, and synchronise the clocks of their hosts",
    )


WINDOW: Final = Check(
    id="window",
    stage=Stage.EVIDENCE,
    question="Does the common window contain nearly all seconds of each test?",
    formula="(seconds of a test outside the window - 2) / planned seconds "
    "<= 1 - objective.coverage_floor_ratio, for every measured pair",
    reads="seconds of both ends, placed by corrected clocks; in imports by the offset between the "
    "clocks of both ends that the test itself shows",
    when_absent="the check is skipped without a window, or from means alone",
    findings=("outside-window", "window-outside"),
    evaluate=_evaluate,
)
