"""Check that the device blocked the forbidden canaries of the burst."""

from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    CheckResult,
    inconclusive,
)
from broadside.coordinator.core.summary import (
    CanarySummary,
    Finding,
    FindingValue,
    Verdict,
    describe_leaks,
    note,
    problem,
    warning,
)
from broadside.coordinator.core.thresholds import LEAK_STEP
from broadside.exchange.messages import Canary

# Largest upper end of the leaked share for a pass without a limit.
LEAK_PROVEN_RATIO: Final = 0.05
CANARY_STEP: Final = "Run longer or more bursts, or set a shorter traffic.canary.every_s"


def check_canary(inputs: BurstInput) -> CheckResult:
    """Check that the device blocked the forbidden canaries of the burst.

    Formula: canaries of almost all pairs and of each signature were tested, no forbidden canary
        arrived whose allowed twin arrived (or their share is checked by
        objective.leak_max_ratio), and the upper end of the exact 99 % interval of this share is at
        most 5 %.
    Reads: canaries of all pairs.
    If absent: inconclusive, if the run has canaries.
    """
    settings, canary = inputs.spec.traffic.canary, inputs.burst.canary
    if settings is None:
        return NOTHING
    planned, tested = inputs.burst.pairs_planned, 0 if canary is None else canary.pairs_count
    limit = inputs.spec.objective.leak_max_ratio
    leaks = () if canary is None else _leaks(canary, is_allowed=limit is not None)
    if leaks and limit is None:
        return CheckResult(Verdict.FAIL, leaks)
    if canary is None or tested < inputs.spec.objective.coverage_floor_ratio * planned:
        return _missing(
            f"Canaries of {tested} of {planned} pairs were tested during the burst. The others "
            "have no records, or their allowed twin did not arrive.",
            settings,
        )
    if untested := [one.name for one in canary.signatures if not one.during.tested_count]:
        return _missing(
            f"No canary of {', '.join(untested)} was tested during the burst: none was sent, or "
            "no allowed twin arrived.",
            settings,
        )
    text, high = describe_leaks(canary.during), canary.during.leak_high_ratio or 0.0
    if limit is None and high > LEAK_PROVEN_RATIO:
        return inconclusive(
            "canary-few",
            70,
            f"Share of forbidden canaries that leaked is {text}. The upper end is above "
            f"{formatting.ratio(LEAK_PROVEN_RATIO, 0)}, so there are too few canaries.",
            CANARY_STEP,
            FindingValue.share(high, "high"),
        )
    if leaks:
        return CheckResult(findings=leaks)
    sentence = f"The device blocked forbidden canaries during the burst. Leaked share: {text}."
    return CheckResult(findings=(note("canary-blocked", 39, sentence),))


def _missing(sentence: str, settings: Canary) -> CheckResult:
    """Return an inconclusive result if canaries were not tested."""
    return inconclusive(
        "canary-missing",
        71,
        f"{sentence} This does not show whether the device still inspects.",
        f"Allow port {settings.port} (TCP, or UDP for signatures with over_udp) from clients to "
        "servers on the device and on the hosts, and read the agents' logs",
    )


def _leaks(canary: CanarySummary, *, is_allowed: bool) -> tuple[Finding, ...]:
    """Return a finding if canaries leaked. It is a warning if the objective has a limit for it."""
    before, during = canary.before, canary.during
    if not during.leaked_count:
        return ()
    sentence = f"Forbidden canaries passed the device during the burst: {describe_leaks(during)}."
    if canary.first_leak_at is not None:
        sentence += f" First at {canary.first_leak_at:%H:%M:%S} UTC{_conditions(canary)}."
    step = LEAK_STEP
    if before.tested_count:
        sentence += f" Before the burst: {describe_leaks(before)}."
        if before.leaked_count == before.tested_count:
            step = (
                "The policy does not block these requests without load either. Check the rules of "
                "the signatures, their action (deny, not alert) and their order"
            )
    create = warning if is_allowed else problem
    value = FindingValue.share(during.leak_ratio or 0.0, "high")
    return (create("canary-leaked", 91, sentence, step, value),)


def _conditions(canary: CanarySummary) -> str:
    """Return rate and CPU at the first leak, as far as they are known."""
    step = None if canary.first_leak_at is None else canary.step_of(canary.first_leak_at)
    parts = []
    if step is not None and step.received_bits_per_second is not None:
        parts.append(formatting.rate(step.received_bits_per_second))
    if step is not None and step.device_cpu_ratio is not None:
        parts.append(f"{formatting.ratio(step.device_cpu_ratio, 0)} CPU of the device")
    return f", at {' and '.join(parts)}" if parts else ""
