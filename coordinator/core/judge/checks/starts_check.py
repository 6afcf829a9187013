"""Check that the pairs started together."""

from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    Check,
    Result,
    Stage,
)
from broadside.coordinator.core.summary import Finding, Verdict

# Number of late pairs to list in a finding.
NAMED_COUNT: Final = 3


def _evaluate(given: BurstInput) -> Result:
    spec, burst = given.spec, given.burst
    spread_s, most_s = burst.start_spread_s, spec.objective.start_spread_max_s
    if spread_s is None or spread_s <= most_s:
        return NOTHING
    apart = spread_s > spec.clock_bound_max_s
    late = sorted(
        (pair for pair in burst.pairs if pair.pair not in burst.late_pairs and pair.start_error_s),
        key=lambda pair: -(pair.start_error_s or 0.0),
    )[:NAMED_COUNT]
    named = ", ".join(
        f"{pair.pair} ({words.time(pair.start_error_s)} after the instant)" for pair in late
    )
    common_s = 0 if burst.window is None else burst.window.common_s
    spread = Finding(
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
    return Result(Verdict.INCONCLUSIVE if apart else Verdict.PASS, (spread,))


STARTS: Final = Check(
    id="starts",
    stage=Stage.EVIDENCE,
    question="Did the pairs start together?",
    formula="last - first start of data, over the pairs that were on time, <= "
    "objective.start_spread_max_s; a larger spread gives a warning; a spread above "
    "clock_bound_max_s too makes the burst inconclusive",
    reads="each client's start of data",
    when_absent="the check is skipped",
    findings=("start-spread",),
    evaluate=_evaluate,
)
