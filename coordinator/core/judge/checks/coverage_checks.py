"""Checks that enough of the plan was measured, with clocks that are accurate enough."""

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    CheckResult,
    RunInput,
    inconclusive,
)
from broadside.coordinator.core.judge.checks.pair_texts import (
    LISTED_COUNT,
    list_pairs,
    missing_pairs,
    missing_pairs_step,
)
from broadside.coordinator.core.measure.consistency_checks import LOGIN_APART_S, STAMPS_APART_S
from broadside.coordinator.core.summary import (
    BurstSummary,
    ByteSource,
    Finding,
    FindingValue,
    SecondState,
    Verdict,
    note,
)


def check_seal(inputs: RunInput) -> CheckResult:
    """Check that the stored plan is the plan that was sealed at launch.

    Formula: SHA-256 of the stored plan = the seal.
    Reads: the stored plan and its seal.
    If absent: a plan without a seal is accepted.
    """
    plan = inputs.plan
    if plan.is_intact:
        return NOTHING
    return inconclusive(
        "plan-altered",
        106,
        "The stored plan is not the plan that was sealed at launch. Its SHA-256 is "
        f"{plan.digest()[:16]}..., the seal is {(plan.seal_sha256 or '')[:16]}....",
        "Find out who changed the stored plan, then launch the run again",
    )


def check_run_coverage(inputs: RunInput) -> CheckResult:
    """Check that the run has ended and that enough of all its bursts was measured.

    Formula: measured / planned pair-seconds of all planned bursts >=
        objective.coverage_floor_ratio.
    Reads: the completeness of the bursts.
    If absent: inconclusive.
    """
    planned = len(inputs.plan.bursts)
    pending = planned - len(inputs.bursts)
    if pending:
        return inconclusive(
            "bursts-pending",
            99,
            f"{pending} of {planned} bursts have not ended or have no result.",
            "Wait until the run ends (`broadside watch`). If it has ended, launch it again",
        )
    if inputs.completeness_ratio < inputs.plan.spec.objective.coverage_floor_ratio:
        # The checks of the bursts already return findings for this case.
        return CheckResult(Verdict.INCONCLUSIVE)
    return NOTHING


def check_coverage(inputs: BurstInput) -> CheckResult:
    """Check that enough planned pair-seconds were measured, and recorded by the receivers.

    Formula: measured / planned pair-seconds >= objective.coverage_floor_ratio, and the same for the
        seconds that receivers recorded.
    Reads: claims, reports and seconds of both ends.
    If absent: inconclusive.
    """
    floor, burst = inputs.spec.objective.coverage_floor_ratio, inputs.burst
    seconds = burst.completeness
    if seconds.completeness_ratio < floor:
        return inconclusive(
            "below-floor",
            95,
            f"{formatting.ratio(seconds.completeness_ratio, 1)} of the planned seconds of all "
            f"pairs were measured ({seconds.measured_s} of {seconds.planned_s}). A verdict needs "
            f"{formatting.ratio(floor, 1)}.{missing_pairs(burst)}",
            missing_pairs_step(burst),
            FindingValue.share(seconds.completeness_ratio),
        )
    if burst.proven_ratio < floor:
        return inconclusive(
            "receiver-unseen",
            90,
            f"Records of the receivers cover {formatting.ratio(burst.proven_ratio, 1)} of the "
            f"planned seconds of all pairs. A verdict needs {formatting.ratio(floor, 1)}. The "
            f"other seconds are known only from the senders.{_unseen_pairs(burst)}",
            "Check that the server agents of these pairs run and can write their records, then run "
            "again",
            FindingValue.share(burst.proven_ratio),
        )
    return NOTHING


