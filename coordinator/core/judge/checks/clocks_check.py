"""Check that the clocks are accurate enough to place the seconds in time."""

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
from broadside.coordinator.core.measure.cross_examination import LOGIN_APART_S, STAMPS_APART_S
from broadside.coordinator.core.summary import Finding, Verdict, note


def _evaluate(given: BurstInput) -> Result:
    # Seconds without a clock reading count as unread. If somebody removes a reading, this can
    # therefore never turn the result into a pass.
    floor, burst = given.spec.objective.coverage_floor_ratio, given.burst
    seen = burst.completeness
    if seen.completeness_ratio < floor or burst.proven_ratio < floor:
        return NOTHING
    unsteady_s = 0 if burst.unsteady_clocks is None else burst.unsteady_clocks.measured_s
    unread_s = burst.clocks_unread_s if given.clocks_promised else 0
    planned_s = max(1, seen.planned_s)
    steady_ratio = (seen.measured_s - unsteady_s) / planned_s
    held_ratio = (seen.measured_s - unsteady_s - unread_s) / planned_s
    if held_ratio >= floor:
        if not given.clocks_promised:
            return NOTHING
        return Result(Verdict.PASS, (_one_clock() if given.clocks_shared else _own_word(),))
    if steady_ratio < floor:
        what = (
            f"{words.ratio(steady_ratio, 1)} of the planned pair-seconds were measured by clocks "
            f"that stayed within the gate of {words.time(given.spec.clock_bound_max_s)}"
        )
    else:
        what = (
            f"{words.ratio(held_ratio, 1)} of the planned pair-seconds were measured by clocks "
            "that were read "
            f"before and after the burst and held; {unread_s} pair-seconds lack a reading"
        )
    return inconclusive(
        id="clocks-unproven" if steady_ratio < floor else "clocks-unread",
        weight=89,
        sentence=f"{what}; a verdict needs {words.ratio(floor, 1)}, the rest cannot be "
        "placed in time",
        next_step="mend the clocks that the findings below name, then run again"
        if steady_ratio < floor
        else "see that every agent can ask chronyd or the kernel for its clock, and that its "
        "records reach the table, then run again",
    )


def _one_clock() -> Finding:
    return note(
        id="clocks-shared",
        weight=10,
        sentence="all ends read the clock of one host, so that none is off from another and the "
        "gate is met by definition; how far that clock is off UTC is unknown",
    )


def _own_word() -> Finding:
    return note(
        id="clocks-own-word",
        weight=10,
        sentence="a host's clock is known by its own readings alone, before and after the burst; "
        f"its pair's other end contradicts one that is off by more than "
        f"{words.time(STAMPS_APART_S)} ({words.time(LOGIN_APART_S)} where an engine has no start "
        "gate) and both their bounds",
    )


CLOCKS: Final = Check(
    id="clocks",
    stage=Stage.COVERAGE,
    question="Were enough pair-seconds measured while the clock errors were within the limit?",
    formula="pair-seconds with both ends' clocks within clock_bound_max_s before and after the "
    "burst / planned pair-seconds >= objective.coverage_floor_ratio",
    reads="clock readings of both ends, before and after the burst",
    when_absent="inconclusive if readings were promised at launch",
    findings=("clocks-unproven", "clocks-unread", "clocks-shared", "clocks-own-word"),
    evaluate=_evaluate,
)
