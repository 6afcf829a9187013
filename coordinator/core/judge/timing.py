"""Whether a burst's seconds can be placed in time: clocks that were read and held, one start."""

from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.measure.cross_examination import LOGIN_APART_S, STAMPS_APART_S
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import (
    BurstSummary,
    Check,
    Finding,
    Verdict,
    inconclusive,
    note,
)

NAMED_COUNT: Final = 3


def hold_clocks(
    spec: RunSpec, burst: BurstSummary, *, promised: bool, shared: bool = False
) -> Check:
    """Enough of the planned pair-seconds were measured by clocks that are known to have held.

    ``promised``: a clock that nobody read did not hold. A reading taken away then moves seconds
    from held, or from moved, to unread: never towards a pass. ``shared``: the plan rests on one
    host's clock that all ends read.
    """
    floor = spec.objective.coverage_floor_ratio
    seen = burst.completeness
    unsteady_s = 0 if burst.unsteady_clocks is None else burst.unsteady_clocks.measured_s
    unread_s = burst.clocks_unread_s if promised else 0
    planned_s = max(1, seen.planned_s)
    steady_ratio = (seen.measured_s - unsteady_s) / planned_s
    held_ratio = (seen.measured_s - unsteady_s - unread_s) / planned_s
    if held_ratio >= floor:
        return Verdict.PASS, [_one_clock() if shared else _own_word()] if promised else []
    if steady_ratio < floor:
        what = (
            f"{words.ratio(steady_ratio, 1)} of the planned pair-seconds were measured by clocks "
            f"that stayed within the gate of {words.time(spec.clock_bound_max_s)}"
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


def hold_starts(spec: RunSpec, burst: BurstSummary) -> Check:
    """Pairs that start apart share fewer seconds; too far apart it is no burst."""
    spread_s, most_s = burst.start_spread_s, spec.objective.start_spread_max_s
    if spread_s is None or spread_s <= most_s:
        return Verdict.PASS, []
    apart = spread_s > spec.clock_bound_max_s
    late = sorted(
        (pair for pair in burst.pairs if pair.pair not in burst.late_pairs and pair.start_error_s),
        key=lambda pair: -(pair.start_error_s or 0.0),
    )[:NAMED_COUNT]
    named = ", ".join(
        f"{pair.pair} ({words.time(pair.start_error_s)} after the instant)" for pair in late
    )
    common_s = 0 if burst.window is None else burst.window.common_s
    return Verdict.INCONCLUSIVE if apart else Verdict.PASS, [
        Finding(
            id="start-spread",
            kind="verdict" if apart else "context",
            severity="problem" if apart else "warning",
            weight=87 if apart else 58,
            sentence=f"pairs began {words.time(spread_s)} apart, more than the "
            f"{words.time(most_s)} that is allowed, and share {common_s} of {burst.duration_s} s; "
            f"the latest: {named}",
            next_step="give busy hosts fewer streams or more cores, see that the start gate is "
            "built (`broadside agent --check`), or allow more (objective.start_spread_max_s)",
        )
    ]
