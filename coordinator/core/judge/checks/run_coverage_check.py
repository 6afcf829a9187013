"""Check that the run has ended and that enough pair-seconds were measured."""

from typing import Final

from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    Check,
    Result,
    RunInput,
    Stage,
    inconclusive,
)
from broadside.coordinator.core.summary import Verdict


def _evaluate(given: RunInput) -> Result:
    planned = len(given.plan.bursts)
    absent = planned - len(given.bursts)
    if absent:
        return inconclusive(
            id="bursts-pending",
            weight=99,
            sentence=f"{absent} of {planned} bursts are not over or not summarised",
            next_step="wait for the run to end",
        )
    if given.completeness_ratio < given.plan.spec.objective.coverage_floor_ratio:
        # The checks of the bursts already return findings for this case.
        return Result(Verdict.INCONCLUSIVE)
    return NOTHING


RUN_COVERAGE: Final = Check(
    id="run-coverage",
    stage=Stage.COVERAGE,
    question="Is the run over, and was enough of all its bursts measured?",
    formula="measured / planned pair-seconds of all planned bursts >= "
    "objective.coverage_floor_ratio",
    reads="the bursts' completeness",
    when_absent="inconclusive",
    findings=("bursts-pending",),
    evaluate=_evaluate,
)
