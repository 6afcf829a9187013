"""Check that the fleet received the target rate."""

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
    carried,
    compared,
    factor_of,
    limit_of,
    received,
)
from broadside.coordinator.core.judge.unseen import unseen_bits_per_second
from broadside.coordinator.core.summary import BurstSummary, Finding, Verdict, problem


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
    """Return the result if the rate does not pass, or None if it passes."""
    spec, burst = given.spec, given.burst
    factor = factor_of(spec, burst)
    seen = burst.completeness
    whole = seen.completeness_ratio >= WHOLE_RATIO and burst.proven_ratio >= WHOLE_RATIO
    said = compared(spec, burst, fleet, limit)
    if fleet.high < limit:
        if not whole and (reason := _is_open(given, fleet, limit)) is not None:
            return inconclusive("target-open", 85, f"{said}; {reason}", "run again with every pair")
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
    sent = _sent(burst)
    if sent is not None and sent * factor < fleet.value:
        # All received bytes must have been sent. The tolerance for the two ends allows a received
        # rate above the sent rate. But such a rate does not prove that the target was reached.
        low = fleet.low - (fleet.value - sent * factor)
        if low <= limit:
            return inconclusive(
                "target-above-sent",
                82,
                f"{said}; senders recorded {words.rate(sent * factor)}, and by that the limit is "
                "not surely reached",
                "find out why receivers recorded more than was sent, and run again",
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


def _sent(burst: BurstSummary) -> float | None:
    """Return the payload rate that the senders recorded in bit/s, or None if one is missing."""
    heard = sum(pair.received_bits_per_second is not None for pair in burst.pairs)
    if not burst.flows or any(flow.sent_pairs_count < heard for flow in burst.flows):
        return None
    return burst.fleet_sent_bits_per_second


def _is_open(given: BurstInput, fleet: Interval, limit: float) -> str | None:
    """Return a text if missing records prevent a fail, or None if the burst fails."""
    spec, burst = given.spec, given.burst
    unseen_s = burst.completeness.planned_s - burst.completeness.measured_s
    filled = unseen_bits_per_second(spec, burst, given.others) * factor_of(spec, burst)
    if fleet.high + filled >= limit:
        return (
            f"the {unseen_s} unseen pair-seconds could make up the "
            f"{words.rate(limit - fleet.value)} that it falls short"
        )
    device = carried(spec, burst, fleet)
    if device is not None and device.high >= limit:
        return (
            f"{unseen_s} pair-seconds are unseen, and the device counted {device}, which may be "
            "what they carried"
        )
    return None


RATE: Final = Check(
    id="rate",
    stage=Stage.RATE,
    question="Did the fleet receive the target rate?",
    formula="pass if R - h > limit and S - h > limit (h of R); fail if R + h < limit; otherwise "
    "inconclusive",
    reads="receivers' and senders' seconds over the common window; where pairs are missing, what "
    "these carried in other bursts, and the device counter",
    when_absent="inconclusive. Missing pairs prevent a fail if what they may have carried reaches "
    "the limit (their largest rate in other bursts, else a prediction from the other pairs). "
    "So does a device counter that may hold the difference",
    findings=(
        "no-window",
        "no-target",
        "interval-unknown",
        "target-missed",
        "target-open",
        "target-undecided",
        "target-above-sent",
        "target-unproven",
        "target-reached",
    ),
    evaluate=_evaluate,
)
