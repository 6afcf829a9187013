"""Check: do the bursts agree well enough for their mean to reach the target?"""

import math
from statistics import fmean, stdev
from typing import Final

from broadside.coordinator.core import words
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
    header_bounds,
    limit_of,
    received,
)
from broadside.coordinator.core.measure.steady import t95


def _evaluate(given: RunInput) -> Result:
    spec, bursts = given.plan.spec, given.bursts
    limit = limit_of(spec)
    rates = [rate for burst in bursts if (rate := received(spec, burst)) is not None]
    if limit is None or len(rates) < BURSTS_MIN:
        return NOTHING
    mean = fmean(rate.value for rate in rates)
    error = stdev(rate.value for rate in rates) / math.sqrt(len(rates))
    bounds = zip(*(header_bounds(spec, burst) for burst in bursts), strict=True)
    less, more = (math.hypot(t95(len(rates) - 1) * error, mean * max(each)) for each in bounds)
    run = Interval(value=mean, below=less, above=more)
    if run.low > limit:
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
    question="Do the bursts agree well enough for their mean to reach the target?",
    formula="mean - hypot(t(N-1) s / sqrt(N), header doubt) > limit, from three bursts on",
    reads="the bursts' rates",
    when_absent="nothing is concluded of fewer than three bursts",
    findings=("target-undecided",),
    evaluate=_evaluate,
)