def check_clocks(inputs: BurstInput) -> CheckResult:
    """Check that enough pair-seconds were measured while the clock errors were within the limit.

    A second without a clock reading counts as not confirmed. If a reading is removed, this
    can therefore never turn the result into a pass.

    Formula: pair-seconds with both clocks within clock_bound_max_s before and after the burst /
        planned pair-seconds >= objective.coverage_floor_ratio.
    Reads: clock readings of both ends, before and after the burst.
    If absent: inconclusive if readings were promised at launch.
    """
    floor, burst = inputs.spec.objective.coverage_floor_ratio, inputs.burst
    seconds = burst.completeness
    if seconds.completeness_ratio < floor or burst.proven_ratio < floor:
        return NOTHING
    unsteady_s = 0 if burst.unsteady_clocks is None else burst.unsteady_clocks.measured_s
    unread_s = burst.clocks_unread_s if inputs.clocks_promised else 0
    planned_s = max(1, seconds.planned_s)
    steady_ratio = (seconds.measured_s - unsteady_s) / planned_s
    confirmed_ratio = (seconds.measured_s - unsteady_s - unread_s) / planned_s
    if confirmed_ratio >= floor:
        if not inputs.clocks_promised:
            return NOTHING
        return CheckResult(Verdict.PASS, (_clock_note(shared=inputs.clocks_shared),))
    if steady_ratio < floor:
        return inconclusive(
            "clocks-unproven",
            89,
            f"{formatting.ratio(steady_ratio, 1)} of the planned seconds of all pairs were "
            "measured with clock errors of both hosts within "
            f"{formatting.time(inputs.spec.clock_bound_max_s)}. A verdict needs "
            f"{formatting.ratio(floor, 1)}. The time of the other seconds is "
            f"uncertain.{_unsteady_clocks(burst)}",
            "Run `chronyc tracking` and `chronyc sources` on the hosts of these agents, repair "
            "their time synchronisation, then run again",
            FindingValue.share(steady_ratio),
        )
    return inconclusive(
        "clock-readings-missing",
        89,
        f"{formatting.ratio(confirmed_ratio, 1)} of the planned seconds of all pairs were measured "
        "with clock readings at both ends, before and after the burst. A verdict needs "
        f"{formatting.ratio(floor, 1)}. {unread_s} seconds have no reading, so their time is "
        "uncertain.",
        "Check that every agent can read chronyd or the kernel clock state and can write its "
        "records, then run again",
        FindingValue.share(confirmed_ratio),
    )


def _unseen_pairs(burst: BurstSummary) -> str:
    """Return a sentence that names the pairs without a record of the receiver."""
    pairs = [
        pair
        for pair in burst.pairs
        if pair.state in (SecondState.MEASURED, SecondState.LATE)
        and pair.basis not in (ByteSource.RECEIVER, ByteSource.NONE)
    ]
    return f" Pairs without such a record: {list_pairs(pairs)}." if pairs else ""


def _unsteady_clocks(burst: BurstSummary) -> str:
    """Return a sentence that names the first hosts with a clock error above the limit."""
    if burst.unsteady_clocks is None:
        return ""
    listed = "; ".join(burst.unsteady_clocks.examples[:LISTED_COUNT])
    more = burst.unsteady_clocks.pairs_count - LISTED_COUNT
    return f" Above the limit: {listed}{f'; and {more} more' if more > 0 else ''}."


def _clock_note(*, shared: bool) -> Finding:
    if shared:
        return note(
            "clocks-shared",
            10,
            "All agents use the clock of one host, so their seconds agree by definition. The "
            "difference of this clock to UTC is unknown.",
            "Nothing, unless times of this run are compared with logs of other hosts",
        )
    return note(
        "clocks-self-reported",
        10,
        "Each clock error is known only from the host's own readings before and after the burst. "
        "Comparing the two ends of a pair detects only differences above their clock errors plus "
        f"{formatting.time(STAMPS_APART_S)} ({formatting.time(LOGIN_APART_S)} for engines without "
        "a start gate).",
        "Nothing if you trust the time synchronisation of these hosts. Otherwise compare their "
        "clocks with a second time server",
    )
