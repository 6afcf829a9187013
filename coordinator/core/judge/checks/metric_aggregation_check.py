"""Check that the device metric has an aggregation from which bytes can be computed."""

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
    ledger = given.ledger
    if ledger is None or ledger.extreme is None:
        return NOTHING
    return inconclusive(
        id="metric-aggregation",
        weight=88,
        sentence=f"the figures of {ledger.source} are the {ledger.extreme} of the samples in a "
        "bin, from which no bytes follow, so the device counter cannot be compared with the fleet",
        next_step="export the average or the total of each bin, and declare it",
    )


METRIC_AGGREGATION: Final = Check(
    id="metric-aggregation",
    stage=Stage.EVIDENCE,
    question="Can bytes be computed from the device metric?",
    formula="its declared aggregation is an average or a total",
    reads="the declaration of the device metric",
    when_absent="the check is skipped without a counter",
    findings=("metric-aggregation",),
    evaluate=_evaluate,
)
