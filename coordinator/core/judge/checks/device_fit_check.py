"""Check that the device counter changes over time as the fleet's records predict."""

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
from broadside.coordinator.core.judge.device_fit import ERROR_RATIO


def _evaluate(given: BurstInput) -> Result:
    held = given.burst.reconciliation
    if held is None or held.fit_distance_ratio is None or held.fit_limit_ratio is None:
        return NOTHING
    if held.fit_distance_ratio <= held.fit_limit_ratio:
        return NOTHING
    return inconclusive(
        id="device-shape",
        weight=86,
        sentence=f"{words.ratio(held.fit_distance_ratio, 1)} of the burst's bytes are at another "
        f"time in the ledger {held.source} than in the fleet's records; at most "
        f"{words.ratio(held.fit_limit_ratio, 1)} agree with clocks, lag and the counter's noise",
        next_step="check the clocks of the hosts in groups, and what else the device carried",
    )


DEVICE_FIT: Final = Check(
    id="device-fit",
    stage=Stage.EVIDENCE,
    question="Does the device counter change over time as the fleet's records predict?",
    formula="largest distance between the cumulative curves of counted and predicted bytes, scaled "
    f"to the same sum, <= the limit of a Brownian bridge for an error rate of {ERROR_RATIO:.1%}, "
    "plus the errors of lag, clocks and reading length",
    reads="the device counter, bin by bin, and the receivers' seconds",
    when_absent="skipped; the check residual handles an unknown lag",
    findings=("device-shape",),
    evaluate=_evaluate,
)
