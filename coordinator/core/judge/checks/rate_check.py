"""Check: did the fleet reach the target?"""

from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.figures import RECEIVED
from broadside.coordinator.core.goals import goals_set
from broadside.coordinator.core.judge.checks.check_types import (
    BurstInput,
    Check,
    Result,
    Stage,
    inconclusive,
)
from broadside.coordinator.core.judge.rates import (
    WHOLE_RATIO,
    Interval,
    compared,
    factor_of,
    limit_of,
    received,
)
from broadside.coordinator.core.summary import Finding, Verdict, problem

UNSEEN_FACTOR: Final = 1.5  # of the fullest seen pair's rate: what an unseen one may have sent


def _evaluate(given: BurstInput) -> Result:
    spec, burst = given.spec, given.burst
    if RECEIVED.of_burst(burst) is None or burst.window is None:
        return inconclusive(
            "no-window",
            92,
            "there is no second that all measured pairs share, so there is no fleet rate",
            "look at the pairs' states; check starts and clocks",
        )
    limit, fleet = limit_of(spec), received(spec, burst, given.between_bits_per_second)
    if limit is None:
        rate = (RECEIVED.of_burst(burst) or 0.0) * factor_of(spec, burst)
        asked = any(goals_set(spec.objective)) or spec.bypasses_device
        untargeted = Finding(
            id="no-target",
            kind="verdict",
            severity="note",
            weight=20,
            sentence=f"the fleet received {words.rate(rate)} at the {spec.objective.layer} "
            "layer; no target was set, so of the rate nothing was to be passed or failed",
        )
        return Result(Verdict.PASS if asked else Verdict.MEASURED, (untargeted,))
    if fleet is None:
        return inconclusive(
            "interval-unknown",
            91,
            f"the window of {burst.window.window_s} s is too short, or its seconds are not on "
            "record, to say how sure its mean is; a verdict needs an interval",
            "run bursts of 30 s or more",
        )
    reached = Finding(
        id="target-reached",
        kind="verdict",
        severity="note",
        weight=50,
        sentence=compared(spec, burst, fleet, limit),
    )
    return _hold_fleet(given, fleet, limit) or Result(Verdict.PASS, (reached,))


def _hold_fleet(given: BurstInput, fleet: Interval, limit: float) -> Result | None:
    """Return why the rate does not pass; None where the whole interval is above the limit."""
    spec, burst = given.spec, given.burst
    factor = factor_of(spec, burst)
    seen = burst.completeness
    whole = seen.completeness_ratio >= WHOLE_RATIO and burst.proven_ratio >= WHOLE_RATIO
    said = compared(spec, burst, fleet, limit)
    if fleet.high < limit:
        unseen_s = seen.planned_s - seen.measured_s
        peak = (burst.peak_pair_bits_per_second or 0.0) * factor
        filled = UNSEEN_FACTOR * peak * unseen_s / max(1, burst.duration_s)
        if not whole and fleet.high + filled >= limit:
            return inconclusive(
                "target-open",
                85,
                f"{said}; the {unseen_s} unseen pair-seconds could make up the "
                f"{words.rate(limit - fleet.value)} that it falls short",
                "run again with every pair",
            )
        missed = problem(
            "target-missed",
            100,
            said,
            burst.limiter_details.advice
            or "find the limit: look at NICs, CPU, windows and the firewall's own metrics",
        )
        return Result(Verdict.FAIL, (missed,))
    if fleet.low <= limit:
        return inconclusive(
            "target-undecided",
            86,
            f"{said}: the limit lies within the interval, so neither a pass nor a failure is shown",
            "run longer or more bursts, or state another target",
        )
    worst = (burst.worst_bits_per_second or 0.0) * factor
    if not whole and worst - fleet.below <= limit:
        return inconclusive(
            "target-unproven",
            80,
            f"{said}, but rows are missing, and over the worst window that they leave open "
            f"receivers saw {words.rate(worst)}",
            "run again with every pair",
        )
    return None


RATE: Final = Check(
    id="rate",
    stage=Stage.RATE,
    question="Did the fleet receive the target rate?",
    formula="R - h > limit passes, R + h < limit fails, with limit = target x (1 - tolerance)",
    reads="receivers' seconds over the common window",
    when_absent="inconclusive; missing pairs can prevent a fail by what they may have carried",
    findings=(
        "no-window",
        "no-target",
        "interval-unknown",
        "target-missed",
        "target-open",
        "target-undecided",
        "target-unproven",
        "target-reached",
    ),
    evaluate=_evaluate,
)
