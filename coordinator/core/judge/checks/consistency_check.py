"""Check that the records do not contradict each other."""

from collections.abc import Sequence
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.checks.check_types import BurstInput, Check, Result, Stage
from broadside.coordinator.core.summary import Contradiction, Rule, Verdict, problem

_NEXT: Final = (
    "compare those pairs' raw output at both ends and their hosts' counters; find out which record "
    "is wrong and what wrote it, then run again"
)


def _evaluate(given: BurstInput) -> Result:
    """Return a result with one finding for each rule that the records violate."""
    found = given.burst.contradictions
    by_rule: dict[Rule, list[Contradiction]] = {}
    for each in found:
        by_rule.setdefault(each.rule, []).append(each)
    findings = [
        problem(
            id=f"contradiction-{rule}",
            weight=94,
            sentence=f"{_said(said)}: the records cannot all be true",
            next_step=_NEXT,
        )
        for rule, said in sorted(by_rule.items())
    ]
    return Result(Verdict.INCONCLUSIVE if found else Verdict.PASS, tuple(findings))


def _said(found: Sequence[Contradiction]) -> str:
    worst = max(found, key=lambda each: each.said / max(each.bound, 1e-9))
    pairs = sorted({each.pair for each in found if each.pair is not None})
    more = f" (and {len(pairs) - 1} pairs more)" if len(pairs) > 1 else ""
    return f"{worst.pair or 'the fleet'}{more} {_words(worst)}"


_WORDS: Final = {
    Rule.ROWS: "has {rows} rows of {side} that are negative, no number, reversed or one over "
    "another",
    Rule.RECEIVED_OVER_SENT: "received {said} when {bound} were sent",
    Rule.TOTALS: "tells {said} where the total that {side}'s engine gave is {bound}",
    Rule.SENT_OVER_OFFERED: "counts {said} at {side} when its pace offers {bound}",
    Rule.OVER_NIC: "had {said} cross {side}'s NIC, whose cap lets {bound} through",
    Rule.OVER_WINDOW: "moved {said} when its windows and round trips allow {bound}",
    Rule.HOST_COUNTERS: "received {said} when {side}'s NIC counted {bound}",
    Rule.STAMPS: "began {said} apart by its two ends' clocks, which are within {bound}",
    Rule.COPIED: "tells of {said} to the byte what another pair tells: one is a copy",
}


def _words(each: Contradiction) -> str:
    quantity = words.time if each.rule is Rule.STAMPS else words.size
    return _WORDS[each.rule].format(
        rows=round(each.said),
        said=quantity(each.said),
        bound=quantity(each.bound),
        side="an end" if each.side is None else f"the {each.side}",
    )


CONSISTENCY: Final = Check(
    id="consistency",
    stage=Stage.EVIDENCE,
    question="Can the records of both ends, the hosts and the plan all be true?",
    formula="each source limits what the others can record; each rule has a finding",
    reads="seconds and totals of both ends, host counters, clocks, the plan's pace, NIC limits",
    when_absent="a missing source limits nothing",
    findings=tuple(f"contradiction-{rule}" for rule in Rule),
    evaluate=_evaluate,
)
