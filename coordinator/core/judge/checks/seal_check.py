"""Check that the stored plan is the plan that was sealed at launch."""

from typing import Final

from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    Check,
    Result,
    RunInput,
    Stage,
    inconclusive,
)


def _evaluate(given: RunInput) -> Result:
    plan = given.plan
    if plan.is_intact:
        return NOTHING
    return inconclusive(
        id="plan-altered",
        weight=106,
        sentence="the stored plan is not the one that was sealed at launch: its SHA-256 is "
        f"{plan.digest()[:16]}..., the seal says {(plan.seal_sha256 or '')[:16]}...",
        next_step="find out who wrote to the table; launch again",
    )


SEAL: Final = Check(
    id="seal",
    stage=Stage.SEAL,
    question="Is the stored plan the plan that was sealed at launch?",
    formula="SHA-256 of the stored plan = the seal",
    reads="the stored plan and its seal",
    when_absent="a plan without a seal is accepted",
    findings=("plan-altered",),
    evaluate=_evaluate,
)
