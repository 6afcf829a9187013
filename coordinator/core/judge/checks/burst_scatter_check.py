"""Check that compares the mean rate of all bursts with the limit."""

import math
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.figures import RECEIVED_HALF_WIDTH
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    Check,
    Result,
    RunInput,
    Stage,
    inconclusive,
)
from broadside.coordinator.core.judge.rates import (
    BURSTS_MIN,
    Interval,
    factor_of,
    header_bounds,
    limit_of,
    received,
)
from broadside.coordinator.core.measure.steady import mean_of_bursts


def _evaluate(given: RunInput) -> Result:
    spec, bursts = given.plan.spec, given.bursts
    limit = limit_of(spec)
    rates = [(burst, rate) for burst in bursts if (rate := received(spec, burst)) is not None]
    if limit is None or len(rates) < BURSTS_MIN:
        return NOTHING
    halves = [
        None if half is None else half * factor_of(spec, burst)
        for burst, _ in rates
        for half in [RECEIVED_HALF_WIDTH.of_burst(burst)]
    ]
    mean = mean_of_bursts([rate.value for _, rate in rates], halves)
    bounds = zip(*(header_bounds(spec, burst) for burst in bursts), strict=True)
    less, more = (math.hypot(mean.half_width, mean.value * max(each)) for each in bounds)
    run = Interval(value=mean.value, below=less, above=more)
    # If the whole interval is on one side of the limit, the checks of the bursts decide.
    if run.low > limit or run.high < limit:
        return NOTHING
    return inconclusive(
        id="target-undecided",
        weight=86,
        sentence=f"over {len(rates)} bursts the fleet received {run} at the "
        f"{spec.objective.layer} layer: their scatter reaches the limit of {words.rate(limit)}",
        next_step="run more bursts, or find out why they differ",
    )


BURST_SCATTER: Final = Check(
    id="burst-scatter",
    stage=Stage.EVIDENCE,
    question="Is the interval of the bursts' mean above the limit?",
    formula="mean of the bursts' rates - sqrt(h_run² + h_header²) > limit; h_run is the run's h "
    "without the error of the header size",
    reads="the bursts' rates and intervals",
    when_absent="the check is skipped with fewer than three bursts",
    findings=("target-undecided",),
    evaluate=_evaluate,
)
