"""Check that enough of the plan was measured, and by the receivers."""

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


def _evaluate(given: BurstInput) -> Result:
    floor, burst = given.spec.objective.coverage_floor_ratio, given.burst
    seen = burst.completeness
    if seen.completeness_ratio < floor:
        return inconclusive(
            id="below-floor",
            weight=95,
            sentence=f"{seen.measured_s} of {seen.planned_s} planned pair-seconds were "
            f"measured, {words.ratio(seen.completeness_ratio, 1)}; a verdict needs "
            f"{words.ratio(floor, 1)}",
            next_step="mend what the findings below name, then run again",
        )
    if burst.proven_ratio < floor:
        return inconclusive(
            id="receiver-unseen",
            weight=90,
            sentence=f"receivers' own seconds cover {words.ratio(burst.proven_ratio, 1)} of "
            "the planned "
            f"pair-seconds; a verdict needs {words.ratio(floor, 1)}, the rest rests on senders",
            next_step="check that the server agents run and can write their records",
        )
    return NOTHING


COVERAGE: Final = Check(
    id="coverage",
    stage=Stage.COVERAGE,
    question="Were enough planned pair-seconds measured, and recorded by the receivers themselves?",
    formula="measured / planned pair-seconds >= objective.coverage_floor_ratio; the same for the "
    "seconds that receivers recorded",
    reads="claims, reports and seconds of both ends",
    when_absent="inconclusive",
    findings=("below-floor", "receiver-unseen"),
    evaluate=_evaluate,
)
