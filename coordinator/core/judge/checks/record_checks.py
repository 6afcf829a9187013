"""Checks that the records of the fleet agree with each other."""

from collections.abc import Sequence
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    CheckResult,
    inconclusive,
)
from broadside.coordinator.core.judge.checks.pair_texts import LISTED_COUNT, pair_on_client
from broadside.coordinator.core.summary import (
    Contradiction,
    Finding,
    FindingValue,
    PairSummary,
    Rule,
    Verdict,
    caution,
    note,
    problem,
)

# A client with this share of its CPU in use, or of its busiest core, can start late.
BUSY_RATIO: Final = 0.9
# The window consists of whole UTC seconds. A test can start and end within a second, so one missing
# second at each end is not an error.
GRID_S: Final = 2
_SENTENCES: Final = {
    Rule.ROWS: "{value:.0f} rows of {side} are negative, not a number, reversed or overlapping",
    Rule.RECEIVED_OVER_SENT: "{size} were received, but only {limit} were sent",
    Rule.TOTALS: "the rows add up to {size}, but the total of the engine on {side} is {limit}",
    Rule.SENT_OVER_OFFERED: "{size} were sent by {side}, but the configured pace allows {limit}",
    Rule.OVER_NIC: "{size} crossed the NIC of {side}, but its declared rate allows {limit}",
    Rule.OVER_WINDOW: "{size} were sent, but TCP windows and round trips allow {limit}",
    Rule.HOST_COUNTERS: "{size} were received, but the NIC of {side} counted {limit}",
    Rule.STAMPS: "the two ends started {time} apart, but their clock errors allow {time_limit}",
    Rule.COPIED: "all {size} are identical to the rows of another pair, so one record is a copy",
}


def check_consistency(inputs: BurstInput) -> CheckResult:
    """Check that the records of both ends, the hosts and the plan can all be true.

    Formula: each source limits what the others can record; each rule has a finding.
    Reads: seconds and totals of both ends, host counters, clocks, the configured pace, NIC limits.
    If absent: a missing source limits nothing.
    """
    by_rule: dict[Rule, list[Contradiction]] = {}
    for item in inputs.burst.contradictions:
        by_rule.setdefault(item.rule, []).append(item)
    findings = [
        problem(
            f"contradiction-{rule}",
            94,
            f"{_describe(items)}. These records cannot all be true.",
            "Compare the raw output of both ends and the counters of their hosts. Find out which "
            "record is wrong, then run again",
            FindingValue.count(len(items)),
        )
        for rule, items in sorted(by_rule.items())
    ]
    return CheckResult(Verdict.INCONCLUSIVE if findings else Verdict.PASS, tuple(findings))


def _describe(items: Sequence[Contradiction]) -> str:
    worst = max(items, key=lambda item: item.observed / max(item.limit, 1e-9))
    pairs = {item.pair for item in items if item.pair is not None}
    more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
    text = _SENTENCES[worst.rule].format(
        value=worst.observed,
        size=formatting.size(worst.observed),
        limit=formatting.size(worst.limit),
        time=formatting.time(worst.observed),
        time_limit=formatting.time(worst.limit),
        side="one end" if worst.side is None else f"the {worst.side}",
    )
    return f"{worst.pair or 'Fleet'}{more}: {text}"


def check_starts(inputs: BurstInput) -> CheckResult:
    """Check that the pairs started together.

    Formula: last - first start of data, over the pairs that were on time, <=
        objective.start_spread_max_s. A larger spread gives a warning. A spread that is also above
        clock_bound_max_s makes the burst inconclusive.
    Reads: the start of data of each client.
    If absent: the check is skipped.
    """
    spec, burst = inputs.spec, inputs.burst
    spread_s, limit_s = burst.start_spread_s, spec.objective.start_spread_max_s
    if spread_s is None or spread_s <= limit_s:
        return NOTHING
    decisive = spread_s > spec.clock_bound_max_s
    latest = sorted(
        (pair for pair in burst.pairs if pair.pair not in burst.late_pairs and pair.start_error_s),
        key=lambda pair: -(pair.start_error_s or 0.0),
    )[:LISTED_COUNT]
    listed = ", ".join(
        f"{pair_on_client(pair)} (+{formatting.time(pair.start_error_s)})" for pair in latest
    )
    common_s = 0 if burst.window is None else burst.window.common_s
    sentence = (
        f"The first bytes of the pairs are {formatting.time(spread_s)} apart (limit "
        f"{formatting.time(limit_s)}). "
        f"{common_s} of {burst.duration_s} s are common to all pairs. Latest pairs after the "
        f"planned start: {listed or 'unknown'}."
    )
    step, value = _start_step(latest), FindingValue.time(spread_s)
    if decisive:
        return CheckResult(
            Verdict.INCONCLUSIVE, (problem("start-spread", 87, sentence, step, value),)
        )
    return CheckResult(Verdict.PASS, (caution("start-spread", 58, sentence, step, value),))


def _start_step(latest: Sequence[PairSummary]) -> str:
    """Return the next step for pairs that started apart, which depends on the CPU of the latest."""
    cpus = [max(pair.client_cpu_ratio or 0.0, pair.client_core_ratio or 0.0) for pair in latest]
    if any(cpu >= BUSY_RATIO for cpu in cpus):
        return (
            "The CPUs of these clients were busy: use fewer streams (`streams_count`) or larger "
            "clients, then run again"
        )
    return (
        "Run `broadside agent --check` on the hosts of these agents. It shows if the start gate "
        "works, which holds the first byte back until the planned start. Correct what it reports, "
        "and end other programs on these hosts. Then run again"
    )


def check_window(inputs: BurstInput) -> CheckResult:
    """Check that the common window contains nearly all seconds of each test.

    Formula: (seconds of a test outside the window - 2) / planned seconds <=
        1 - objective.coverage_floor_ratio, for every measured pair.
    Reads: seconds of both ends, placed by corrected clocks; in imports by the offset between the
        two clocks that the test itself shows.
    If absent: the check is skipped without a window, or if only means were recorded.
    """
    window = inputs.burst.window
    if window is None or window.outside_s <= GRID_S:
        return NOTHING
    recorded_s = inputs.burst.duration_s
    ratio = (window.outside_s - GRID_S) / max(1, recorded_s)
    limit = 1 - inputs.spec.objective.coverage_floor_ratio
    measured = (
        f"{window.outside_s} of {recorded_s} s of {window.outside_pair} are outside the "
        f"{window.common_s} s that are common to all measured pairs."
    )
    if ratio <= limit:
        finding: Finding = note(
            "window-outside",
            13,
            f"{measured} The rate does not include these seconds.",
            value=FindingValue.time(window.outside_s),
        )
        return CheckResult(Verdict.PASS, (finding,))
    return inconclusive(
        "outside-window",
        87,
        f"{measured} At most {formatting.ratio(limit, 1)} plus {GRID_S} s are allowed. The rate "
        "in the window does not represent these tests.",
        "Start the tests together, and synchronise the clocks of their hosts",
        FindingValue.time(window.outside_s),
    )
